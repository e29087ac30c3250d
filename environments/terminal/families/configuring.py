"""Jobs on configuration files and archives."""

from __future__ import annotations

import base64
import json
from random import Random

from agentgym_rtmc.environments.terminal.archives import write_archive
from agentgym_rtmc.environments.terminal.jobs import Files, Job, quote
from agentgym_rtmc.environments.terminal.material import WORDS, plain_files, text, tree

_KEYS = ("port", "host", "timeout", "retries", "level", "user")


def set_in_section(rng: Random, level: int) -> Job:
    """Set a key of one section of an INI file; the same key stands elsewhere too, and in comments."""
    sections = rng.sample(("server", "client", "cache", "backup"), min(3, level + 1))
    keys = rng.sample(_KEYS, 3)
    old, new = rng.sample(range(1000, 9999), 2)
    section = sections[-1] if level > 1 else sections[0]
    lines: list[str] = []
    for name in sections:
        lines.append(f"[{name}]")
        if level == 3:
            lines.append(f"# {keys[0]} = {old} was too small")
        for key in keys if name == section or level > 1 else keys[1:]:
            value = old if key == keys[0] else rng.randint(1, 999)
            lines.append(f"{key} = {value}")
        lines.append("")
    start = "\n".join(lines)
    place = lines.index(f"{keys[0]} = {old}", lines.index(f"[{section}]"))
    lines[place] = f"{keys[0]} = {new}"
    return Job(
        f"in app.ini, set {keys[0]} of the section [{section}] to {new}; leave everything else as it is",
        {"app.ini": start},
        {"app.ini": "\n".join(lines)},
        (f"sed -i '/^\\[{section}\\]/,/^\\[/ s/^{keys[0]} = .*/{keys[0]} = {new}/' app.ini",),
        (
            f"sed -i 's/{keys[0]} = .*/{keys[0]} = {new}/' app.ini",
            f"echo '{keys[0]} = {new}' >> app.ini",
            f"sed -i 's/{old}/{new}/' app.ini",
        ),
    )


def set_in_json(rng: Random, level: int) -> Job:
    """Set a value of a JSON file, nested from level 2 on."""
    keys = rng.sample(_KEYS, 4)
    key = keys[0]
    first, second = rng.sample(WORDS, 2)
    old, new = rng.sample(range(10, 999), 2)
    inner: Files = {key: old, keys[1]: rng.choice(WORDS), keys[2]: rng.random() < 0.5}
    value: Files = inner
    way = [key]
    if level > 1:
        value, way = {first: inner, second: {key: old, keys[3]: None}}, [first, key]
    if level == 3:
        value = {"services": [{"name": "a", key: old}, {"name": "b", **inner}], key: old}
        way = ["services", "1", key]
    changed = json.loads(json.dumps(value))
    spot = changed
    for step in way[:-1]:
        spot = spot[int(step)] if step.isdigit() else spot[step]
    spot[way[-1]] = new
    shown = ".".join(way)
    access = "".join(f"[{step}]" if step.isdigit() else f"[{step!r}]" for step in way)
    change = f"import json; d = json.load(open('app.json')); d{access} = {new}"
    script = f"{change}; json.dump(d, open('app.json', 'w'), indent=1)"
    return Job(
        f"in app.json, set {shown} to the number {new}{' (lists count from 0)' if level == 3 else ''}; it "
        "must stay valid JSON",
        {"app.json": json.dumps(value, indent=2) + "\n"},
        {"app.json": {"json": changed}},
        (f"python3 -c {quote(script)}",),
        (
            f"sed -i 's/{key}: .*/{key}: {new}/' app.json",
            f"echo {new} > app.json",
            f"sed -i 's/{old}/\"{new}\"/' app.json",
        ),
    )


def set_in_env(rng: Random, level: int) -> Job:
    """Set a variable in a hidden file; others begin or end alike, one is commented out."""
    name = rng.choice(("TOKEN", "HOST", "PORT", "MODE"))
    new = rng.choice(WORDS)
    lines = [f"{name}={rng.choice(WORDS)}s", f"OTHER={rng.choice(WORDS)}"]
    if level > 1:
        lines += [f"OLD_{name}={rng.choice(WORDS)}", f"{name}_FILE=/etc/{rng.choice(WORDS)}"]
    if level == 3:
        lines += [f"# {name}={rng.choice(WORDS)}", f"#{name}={rng.choice(WORDS)}"]
    rng.shuffle(lines)
    changed = [f"{name}={new}" if line.startswith(f"{name}=") else line for line in lines]
    return Job(
        f"set {name} to {new} in the file .env; leave all other lines as they are",
        {".env": "\n".join(lines) + "\n", "env.example": f"{name}=example\n"},
        {".env": "\n".join(changed) + "\n"},
        (f"sed -i 's/^{name}=.*/{name}={new}/' .env",),
        (
            f"sed -i 's/{name}=.*/{name}={new}/' .env",
            f"echo {name}={new} >> .env",
            f"sed -i 's/^{name}=.*/{name}={new}/' env.example",
        ),
    )


def pack(rng: Random, level: int) -> Job:
    """Put files of a kind into an archive, with their paths."""
    extensions = rng.sample(("md", "csv", "py", "cfg"), 2)
    files = plain_files(rng, tree(rng, level, extensions, 4 + 2 * level), lines=1)
    chosen = {path: content for path, content in files.items() if path.endswith(f".{extensions[0]}")}
    return Job(
        f"pack all files ending in .{extensions[0]}, in folders and hidden ones too, with their paths into "
        "backup.tar.gz; they stay",
        files,
        {"backup.tar.gz": {"archive": chosen}},
        (f"find . -type f -name '*.{extensions[0]}' -print0 | tar czf backup.tar.gz --null -T -",),
        ("tar czf backup.tar.gz .", f"tar czf backup.tar.gz *.{extensions[0]}", f"tar cf backup.tar *.{extensions[0]}"),
    )


def unpack(rng: Random, level: int) -> Job:
    """Unpack an archive, from level 2 on only one folder of it, at level 3 only files of a kind."""
    first, second = rng.sample(WORDS, 2)
    inside: dict[str, str] = {}
    for number, stem in enumerate(rng.sample(WORDS, 4 + 2 * level)):
        folder = first if number % 2 else second
        blank = " copy" if level == 3 and number % 3 == 0 else ""
        inside[f"{folder}/{stem}{blank}.{'md' if number % 4 < 2 else 'txt'}"] = text(rng, 1)
    wanted = {
        path: content
        for path, content in inside.items()
        if level == 1 or (path.startswith(f"{first}/") and (level == 2 or path.endswith(".md")))
    }
    what = {1: "", 2: f" only the folder {first} of", 3: f" only the .md files of the folder {first} of"}[level]
    words = {1: "", 2: f" {first}", 3: f" --wildcards '{first}/*.md'"}[level]
    archive = base64.b64encode(write_archive(inside)).decode()
    return Job(
        f"unpack{what} data.tar.gz into a new folder out, with the paths in the archive; the archive stays",
        {"data.tar.gz": {"base64": archive}},
        {f"out/{path}": content for path, content in wanted.items()},
        (f"mkdir out && tar xzf data.tar.gz -C out{words}",),
        ("tar xzf data.tar.gz", "mkdir out; cp data.tar.gz out", "mkdir out; tar xzf data.tar.gz -C out " + second),
    )
