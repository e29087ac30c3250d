"""Jobs that end in a list of files: by name, by what they hold, by size."""

from __future__ import annotations

from random import Random

from agentgym_rtmc.environments.terminal.jobs import ANSWER, Files, Job, quote
from agentgym_rtmc.environments.terminal.material import WORDS, plain_files, text, tree

_EXTENSIONS = ("md", "csv", "py", "json", "html", "cfg")


def by_name(rng: Random, level: int) -> Job:
    """List the files with an extension; a link and a folder with such a name are none."""
    extensions = rng.sample(_EXTENSIONS, 3)
    wanted = extensions[0]
    files = plain_files(rng, tree(rng, level, extensions, 6 + 2 * level))
    found = sorted(path for path in files if path.endswith(f".{wanted}"))
    if level == 3:
        files[f"linked.{wanted}"] = {"link": found[0]}
        files[f"{rng.choice(WORDS)}.{wanted}/readme"] = text(rng, 1)
    return Job(
        f"write the paths of all files ending in .{wanted} to {ANSWER}, one a line, hidden ones too, no links "
        "or folders",
        files,
        {ANSWER: {"set": list(found)}},
        (f"find . -type f -name '*.{wanted}' > {ANSWER}",),
        (f"ls *.{wanted} > {ANSWER}", f"find . -name '*.{extensions[1]}' > {ANSWER}", f"ls | grep {wanted} > {ANSWER}"),
    )


def by_text(rng: Random, level: int) -> Job:
    """List the files that hold a word; at level 3 other words contain it, and capitals are other words."""
    word = rng.choice(WORDS)
    files = plain_files(rng, tree(rng, level, ("txt", "md"), 7 + 2 * level), lines=3)
    files = {path: str(content).replace(word, "other") for path, content in files.items()}
    found = sorted(rng.sample(sorted(files), 2 + level))
    for path in found:
        files[path] = f"{files[path]}the {word} here\n{text(rng, 1, [word])}"
    if level == 3:
        for path, near in zip(
            rng.sample(sorted(set(files) - set(found)), 3), (f"{word}s", f"un{word}", word.upper()), strict=True
        ):
            files[path] = f"{files[path]}{near}\n"
    return Job(
        f"write the paths of all files that hold the word {word} (this very word) to {ANSWER}, one a line",
        files,
        {ANSWER: {"set": list(found)}},
        (f"grep -rlw {word} --exclude={ANSWER} . > {ANSWER}",),
        (
            f"grep -l {word} * > {ANSWER}",
            f"grep -r {word} --exclude={ANSWER} . > {ANSWER}",
            f"grep -rli {word} . > {ANSWER}",
        ),
    )


def largest(rng: Random, level: int) -> Job:
    """Name the largest file, counted in bytes; lines or links may look larger."""
    files: Files = {}
    sizes = rng.sample(range(20, 400), 6 + 2 * level)
    for (stem, extension), size in zip(tree(rng, level, ("txt", "dat"), len(sizes)), sizes, strict=True):
        files[f"{stem}.{extension}"] = (text(rng, 80) + "x" * size)[:size]
    sized = {path: len(str(content)) for path, content in files.items()}
    first = max(sized, key=lambda path: sized[path])
    if level == 3:
        files["huge.txt"] = {"link": first}
    return Job(
        f"write the path of the largest file (in bytes, no links) to {ANSWER}",
        files,
        {ANSWER: {"line": first}},
        (f"find . -type f ! -name {ANSWER} -printf '%s %P\\n' | sort -n | tail -n 1 | cut -d' ' -f2- > {ANSWER}",),
        (
            f"ls -S | head -n 1 > {ANSWER}",
            f"ls | tail -n 1 > {ANSWER}",
            f"find . -type f | sort | tail -n 1 > {ANSWER}",
        ),
    )


def newest_version(rng: Random, level: int) -> Job:
    """Name the folder with the highest version: 1.10 comes after 1.9."""
    major = rng.randint(1, 4)
    minors = sorted(rng.sample(range(2, 9), 2) + rng.sample(range(10, 31), level))
    name = rng.choice(WORDS)
    versions = [f"{name}-{major}.{minor}" for minor in minors]
    if level > 1:
        versions.insert(0, f"{name}-{major - 1}.{rng.randint(31, 60)}")
    files: Files = {f"{version}/notes": text(rng, 1) for version in versions}
    if level == 3:
        files[f"{name}-{major}.99.txt"] = text(rng, 1)
    command = "ls -d */ | tr -d / | sort -V | tail -n 1"
    return Job(
        f"write the name of the folder with the highest version of {name} to {ANSWER}",
        files,
        {ANSWER: {"line": versions[-1]}},
        (f"{command} > {ANSWER}",),
        (f"ls -d */ | tr -d / | tail -n 1 > {ANSWER}", f"ls | sort -V | head -n 1 > {ANSWER}"),
    )


def broken_links(rng: Random, level: int) -> Job:
    """List the links that lead nowhere."""
    files = plain_files(rng, tree(rng, min(level, 2), ("txt",), 3 + level))
    targets = sorted(files)
    whole, broken = rng.sample(WORDS, 1 + level), rng.sample([word.upper() for word in WORDS], 1 + level)
    for name in whole:
        files[f"{name}{' link' if level == 3 else ''}"] = {"link": rng.choice(targets)}
    for name in broken:
        files[name] = {"link": f"{rng.choice(WORDS)}.missing"}
    return Job(
        f"write the names of all links whose target does not exist to {ANSWER}, one a line",
        files,
        {ANSWER: {"set": [*sorted(broken)]}},
        (f"find . -xtype l > {ANSWER}",),
        (f"find . -type l > {ANSWER}", f"ls > {ANSWER}", f"find . -type l -name {quote(broken[0])} > {ANSWER}"),
    )
