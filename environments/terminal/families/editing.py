"""Jobs that end in changed or new text: columns, sorting, duplicates, words, parts."""

from __future__ import annotations

import re
from random import Random

from agentgym_rtmc.environments.terminal.jobs import Files, Job, quote
from agentgym_rtmc.environments.terminal.material import WORDS, csv, plain_files, table, text, tree


def pick_column(rng: Random, level: int) -> Job:
    """Write one column of a table to a file; from level 2 on of some rows only."""
    rows = table(rng, 5 + 3 * level)
    mark = ";" if level == 3 else ","
    city = rng.choice(rows)[1]
    if level == 3:
        rows = [(name, f"{place} {rng.choice(('North', 'South'))}", score) for name, place, score in rows]
        city = rng.choice(rows)[1]
    kept = [name for name, place, _ in rows if level == 1 or place == city]
    condition = "NR > 1" if level == 1 else f'$2 == "{city}"'
    return Job(
        f"table.csv has columns name, city and score, divided by {mark!r}: write the names"
        f"{'' if level == 1 else f' of the rows with city {city}'} to names.txt, one a line, in the same "
        "order, without header",
        {"table.csv": csv(rows, mark=mark)},
        {"names.txt": "\n".join(kept) + "\n"},
        (f"awk -F{quote(mark)} '{condition} {{ print $1 }}' table.csv > names.txt",),
        (
            f"cut -d{quote(mark)} -f1 table.csv > names.txt",
            f"cut -d{quote(mark)} -f2 table.csv > names.txt",
            f"grep {quote(city.split()[0])} table.csv > names.txt",
        ),
    )


def sort_table(rng: Random, level: int) -> Job:
    """Sort a table by its numbers, largest first from level 2 on; the header stays at the top."""
    rows = table(rng, 5 + 3 * level)
    ordered = sorted(rows, key=lambda row: row[2], reverse=level > 1)
    flag = "rn" if level > 1 else "n"
    target = "sorted.csv" if level < 3 else "table.csv"
    body = f"{{ head -n 1 table.csv; tail -n +2 table.csv | sort -t, -k3,3{flag}; }}"
    write = f"{body} > sorted.csv" if level < 3 else f"{body} > /tmp/t && cat /tmp/t > table.csv"
    return Job(
        f"sort the rows of table.csv by score, {'largest' if level > 1 else 'smallest'} first, the header "
        "staying on top; "
        f"write the result to {target}",
        {"table.csv": csv(rows)},
        {target: csv(ordered)},
        (write,),
        (
            f"sort -t, -k3 table.csv > {target}",
            "sort table.csv > sorted.csv",
            f"sort -t, -k3,3{flag} table.csv > sorted.csv",
        ),
    )


def unique_lines(rng: Random, level: int) -> Job:
    """Take repeated lines out of a file in place, keeping the first of each and the order."""
    pool = [
        f"{one} {two}" if level > 1 else one
        for one, two in zip(rng.sample(WORDS, 8), rng.sample(WORDS, 8), strict=True)
    ]
    lines = pool + rng.choices(pool, k=4 * level)
    rng.shuffle(lines)
    name = "my list.txt" if level == 3 else "list.txt"
    start, end = "\n".join(lines) + "\n", "\n".join(dict.fromkeys(lines)) + "\n"
    file = quote(name)
    return Job(
        f"remove repeated lines from {file}: keep the first of each and the order of the rest",
        {name: start},
        {name: end},
        (f"awk '!seen[$0]++' {file} > /tmp/t && cat /tmp/t > {file}",),
        (f"sort -u -o {file} {file}", f"uniq {file} > /tmp/t && cat /tmp/t > {file}", f"sort -u {file} > out.txt"),
    )


