"""What of a patch is graded: refusals, what is left out, and that git does nothing else."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest
from unidiff import PatchSet

from agentgym_rtmc.environments.swebench.diff import parse_diff
from agentgym_rtmc.environments.swebench.patch import MAX_PATCH_BYTES, clean_patch, graded_files
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow

EDIT = "diff --git a/m.py b/m.py\nindex 1..2 100644\n--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,3 @@\n a\n-b\n+c\n d\n"
TREE = {"m.py": ["100644", "a\nb\nd\n"], "tests/test_m.py": ["100644", "t\n"], "link": ["120000", "m.py"]}


def created(path: str, text: str = "x", mode: str = "100644", end: str = "\n") -> str:
    """A section that creates a file of one line."""
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\nindex 0000000..1111111\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1 @@\n+{text}\n" + ("" if end else "\\ No newline at end of file\n")
    )


def link(path: str, target: str) -> str:
    return created(path, target, "120000", end="")


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (created(".git/hooks/pre-commit"), ".git/hooks/pre-commit: git's own files"),
        (created("sub/.GIT/config"), "git's own files"),
        (created("a/.git /config"), "git's own files"),
        (created("GIT~1/config"), "git's own files"),
        (created("../outside.py"), "../outside.py: a path with .."),
        (created("a/../../outside.py"), "a path with .."),
        (created("/etc/passwd"), "/etc/passwd: an absolute path"),
        ("--- a//etc/passwd\n+++ b//etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "an absolute path"),
        ("--- /dev/null\n+++ //etc/passwd\n@@ -0,0 +1 @@\n+b\n", "an absolute path"),
        (created("a//b.py"), "an empty component"),
        (created("./b.py"), "an empty component or a dot"),
        ('diff --git "a/x\\ny" "b/x\\ny"\nnew file mode 100644\n', "control characters"),
        ('diff --git "a/x\\011y" "b/x\\011y"\nnew file mode 100644\n', "control characters"),
        ('--- /dev/null\n+++ "b/\\056\\056/x"\n@@ -0,0 +1 @@\n+b\n', "a path with .."),
        ("diff --git a/m.py b/.git/m\nrename from m.py\nrename to .git/m\n", "git's own files"),
        ("diff --git a/m.py b/../m\ncopy from m.py\ncopy to ../m\n", "a path with .."),
        (created("lib", "Subproject commit 1234", "160000"), "lib: a submodule"),
        ("diff --git a/lib b/lib\nindex 1..2 160000\n--- a/lib\n+++ b/lib\n@@ -1 +1 @@\n-S 1\n+S 2\n", "a submodule"),
        (created("m2.py", mode="104755"), "an unknown file mode 104755"),
        (link("evil", "/etc"), "evil: a link that may lead out of the repository, to /etc"),
        (link("evil", ".."), "a link that may lead out"),
        (link("a/evil", "../../x"), "a link that may lead out"),
        (link("a/evil", "b/../../x"), "a link that may lead out"),
        (link("evil", ".git/config"), "a link that may lead out"),
        (link("down", "tests") + created("down/test_m.py"), "down/test_m.py: a path below a link of the same patch"),
        ("diff --git a/m.py b/m.py\nold mode 100644\nnew mode 120000\n", "turns into a link"),
        (
            "diff --git a/link b/link\nindex 1..2 120000\n--- a/link\n+++ b/link\n@@ -1 +1 @@\n-m.py\n"
            "\\ No newline at end of file\n+/etc/passwd\n\\ No newline at end of file\n",
            "to /etc/passwd",
        ),
        # Without its mode: an edit of a link that is there looks like this.
        (
            "--- a/link\n+++ b/link\n@@ -1 +1 @@\n-m.py\n\\ No newline at end of file\n"
            "+../../x\n\\ No newline at end of file\n",
            "to ../../x",
        ),
        ("garbage", "there is no change in the text"),
        ("--- a/x\n+++ b/x\n@@ -1,9 +1 @@\n-a\n", "not a diff that git applies: line 3"),
        (EDIT + created("\ud800"), "a lone surrogate"),
        (EDIT + "x" * MAX_PATCH_BYTES, "more than 8 MiB"),
    ],
)
def test_refused_as_a_whole(patch: str, reason: str) -> None:
    cleaned = clean_patch(EDIT + patch if patch.startswith("diff") else patch)
    assert cleaned.text == "" and cleaned.changes == () and reason in cleaned.refused[0]


@pytest.mark.parametrize("patch", ["", "\n", " \n\t"])
def test_an_empty_patch_is_empty(patch: str) -> None:
    assert clean_patch(patch) == clean_patch("") and not clean_patch(patch).refused


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (created("tests/test_m.py"), "tests/test_m.py: a graded test file"),
        (
            "diff --git a/tests/test_m.py b/m2.py\nrename from tests/test_m.py\nrename to m2.py\n",
            "m2.py: a graded test file",
        ),
        ("diff --git a/tests/test_m.py b/tests/test_m.py\nold mode 100644\nnew mode 100755\n", "a graded test file"),
        (
            "diff --git a/tests/test_m.py b/tests/test_m.py\ndeleted file mode 100644\n--- a/tests/test_m.py\n"
            "+++ /dev/null\n@@ -1 +0,0 @@\n-t\n",
            "tests/test_m.py: a graded test file",
        ),
        (
            "diff --git a/x.png b/x.png\nnew file mode 100644\nindex 0000000..1111111\nGIT binary patch\nliteral 3\n"
            "Kcmd;L00000\n\nliteral 0\nHcmV?d00001\n\n",
            "x.png: a binary file",
        ),
        (
            "diff --git a/m.bin b/m.bin\nindex 1111111..2222222 100644\nBinary files a/m.bin and b/m.bin differ\n",
            "m.bin: a binary file",
        ),
        (created("pkg/__pycache__/m.txt"), "a build product"),
        (created("m.cpython-311.pyc"), "a build product"),
        (created("build/lib/m.py"), "build/lib/m.py: a build product"),
        (created("src/pkg.egg-info/PKG-INFO"), "a build product"),
        (created(".pytest_cache/v/lastfailed"), "a build product"),
        (created("m.py.orig"), "a build product"),
        (created(".coverage.host.1"), "a build product"),
    ],
)
def test_left_out_and_listed(git_cases, section: str, reason: str) -> None:
    cleaned = clean_patch(section + EDIT, ["tests/test_m.py"])
    assert len(cleaned.dropped) == 1 and reason in cleaned.dropped[0] and not cleaned.refused
    assert [change.path for change in cleaned.changes] == ["m.py"]
    (done,) = git_cases([{"tree": TREE, "patch": cleaned.text}])
    assert done["code"] == 0 and done["tree"] == TREE | {"m.py": ["100644", "a\nc\nd\n"]}


def test_what_is_kept_is_applied(git_cases) -> None:
    """Links inside, tracked files in folders of products, new tests, modes, blanks, a rename, deletions."""
    tree = TREE | {"build/m.py": ["100644", "1\n"], "dist/old": ["100644", "1\n"]}
    patch = (
        EDIT
        + link("docs/latest", "../m.py")
        + link("docs/a", "latest")
        + created("tests/test_new one.py")
        + created("src/build/m.py")
        + created("gitignore/.gitignore")
        + "diff --git a/build/m.py b/build/m.py\n--- a/build/m.py\n+++ b/build/m.py\n@@ -1 +1 @@\n-1\n+2\n"
        + "diff --git a/dist/old b/dist/old\ndeleted file mode 100644\n--- a/dist/old\n+++ /dev/null\n"
        + "@@ -1 +0,0 @@\n-1\n"
    )
    cleaned = clean_patch(patch, ["tests/test_m.py"])
    assert not cleaned.dropped and not cleaned.refused
    (done,) = git_cases([{"tree": tree, "patch": cleaned.text}])
    assert done["code"] == 0, done
    assert done["tree"] == TREE | {
        "m.py": ["100644", "a\nc\nd\n"],
        "docs/latest": ["120000", "../m.py"],
        "docs/a": ["120000", "latest"],
        "tests/test_new one.py": ["100644", "x\n"],
        "src/build/m.py": ["100644", "x\n"],
        "gitignore/.gitignore": ["100644", "x\n"],
        "build/m.py": ["100644", "2\n"],
    }
    assert done["paths"] == sorted(change.path for change in cleaned.changes)


def test_headers_inside_a_file_are_content(git_cases) -> None:
    """A new file that holds a whole patch against `.git` and the tests is one new file."""
    inner = created(".git/hooks/pre-commit") + created("tests/test_m.py")
    lines = inner.splitlines()
    patch = (
        f"diff --git a/fixture.patch b/fixture.patch\nnew file mode 100644\n--- /dev/null\n+++ b/fixture.patch\n"
        f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    )
    cleaned = clean_patch(patch, ["tests/test_m.py"])
    assert [change.path for change in cleaned.changes] == ["fixture.patch"] and not cleaned.dropped
    (done,) = git_cases([{"tree": TREE, "patch": cleaned.text}])
    assert done["tree"] == TREE | {"fixture.patch": ["100644", inner]}


def test_graded_files_and_reference_patches_of_the_datasets(data: Path) -> None:
    """No reference patch is refused or loses anything; the graded files are those the evaluation script restores."""
    count = 0
    for file in sorted(data.glob("*.parquet")):
        for values in pyarrow.parquet.read_table(file).to_pylist():
            row = SWEBenchRow.read(values, file.name)
            graded = graded_files(row)
            cleaned = clean_patch(row.patch, graded)
            assert not cleaned.refused and not cleaned.dropped, row.instance_id
            assert graded and not graded & {path for change in cleaned.changes for path in change.paths}
            assert clean_patch(row.test_patch, graded).text == ""
            # Another reader of diffs finds the same files.
            for text in (row.patch, row.test_patch):
                assert [change.path for change in parse_diff(text)] == [file.path for file in PatchSet(text)]
            count += 1
    assert count == 823


def test_graded_files_of_a_planted_bug(recorded) -> None:
    values = recorded[0][0] | {"test_patch": ""}
    row = SWEBenchRow.read(values, "here")
    assert graded_files(row) == {"tests/test_fields.py"}
