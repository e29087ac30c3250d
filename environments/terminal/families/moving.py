"""Jobs that rename, sort and remove files, set their permissions and their links."""

from __future__ import annotations

import re
from random import Random

from agentgym_rtmc.environments.terminal.jobs import Files, Job, quote
from agentgym_rtmc.environments.terminal.material import FOLDERS, WORDS, places, plain_files, stems, text, tree


def change_extension(rng: Random, level: int) -> Job:
    """Rename all files of a kind."""
    old, new = rng.sample(("jpeg", "htm", "text", "mdown", "yml", "conf"), 2)
    files = plain_files(rng, tree(rng, level, (old, "txt", "py"), 4 + 2 * level), lines=1)
    if level == 3:
        files[f"{rng.choice(WORDS)}.{old}.bak"] = text(rng, 1)
    changes: Files = {}
    for path, content in files.items():
        if path.endswith(f".{old}"):
            changes |= {path: {"gone": True}, f"{path.removesuffix(old)}{new}": content}
    loop = f'while IFS= read -r f; do mv -- "$f" "${{f%.{old}}}.{new}"; done'
    return Job(
        f"rename all files ending in .{old}, in folders and hidden ones too, so that they end in .{new}",
        files,
        changes,
        (f"find . -type f -name '*.{old}' | {loop}",),
        (f"for f in *.{old}; do mv $f ${{f%.{old}}}.{new}; done", f'for f in *.{old}; do mv "$f" "$f.{new}"; done'),
    )


def blanks_to_underscores(rng: Random, level: int) -> Job:
    """Replace blanks in the names of files."""
    where = places(rng, min(level, 2))
    files: Files = {}
    for number, stem in enumerate(rng.sample(WORDS, 3 + 2 * level)):
        name = stem if number % 3 == 2 else f"{stem} {rng.choice(WORDS)}{' (1)' if level == 3 and number % 2 else ''}"
        files[f"{rng.choice(where)}{'-' if level == 3 and number == 0 else ''}{name}.txt"] = text(rng, 1)
    changes: Files = {}
    for path, content in files.items():
        if " " in path:
            changes |= {path: {"gone": True}, path.replace(" ", "_"): content}
    return Job(
        "replace every blank in the names of all files, in folders too, by an underscore",
        files,
        changes,
        ('find . -type f -name \'* *\' | while IFS= read -r f; do mv -- "$f" "$(echo "$f" | tr \' \' _)"; done',),
        (
            "for f in *; do mv $f $(echo $f | tr ' ' _); done",
            'for f in *; do mv -- "$f" "$(echo "$f" | tr -d \' \')"; done',
        ),
    )


def sort_into_folders(rng: Random, level: int) -> Job:
    """Move files into a folder named by their extension."""
    extensions = rng.sample(("txt", "csv", "png", "md", "py"), 1 + level)
    files: Files = {}
    for number, stem in enumerate(stems(rng, level, 4 + 2 * level)):
        files[f"{stem}.{extensions[number % len(extensions)]}"] = text(rng, 1)
    if level == 3:
        files["README"] = text(rng, 1)
        files[f"kept/{rng.choice(WORDS)}.{extensions[0]}"] = text(rng, 1)
    changes: Files = {}
    for path, content in files.items():
        if "/" not in path and "." in path:
            changes |= {path: {"gone": True}, f"{path.rpartition('.')[2]}/{path}": content}
    return Job(
        "move every file here that has an extension (hidden ones too, those in folders not) into a folder "
        "named like it: a.md "
        "goes to md/a.md",
        files,
        changes,
        ('for f in .[!.]*.* *.*; do [ -f "$f" ] || continue; d="${f##*.}"; mkdir -p "$d"; mv -- "$f" "$d/"; done',),
        (
            f"mkdir {extensions[0]}; mv *.{extensions[0]} {extensions[0]}",
            "for f in *.*; do mkdir -p ${f##*.}; mv $f ${f##*.}; done",
        ),
    )


def remove_rubbish(rng: Random, level: int) -> Job:
    """Remove files of a kind, at level 3 empty ones too; all else stays."""
    ending = rng.choice(("tmp", "bak", "swp", "old"))
    files = plain_files(rng, tree(rng, level, (ending, "txt", "py"), 5 + 2 * level), lines=1)
    if level > 1:
        files[f"{rng.choice(WORDS)}.{ending}.txt"] = text(rng, 1)
    if level == 3:
        files[f"{rng.choice(WORDS)} empty.txt"] = ""
        files[f"{rng.choice(WORDS)}.{ending}/kept.txt"] = text(rng, 1)
    changes: Files = {
        path: {"gone": True} for path, content in files.items() if path.endswith(f".{ending}") or content == ""
    }
    empty = " -o -empty" if level == 3 else ""
    return Job(
        f"remove all files ending in .{ending}{' and all empty files' if level == 3 else ''}, in folders and "
        "hidden ones too; "
        "keep everything else, folders as well",
        files,
        changes,
        (f"find . -type f \\( -name '*.{ending}'{empty} \\) -delete",),
        (f"rm *.{ending}", f"rm -r *{ending}*", f"find . -name '*{ending}*' -delete"),
    )