def replace_word(rng: Random, level: int) -> Job:
    """Replace a word in all files of a kind; words that contain it, and other files, stay."""
    old, new = rng.sample(WORDS, 2)
    files = plain_files(rng, tree(rng, level, ("md", "txt"), 5 + 2 * level), lines=3)
    texts = {path: str(content).replace(old, "other") for path, content in files.items()}
    for number, path in enumerate(sorted(texts)):
        if number % 2 == 0:
            texts[path] = f"{texts[path]}{old} and {rng.choice(WORDS)}, {old}\n"
        if level == 3 and number % 3 == 0:
            texts[path] = f"{texts[path]}{old}s un{old}\n"
    if not any(old in content for path, content in texts.items() if path.endswith(".md")):
        path = next(path for path in sorted(texts) if path.endswith(".md"))
        texts[path] += f"{old}\n"
    changes: Files = {
        path: changed
        for path, content in texts.items()
        if path.endswith(".md") and (changed := re.sub(rf"\b{old}\b", new, content)) != content
    }
    return Job(
        f"replace the word {old} by {new} in all .md files, in folders and hidden ones too, but not where it "
        "is a part of a "
        "longer word, and not in other files",
        dict(texts),
        changes,
        (f"find . -type f -name '*.md' -exec sed -i 's/\\b{old}\\b/{new}/g' {{}} +",),
        (
            f"sed -i 's/{old}/{new}/g' *.md",
            f"sed -i 's/{old}/{new}/' *.md",
            f"find . -type f -exec sed -i 's/{old}/{new}/g' {{}} +",
        ),
    )


def join_parts(rng: Random, level: int) -> Job:
    """Join numbered parts in the order of their numbers."""
    count = {1: 4, 2: 11, 3: 12}[level]
    name = rng.choice(WORDS)
    parts = {number: text(rng, 1) for number in range(1, count + 1)}
    form = "{name} part {number}.txt" if level == 3 else "{name}{number}.txt"
    files: Files = {form.format(name=name, number=number): content for number, content in parts.items()}
    if level == 3:
        files[f"{name} notes.txt"] = text(rng, 1)
    pattern = f"{name} part " if level == 3 else name
    return Job(
        f"join the numbered files {form.format(name=name, number=1)} to "
        f"{form.format(name=name, number=count)} in the order of "
        "their numbers into whole.txt; the parts stay",
        files,
        {"whole.txt": "".join(parts.values())},
        (f"for i in $(seq 1 {count}); do cat {quote(pattern)}$i.txt; done > whole.txt",),
        (f"cat {name}* > whole.txt", f"cat {name}*1*.txt > whole.txt"),
    )


def split_by_city(rng: Random, level: int) -> Job:
    """Write one file for each city of a table."""
    rows = table(rng, 4 + 3 * level)
    cities = sorted({city for _, city, _ in rows})
    folder = "" if level == 1 else "cities/"
    header = "name,city,score\n" if level == 3 else ""
    changes: Files = {
        f"{folder}{city}.csv": header
        + "".join(f"{name},{place},{score}\n" for name, place, score in rows if place == city)
        for city in cities
    }
    first = "mkdir -p cities; " if folder else ""
    head = 'if (!seen[$2]++) print "name,city,score" > f; ' if header else ""
    return Job(
        f"write the rows of each city in table.csv to {folder or 'a file '}CITY.csv, in the same order, "
        f"{'each with the header' if header else 'without the header'}",
        {"table.csv": csv(rows)},
        changes,
        (f'{first}awk -F, \'NR > 1 {{ f = "{folder}" $2 ".csv"; {head}print > f }}\' table.csv',),
        (
            f'{first}awk -F, \'{{ print > "{folder}" $2 ".csv" }}\' table.csv',
            f"{first}grep {cities[0]} table.csv > {folder}{cities[0]}.csv",
        ),
    )


def number_lines(rng: Random, level: int) -> Job:
    """Put a number before each line; from level 2 on empty lines are left out, at level 3 in place."""
    lines = text(rng, 4 + 2 * level).splitlines()
    if level > 1:
        for place in sorted(rng.sample(range(1, len(lines)), level), reverse=True):
            lines.insert(place, "")
    kept = [line for line in lines if line]
    numbered = "".join(f"{number}. {line}\n" for number, line in enumerate(kept, 1))
    target = "poem.txt" if level == 3 else "numbered.txt"
    command = "awk 'NF { print ++n \". \" $0 }' poem.txt"
    write = f"{command} > /tmp/t && cat /tmp/t > poem.txt" if level == 3 else f"{command} > numbered.txt"
    return Job(
        f"number the lines of poem.txt as in '1. first line'{', leaving out empty lines' if level > 1 else ''}; "
        f"write the result to {target}",
        {"poem.txt": "\n".join(lines) + "\n"},
        {target: numbered},
        (write,),
        (
            f"cat -n poem.txt > {target}.new",
            "nl poem.txt > numbered.txt",
            "awk '{ print NR \") \" $0 }' poem.txt > numbered.txt",
        ),
    )
