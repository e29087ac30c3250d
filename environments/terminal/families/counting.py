"""Jobs that end in a number or a name: counts, sums, the most frequent."""

from __future__ import annotations

from collections import Counter
from random import Random

from agentgym_rtmc.environments.terminal.jobs import ANSWER, Files, Job
from agentgym_rtmc.environments.terminal.material import WORDS, csv, log_line, plain_files, table, tree


def files_of_a_kind(rng: Random, level: int) -> Job:
    """Count files with an extension."""
    extensions = rng.sample(("md", "csv", "py", "json", "html"), 3)
    wanted = extensions[0]
    files = plain_files(rng, tree(rng, level, extensions, 8 + 3 * level), lines=1)
    count = sum(path.endswith(f".{wanted}") for path in files)
    if level == 3:
        files[f"{rng.choice(WORDS)}.{wanted}/x"] = ""
    return Job(
        f"count the files ending in .{wanted}, hidden ones and those in folders too; write the number to {ANSWER}",
        files,
        {ANSWER: {"number": count}},
        (f"find . -type f -name '*.{wanted}' | wc -l > {ANSWER}",),
        (
            f"ls | wc -l > {ANSWER}",
            f"ls *.{wanted} | wc -l > {ANSWER}",
            f"find . -name '*.{extensions[1]}' | wc -l > {ANSWER}",
        ),
    )


def lines_with(rng: Random, level: int) -> Job:
    """Count the lines that hold a word, over several files."""
    word, other = rng.sample(("ERROR", "WARN", "INFO", "DEBUG"), 2)
    files: Files = {}
    total = 0
    for number in range(1 + 2 * level):
        kinds = rng.choices((word, other, "TRACE"), k=rng.randint(4, 9))
        total += kinds.count(word)
        lines = [f"{kind} {rng.choice(WORDS)} {rng.choice(WORDS)}" for kind in kinds]
        if level == 3 and number % 2:
            lines.append(f"{other} not an {word.lower()} nor {word}S")
        files[f"{'' if level == 1 else 'logs/'}app {number}.log" if level == 3 else f"logs/app{number}.log"] = (
            "\n".join(lines) + "\n"
        )
    return Job(
        f"count the lines of all .log files in logs that begin with {word} and a blank; write the number to {ANSWER}",
        files,
        {ANSWER: {"number": total}},
        (f"cat logs/*.log | grep -c '^{word} ' > {ANSWER}",),
        (
            f"grep -c {word} logs/*.log > {ANSWER}",
            f"cat logs/*.log | wc -l > {ANSWER}",
            f"cat logs/*.log | grep -c {other} > {ANSWER}",
        ),
    )


def different_words(rng: Random, level: int) -> Job:
    """Count the different words of a text; at level 3 capitals do not make another word."""
    pool = rng.sample(WORDS, 6 + 4 * level)
    drawn = rng.choices(pool, k=20 * level)
    if level == 3:
        drawn = [word.capitalize() if rng.random() < 0.3 else word for word in drawn]
    content = "\n".join(" ".join(drawn[start : start + 5]) for start in range(0, len(drawn), 5)) + "\n"
    count = len({word.lower() for word in drawn})
    fold = "tr A-Z a-z < text.txt | " if level == 3 else "cat text.txt | "
    return Job(
        "count the different words in text.txt"
        + (", small and capital letters being the same" if level == 3 else "")
        + f"; write the number to {ANSWER}",
        {"text.txt": content},
        {ANSWER: {"number": count}},
        (f"{fold}tr -s ' ' '\\n' | sort -u | grep -c . > {ANSWER}",),
        (
            f"wc -w < text.txt > {ANSWER}",
            f"sort -u text.txt | wc -l > {ANSWER}",
            f"tr ' ' '\\n' < text.txt | uniq | wc -l > {ANSWER}",
        ),
    )


def column_sum(rng: Random, level: int) -> Job:
    """Add up a column of a table, for one city from level 2 on; at level 3 a city's name is part of another's."""
    rows = table(rng, 6 + 4 * level)
    city = rng.choice(rows)[1]
    if level == 3:
        rows = [
            (name, f"New {city}" if place != city and rng.random() < 0.4 else place, score)
            for name, place, score in rows
        ]
    total = sum(score for _, place, score in rows if level == 1 or place == city)
    condition = "NR > 1" if level == 1 else f'$2 == "{city}"'
    return Job(
        f"add up the scores in table.csv{'' if level == 1 else f' of the rows with city {city}'}; write the "
        f"sum to {ANSWER}",
        {"table.csv": csv(rows)},
        {ANSWER: {"number": total}},
        (f"awk -F, '{condition} {{ s += $3 }} END {{ print s + 0 }}' table.csv > {ANSWER}",),
        (
            f"wc -l < table.csv > {ANSWER}",
            f"grep {city} table.csv | wc -l > {ANSWER}",
            f"grep {city} table.csv | cut -d, -f3 | head -n 1 > {ANSWER}",
        ),
    )