def remove_duplicates(rng: Random, level: int) -> Job:
    """Of files with the same content keep the one whose name comes first."""
    names = [
        f"{stem}.txt"
        for stem in (
            stems(rng, 1, 5 + 2 * level)
            if level < 3
            else [f"{a} {b}" for a, b in zip(rng.sample(WORDS, 11), rng.sample(WORDS, 11), strict=True)]
        )
    ]
    contents = [text(rng, 2) for _ in range(len(names) - 1 - level)]
    drawn = contents + rng.choices(contents, k=len(names) - len(contents))
    rng.shuffle(drawn)
    files: Files = dict(zip(names, drawn, strict=True))
    seen: set[str] = set()
    changes: Files = {}
    for name in sorted(names):
        if files[name] in seen:
            changes[name] = {"gone": True}
        seen.add(str(files[name]))
    return Job(
        "several files here have the same content: of each such group keep only the file whose name comes "
        "first in the alphabet",
        files,
        changes,
        (
            "md5sum * | sort -k2 | awk 'seen[$1]++ { print substr($0, 35) }' | while IFS= read -r f; do rm "
            '-- "$f"; done',
        ),
        ("md5sum * | sort -r -k2 | awk 'seen[$1]++ { print $2 }' | xargs rm -f", f"rm {quote(sorted(names)[-1])}"),
    )


def make_executable(rng: Random, level: int) -> Job:
    """Set permission bits of scripts; at level 3 a script is known by its first line, not by its name."""
    files: Files = {}
    changes: Files = {}
    where = places(rng, min(level, 2))
    for number, stem in enumerate(stems(rng, level, 4 + 2 * level)):
        script = number % 2 == 0
        named = script if level < 3 else rng.random() < 0.5
        path = f"{rng.choice(where)}{stem}{'.sh' if named else '.txt'}"
        content = f"{'#!/bin/sh' if script else '# text'}\necho {rng.choice(WORDS)}\n"
        files[path] = {"text": content, "mode": 0o644}
        if script:
            changes[path] = {"text": content, "mode": 0o755}
    chosen = "-name '*.sh'" if level < 3 else "-exec sh -c 'head -n 1 \"$1\" | grep -q ^#!' x {} \\;"
    what = "all files ending in .sh" if level < 3 else "all files whose first line begins with #!"
    return Job(
        f"set the permissions of {what} to 755, in folders and hidden ones too; leave all others as they are",
        files,
        changes,
        (f"find . -type f {chosen} -exec chmod 755 {{}} +",),
        ("chmod 755 *.sh", "chmod -R 755 .", "chmod u+x *.sh"),
    )


def close_secrets(rng: Random, level: int) -> Job:
    """Take permissions off files that must not be read by others, and only those."""
    files: Files = {}
    changes: Files = {}
    for number, (stem, extension) in enumerate(tree(rng, level, ("key", "pem", "txt"), 5 + 2 * level)):
        content = text(rng, 1)
        files[f"{stem}.{extension}"] = {"text": content, "mode": 0o664 if number % 2 else 0o644}
        if extension != "txt" and (level > 1 or extension == "key"):
            changes[f"{stem}.{extension}"] = {"text": content, "mode": 0o600}
    kinds = "-name '*.key'" if level == 1 else "\\( -name '*.key' -o -name '*.pem' \\)"
    return Job(
        f"set the permissions of all .key {'' if level == 1 else 'and .pem '}files, in folders and hidden "
        "ones too, to 600; "
        "leave all others as they are",
        files,
        changes,
        (f"find . -type f {kinds} -exec chmod 600 {{}} +",),
        ("chmod 600 *.key", "chmod -R go-rwx .", "chmod 400 *.key *.pem"),
    )


def repair_links(rng: Random, level: int) -> Job:
    """Point links to the folder that files have moved to."""
    old, new = rng.sample(FOLDERS, 2)
    names = stems(rng, level, 3 + level)
    files: Files = {f"{new}/{name}.txt": text(rng, 1) for name in names}
    changes: Files = {}
    for number, name in enumerate(names):
        link = f"{rng.choice(WORDS)}{number}{' link' if level == 3 else ''}"
        kept = level > 1 and number == 0
        files[link] = {"link": f"{new if kept else old}/{name}.txt"}
        if not kept:
            changes[link] = {"link": f"{new}/{name}.txt"}
    return Job(
        f"the folder {old} was renamed to {new}: make the links here that point into {old} point to the same "
        f"name in {new}",
        files,
        changes,
        (
            f'for l in *; do t="$(readlink -- "$l")" || continue; case "$t" in {old}/*) '
            f'ln -sfn -- "{new}/${{t#{old}/}}" "$l";; esac; done',
        ),
        (f"for l in *; do ln -sf {new} $l; done", f"mkdir {old}; cp {new}/* {old}/", f"mv {new} {old}"),
    )


def rename_by_date(rng: Random, level: int) -> Job:
    """Turn day-month-year names into year-month-day names, so that they sort."""
    names: list[str] = []
    for stem in rng.sample(WORDS, 3 + 2 * level):
        day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2025)
        names.append(f"{stem}{' ' if level == 3 else '_'}{day:02d}-{month:02d}-{year}.txt")
    files: Files = {name: text(rng, 1) for name in names}
    if level > 1:
        files[f"{rng.choice(WORDS)}_2020-01-02.txt"] = text(rng, 1)
    changes: Files = {}
    for name in names:
        changes |= {name: {"gone": True}, re.sub(r"(\d\d)-(\d\d)-(\d{4})", r"\3-\2-\1", name): files[name]}
    pattern = "s/([0-9]{2})-([0-9]{2})-([0-9]{4})/\\3-\\2-\\1/"
    return Job(
        "file names have dates as day-month-year; rename those files so that the date is written as year-month-day",
        files,
        changes,
        (f'for f in *-*-20[0-9][0-9].txt; do mv -- "$f" "$(echo "$f" | sed -E {quote(pattern)})"; done',),
        ("for f in *.txt; do mv $f $(echo $f | tr - _); done", f"mv {quote(names[0])} 2020-01-01.txt"),
    )
