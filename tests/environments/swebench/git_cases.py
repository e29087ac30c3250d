# ruff: noqa: PTH101, PTH103, PTH108, PTH112, PTH114, PTH115, PTH118, PTH120, PTH123, PTH208, PTH211
"""Runs inside a sandbox: makes repositories, lets git write and apply diffs, and tells what became of the files.

A tree is {path: [mode, text]}, the text of a link its target. One case: {"tree": …} with any of "after" (a tree: git
writes the diff to it, "diff" in the answer; "options" go to `git diff`) and "patch" (applied; "code", "paths",
"tree").
"""

import json
import os
import shutil
import subprocess
import sys

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/tmp",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}
WORK = "/tmp/work/deep/repository"


def text_of(data):
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text):
    return text.encode("utf-8", "surrogateescape")


def git(*arguments, stdin=b""):
    argv = ["git", "-C", WORK, "-c", "core.quotePath=off", *arguments]
    return subprocess.run(argv, input=stdin, capture_output=True, env=ENVIRONMENT, check=False)


def write(tree):
    for path, (mode, text) in tree.items():
        full = os.path.join(bytes_of(WORK), bytes_of(path))
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if mode == "120000":
            os.symlink(bytes_of(text), full)
            continue
        with open(full, "wb") as file:
            file.write(bytes_of(text))
        os.chmod(full, 0o755 if mode == "100755" else 0o644)


def clear():
    for name in os.listdir(WORK):
        if name != ".git":
            path = os.path.join(WORK, name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def read(top):
    """All files below a folder, git's own left out."""
    tree = {}
    for folder, folders, names in os.walk(bytes_of(top)):
        folders[:] = [name for name in folders if name != b".git"]
        for name in [*names, *(one for one in folders if os.path.islink(os.path.join(folder, one)))]:
            full = os.path.join(folder, name)
            path = text_of(os.path.relpath(full, bytes_of(top)))
            if os.path.islink(full):
                tree[path] = ["120000", text_of(os.readlink(full))]
            else:
                with open(full, "rb") as file:
                    tree[path] = ["100755" if os.access(full, os.X_OK) else "100644", text_of(file.read())]
    return tree


def run(case):
    shutil.rmtree("/tmp/work", ignore_errors=True)
    os.makedirs(WORK)
    answer = {}
    git("init", "-q")
    write(case["tree"])
    git("add", "-A", "-f")
    git("commit", "-q", "--allow-empty", "-m", "base")
    if "after" in case:
        clear()
        write(case["after"])
        git("add", "-A", "-f")
        answer["diff"] = text_of(git("diff", "--cached", *case.get("options", []), "HEAD").stdout)
        git("reset", "-q", "--hard")
    if "patch" in case:
        patch = bytes_of(case["patch"])
        stat = git("apply", "--numstat", "-z", "-", stdin=patch).stdout
        answer["paths"] = sorted({text_of(field.split(b"\t")[-1]) for field in stat.split(b"\0") if field} - {""})
        done = git("apply", "-", stdin=patch)
        answer["code"], answer["stderr"] = done.returncode, text_of(done.stderr)
        answer["tree"] = read(WORK)
        answer["outside"] = sorted(path for path in read("/tmp/work") if not path.startswith("deep/repository/"))
    return answer


if __name__ == "__main__":
    print(json.dumps([run(case) for case in json.load(sys.stdin)]))
