"""The kinds of questions by name, with their levels. `HELD_OUT` are never trained on."""

from agentgym_rtmc.environments.data_questions import involved, simple
from agentgym_rtmc.environments.data_questions.questions import Family

LEVELS: dict[int, tuple[Family, ...]] = {
    1: (simple.count_all, simple.count_status, simple.extreme, simple.total_of_status, simple.count_category),
    2: (
        simple.count_two,
        simple.count_missing,
        simple.count_different,
        simple.average_of_known,
        simple.names_of_category,
        simple.count_in_year,
    ),
    3: (
        simple.join_count,
        simple.total_of_name,
        simple.average_in_big_units,
        simple.top_names,
        simple.last_day,
    ),
    4: (
        involved.busiest_category,
        involved.more_than,
        involved.highest_total,
        involved.busiest_month,
        involved.different_things,
        involved.average_of_group,
    ),
    5: (
        involved.without_events,
        involved.above_average,
        involved.last_status,
        involved.both_statuses,
        involved.percentage,
        involved.with_both_things,
        involved.not_of_category,
        involved.counted_once,
    ),
}
"""Level -> its families: 1 one number of a table, 2 conditions, 3 joins, 4 groups, 5 subqueries and traps."""

FAMILIES: dict[str, tuple[int, Family]] = {
    family.__name__: (level, family) for level, families in LEVELS.items() for family in families
}
"""Name -> (level, family)."""

HELD_OUT = ("count_different", "top_names", "average_of_group", "percentage", "with_both_things")
