"""The kinds of jobs, by name. `HELD_OUT` are never trained on."""

from agentgym_rtmc.environments.terminal.families import configuring, counting, editing, finding, moving
from agentgym_rtmc.environments.terminal.jobs import Family

_MAKERS: tuple[Family, ...] = (
    finding.by_name,
    finding.by_text,
    finding.largest,
    finding.newest_version,
    finding.broken_links,
    counting.files_of_a_kind,
    counting.lines_with,
    counting.different_words,
    counting.column_sum,
    counting.busiest_client,
    counting.between_hours,
    counting.text_lines,
    editing.pick_column,
    editing.sort_table,
    editing.unique_lines,
    editing.replace_word,
    editing.join_parts,
    editing.split_by_city,
    editing.number_lines,
    moving.change_extension,
    moving.blanks_to_underscores,
    moving.sort_into_folders,
    moving.remove_rubbish,
    moving.remove_duplicates,
    moving.make_executable,
    moving.close_secrets,
    moving.repair_links,
    moving.rename_by_date,
    configuring.set_in_section,
    configuring.set_in_json,
    configuring.set_in_env,
    configuring.pack,
    configuring.unpack,
)
FAMILIES: dict[str, Family] = {maker.__name__: maker for maker in _MAKERS}
HELD_OUT = ("newest_version", "text_lines", "split_by_city", "close_secrets", "repair_links", "set_in_env")
