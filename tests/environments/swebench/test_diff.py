"""Diffs: what is read is what git does, whatever stands in files and names."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_rtmc.environments.swebench.diff import DiffError, parse_diff, quote_path, write_diff
from agentgym_rtmc.environments.swebench.reverse import reverse_diff

# Lines that look like a diff's own, and what other readers take for the end of a line.
LINES = st.sampled_from(
    [
        "",
        "x = 1",
        "    return",
        "diff --git a/m.py b/m.py",
        "--- a/m.py",
        "+++ b/m.py",
        "@@ -1,2 +1,2 @@",
        "new file mode 120000",
        "rename from m.py",
        "GIT binary patch",
        "Binary files a/x and b/x differ",
        "index 0000000..1111111 160000",
        "\\ No newline at end of file",
        "-- ",
        "carriage\r",
        "form\x0cfeed \x0b \x1c",
        "separators \x85 \u2028 \u2029",
        "tab\there",
        "äöü 字",
    ]
)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINES, max_size=6), st.sampled_from(["\n", ""]))
NAMES = st.sampled_from(["m.py", "a b.py", 'quo"te', "back\\slash", "-dash", "ünï.py", " lead", "end ", "b", "a"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
FILES = st.tuples(st.sampled_from(["100644", "100755"]), TEXTS).map(list)


def without_clashes(tree: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leave out files where another path needs a folder."""
    return {path: file for path, file in tree.items() if not any(one.startswith(f"{path}/") for one in tree)}


TREES = st.dictionaries(PATHS, FILES, max_size=4).map(without_clashes)


@given(before=TREES, after=TREES, renames=st.booleans())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_git_writes_is_read_and_written_again(git_cases, before, after, renames) -> None:
    (made,) = git_cases([{"tree": before, "after": after, "options": ["-C", "-C"] if renames else ["--no-renames"]}])
    changes = parse_diff(made["diff"])
    (applied,) = git_cases([{"tree": before, "patch": write_diff(changes)}]) if changes else ({"tree": before},)
    assert applied["tree"] == after, applied
    if changes:
        assert applied["paths"] == sorted({change.path for change in changes})
    if not any(change.moved == "copy" for change in changes):
        (back,) = git_cases([{"tree": after, "patch": write_diff(reverse_diff(changes))}]) if changes else ({},)
        assert back.get("tree", before) == before


