"""What the files of jobs are made of: names, texts, tables and log lines, drawn by a random number generator.

Level 2 puts files into folders; level 3 adds what careless commands trip over: blanks and leading dashes in names,
hidden files and folders, links, and folders with a file's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files as package_files
from random import Random

from agentgym_rtmc.environments.terminal.jobs import Files

WORDS = package_files("agentgym_rtmc.environments.terminal").joinpath("words.txt").read_text("utf-8").split()
FOLDERS = ("docs", "data", "src", "notes", "old", "shared", "media", "plans")
CITIES = ("Aarhus", "Bergen", "Cadiz", "Delft", "Erfurt", "Faro", "Ghent", "Haifa")
PEOPLE = ("Ada", "Bela", "Cleo", "Dina", "Emil", "Fritz", "Gita", "Hana", "Ivo", "Jana", "Kofi", "Lena", "Mina", "Nils")


def words(rng: Random, count: int) -> list[str]:
    """Different words."""
    return rng.sample(WORDS, count)


def text(rng: Random, lines: int, extra: Sequence[str] = ()) -> str:
    """Some lines of a few words each, out of all words but those in `extra`."""
    pool = [word for word in WORDS if word not in extra]
    return "".join(" ".join(rng.choices(pool, k=rng.randint(2, 5))) + "\n" for _ in range(lines))


def places(rng: Random, level: int) -> list[str]:
    """Folders (with a slash, or none) that files may lie in."""
    if level == 1:
        return [""]
    first, second, third = rng.sample(FOLDERS, 3)
    found = ["", f"{first}/", f"{second}/", f"{second}/{third}/"]
    return [*found, f"{first}/my {third}/", f".{rng.choice(WORDS)}/"] if level == 3 else found


def stems(rng: Random, level: int, count: int) -> list[str]:
    """Different names without an extension; at level 3 some hold blanks or begin with a dot."""
    drawn = words(rng, count)
    if level == 3:
        for number in range(0, count, 3):
            drawn[number] = f"{drawn[number]} {rng.choice(('copy', 'new', 'b'))}"
        drawn[-1] = f".{drawn[-1]}"
    return drawn


def tree(rng: Random, level: int, extensions: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Draw (path without its extension, extension) pairs; every extension occurs, the first one at every third file."""
    where = places(rng, level)
    found = []
    for number, stem in enumerate(stems(rng, level, count)):
        extension = extensions[0] if number % 3 == 0 else rng.choice(extensions)
        if number in (1, 2) and len(extensions) > 1:
            extension = extensions[min(number, len(extensions) - 1)]
        found.append((rng.choice(where) + stem, extension))
    return found


def plain_files(rng: Random, pairs: Sequence[tuple[str, str]], lines: int = 2) -> Files:
    """A short text for each path and extension."""
    return {f"{stem}.{extension}": text(rng, rng.randint(1, lines)) for stem, extension in pairs}


def table(rng: Random, rows: int) -> list[tuple[str, str, int]]:
    """Rows of name, city and a number; names and numbers differ."""
    names = [f"{rng.choice(PEOPLE)}{number}" for number in rng.sample(range(10, 99), rows)]
    return [
        (name, rng.choice(CITIES), number) for name, number in zip(names, rng.sample(range(5, 999), rows), strict=True)
    ]


def csv(rows: Sequence[tuple[object, ...]], header: str = "name,city,score", mark: str = ",") -> str:
    """A table as text."""
    return "\n".join([header.replace(",", mark), *(mark.join(map(str, row)) for row in rows)]) + "\n"


def log_line(rng: Random, minute: int, client: str, status: int, size: int) -> str:
    """A line of an access log; `minute` is of the day."""
    clock = f"{minute // 60:02d}:{minute % 60:02d}:{rng.randint(0, 59):02d}"
    return f"{clock} {client} GET /{rng.choice(WORDS)} {status} {size}"