def busiest_client(rng: Random, level: int) -> Job:
    """Name the client with the most requests in an access log; from level 2 on, with the most failed ones."""
    clients = [f"10.0.{rng.randint(0, 9)}.{last}" for last in rng.sample(range(2, 250), 2 + level)]
    while True:
        drawn = [(rng.choice(clients), rng.choice((200, 200, 404, 500))) for _ in range(10 + 8 * level)]
        counts = Counter(client for client, status in drawn if level == 1 or status >= 500)
        best = counts.most_common(2)
        if best and (len(best) == 1 or best[0][1] > best[1][1]):
            break
    minutes = sorted(rng.sample(range(1440), len(drawn)))
    lines = [
        log_line(rng, minute, client, status, 500 if level == 3 and rng.random() < 0.4 else rng.randint(10, 400))
        for minute, (client, status) in zip(minutes, drawn, strict=True)
    ]
    chosen = "" if level == 1 else "$5 == 500 "
    return Job(
        "access.log has lines of time, client, method, path, status and size: write the client with the most "
        f"{'requests' if level == 1 else 'answers of status 500'} to {ANSWER}",
        {"access.log": "\n".join(lines) + "\n"},
        {ANSWER: {"line": best[0][0]}},
        (
            f"awk '{chosen}{{ print $2 }}' access.log | sort | uniq -c | sort -rn | head -n 1 | awk "
            f"'{{ print $2 }}' > {ANSWER}",
        ),
        (
            f"cut -d' ' -f2 access.log | head -n 1 > {ANSWER}",
            f"grep 500 access.log | cut -d' ' -f2 | tail -n 1 > {ANSWER}",
        ),
    )


def between_hours(rng: Random, level: int) -> Job:
    """Count the requests between two hours; from level 2 on, only those with an error."""
    first = rng.randint(3, 14)
    last = first + rng.randint(2, 5)
    lines, count = [], 0
    for minute in sorted(rng.sample(range(1440), 15 + 10 * level)):
        status = rng.choice((200, 404))
        lines.append(log_line(rng, minute, f"10.0.0.{rng.randint(2, 9)}", status, rng.randint(10, 900)))
        count += first <= minute // 60 < last and (level == 1 or status == 404)
    error = "" if level == 1 else " && $5 == 404"
    return Job(
        "access.log has lines of time, client, method, path, status and size: count the lines from "
        f"{first:02d}:00:00 to before {last:02d}:00:00{'' if level == 1 else ' with status 404'}; write the "
        f"number to {ANSWER}",
        {"access.log": "\n".join(lines) + "\n"},
        {ANSWER: {"number": count}},
        (f'awk \'$1 >= "{first:02d}:" && $1 < "{last:02d}:"{error}\' access.log | wc -l > {ANSWER}',),
        (
            f"grep -c '^{first:02d}' access.log > {ANSWER}",
            f"grep -c 404 access.log > {ANSWER}",
            f"wc -l < access.log > {ANSWER}",
        ),
    )


def text_lines(rng: Random, level: int) -> Job:
    """Count the lines of all text files together; at level 3 the last line of some has no line break."""
    files = plain_files(rng, tree(rng, level, ("txt", "md"), 5 + 2 * level), lines=4)
    wanted = [path for path in files if path.endswith(".txt")]
    if level == 3:
        files["list.txt"] = {"link": wanted[0]}
    count = sum(str(files[path]).count("\n") for path in wanted)
    return Job(
        "count the lines of all .txt files together, in folders and hidden ones too, but not by links; write "
        f"the number to {ANSWER}",
        files,
        {ANSWER: {"number": count}},
        (f"find . -type f -name '*.txt' ! -name {ANSWER} -exec cat {{}} + | wc -l > {ANSWER}",),
        (f"cat *.txt | wc -l > {ANSWER}", f"ls *.txt | wc -l > {ANSWER}", f"cat *.md | wc -l > {ANSWER}"),
    )