SEEDS = [
    "diff --git a/m.py b/m.py\nindex 1..2 100644\n--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,3 @@ def f():\n a\n-b\n+c\n d\n",
    "diff --git a/new b/new\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+one\n+two\n",
    "diff --git a/old b/old\ndeleted file mode 100644\nindex 1..0\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
    "diff --git a/x y b/x y\nold mode 100644\nnew mode 100755\n",
    "diff --git a/old b/to/here\nsimilarity index 100%\nrename from old\nrename to to/here\n",
    "diff --git a/m.py b/copy\ncopy from m.py\ncopy to copy\n",
    "--- a/m.py\t2020-01-01\n+++ b/m.py\n@@ -1,3 +1,4 @@\n a\n b\n+new\n d\n",
    'diff --git "a/\\303\\274" "b/\\303\\274"\nnew file mode 100644\n--- /dev/null\n+++ "b/\\303\\274"\n'
    "@@ -0,0 +1 @@\n+x\n",
    "diff --git a/link b/link\nnew file mode 120000\n--- /dev/null\n+++ b/link\n"
    "@@ -0,0 +1 @@\n+m.py\n\\ No newline at end\n",
]
TREE = {"m.py": ["100644", "a\nb\nd\n"], "old": ["100644", "x\n"], "x y": ["100644", "1\n"]}


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_accepted_of_a_broken_diff_is_what_git_does(git_cases, data) -> None:
    """Lines of real diffs, shuffled, doubled and cut: git touches exactly the paths that were read."""
    lines = [
        line
        for seed in data.draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3))
        for line in seed.split("\n")
    ]
    for _ in range(data.draw(st.integers(0, 4))):
        at, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(["copy", "cut", "swap", "blank", "break"])):
            case "copy":
                lines.insert(at, lines[other])
            case "cut" if len(lines) > 1:
                del lines[at]
            case "swap":
                lines[at], lines[other] = lines[other], lines[at]
            case "blank":
                lines[at] = f" {lines[at]}"
            case "break":
                lines[at] = lines[at].replace("/", "//", 1)
    try:
        changes = parse_diff("\n".join(lines))
    except DiffError:
        return
    text = write_diff(changes)
    assert write_diff(parse_diff(text)) == text
    if changes and not any(change.binary for change in changes):
        (done,) = git_cases([{"tree": TREE, "patch": text}])
        assert set(done["paths"]) <= {path for change in changes for path in change.paths}
        touched = {path for path in {*done["tree"], *TREE} if done["tree"].get(path) != TREE.get(path)}
        assert touched <= {path for change in changes for path in change.paths} and not done["outside"]
        if done["code"] == 0:
            assert done["paths"] == sorted({change.path for change in changes})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("@@ -1 +1 @@\n-a\n+b\n", "line 1: a hunk without a header"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n", "line 3: the hunk's header promises 1 more old and 1 more new lines"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n-b\n", "line 3: the hunk has more lines than its header says"),
        ("--- a/x\n+++ b/x\n@@ -1 +one @@\n", "line 3: not a hunk's header"),
        ("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "two names, 'x' and 'y', for one file"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "both sides are /dev/null"),
        ("diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", "the header does not tell the file's name"),
        ("diff --git a/x b/x\nold mode 100644\n--- a/x\n+++ b/x\n", "old mode and new mode come together"),
        ("diff --git a/x b/x\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "the header names other files"),
        ("diff --git a/x b/y\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "two names, 'x' and 'y', without a rename"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n--- a/x\n+++ b/z\n", "name other files than the header"),
        ("diff --git a/x b/y\nrename from x\ncopy to y\n", "rename or copy needs one line from, one line to"),
        ("diff --git a/x b/x\nnew file mode 100644\n--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+a\n", "/dev/null stands where"),
        ("--- /dev/null\n+++ b/x\n@@ -1 +1,2 @@\n a\n+b\n", "a created file has only + lines"),
        ('diff --git "a/\\x" "b/\\x"\nnew file mode 100644\n', "the header does not tell the file's name"),
        ('--- "a/\\x"\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n', "has an unknown escape"),
        ('--- "a/x"y\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n', "is not one quoted name"),
    ],
)
def test_complaints_name_the_line(text: str, complaint: str) -> None:
    with pytest.raises(DiffError, match=r"^line \d+: ") as caught:
        parse_diff(text)
    assert complaint in str(caught.value)


def test_text_around_sections_and_line_ends_of_another_system() -> None:
    (change,) = parse_diff("From: me\nSubject: x\n---\n m.py | 2 +-\n" + SEEDS[0] + "-- \n2.40\n")
    assert change.path == "m.py" and len(change.hunks) == 1
    assert parse_diff(SEEDS[0].replace("\n", "\r\n")) == parse_diff(SEEDS[0])
    # Without a last newline; with a blank stripped from an empty line of context.
    assert parse_diff(SEEDS[0].rstrip("\n")) == parse_diff(SEEDS[0])
    (loose,) = parse_diff("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n\n-a\n+b\n")
    assert loose.hunks[0].lines == (" ", "-a", "+b")
    # A section that only says its names and index changes nothing.
    assert parse_diff("diff --git a/x b/x\nindex 1..2 100644\n") == () == parse_diff("") == parse_diff("no diff\n")


def test_names_that_are_not_utf8_keep_their_bytes(git_cases) -> None:
    name = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    (made,) = git_cases([{"tree": {}, "after": {name: ["100644", "x\n"]}}])
    (change,) = parse_diff(made["diff"])
    assert change.new == name and quote_path(name) == '"caf\\351.py"'
    (done,) = git_cases([{"tree": {}, "patch": write_diff([change])}])
    assert done["tree"] == {name: ["100644", "x\n"]}
