# ruff: noqa: W293  (context lines of diffs)
"""A small instance in the form of SWE-bench: a repository of our own in an image that is laid out like an official one.

Two functions are wrong. The reference fix, and the tests that show it, are in commits later than the base commit; a
tag, a remote branch, the reflog, a stash and an unreachable commit lead to them. `/testbed` is root's.
"""

from __future__ import annotations

import io
import tarfile
from textwrap import dedent
from typing import Any

IMAGE = "swebench/sweb.eval.x86_64.small_1776_shapes-1:latest"
ID = "small__shapes-1"
SECRET = "the fix that comes later"
"""A line of the later commit's message."""

FILES = {
    "shapes/__init__.py": "",
    "shapes/area.py": """\
        def rectangle(width, height):
            return width + height


        def triangle(base, height):
            return base * height


        def circle(radius):
            return 3 * radius * radius
        """,
    "shapes/text.py": """\
        def joined(names):
            return ", ".join(names)
        """,
    "tests/__init__.py": "",
    "tests/test_area.py": """\
        from shapes.area import circle


        def test_circle():
            assert circle(2) == 12
        """,
    "tests/test_text.py": """\
        from shapes.text import joined


        def test_joined():
            assert joined(["a", "b"]) == "a, b"
        """,
    "setup.cfg": """\
        [tool:pytest]
        testpaths = tests
        """,
    ".gitignore": """\
        __pycache__/
        *.log
        """,
    ".gitattributes": """\
        *.bat eol=crlf
        """,
    "logo.bin": "\0\1\2",
    "tools/run.bat": "echo shapes\r\necho more\r\n",
    "tools/run.sh": """\
        #!/bin/sh
        echo shapes
        """,
}
PATCH = """\
diff --git a/shapes/area.py b/shapes/area.py
--- a/shapes/area.py
+++ b/shapes/area.py
@@ -1,9 +1,9 @@
 def rectangle(width, height):
-    return width + height
+    return width * height
 
 
 def triangle(base, height):
-    return base * height
+    return base * height / 2
 
 
 def circle(radius):
"""
TEST_PATCH = """\
diff --git a/tests/test_area.py b/tests/test_area.py
--- a/tests/test_area.py
+++ b/tests/test_area.py
@@ -1,4 +1,12 @@
-from shapes.area import circle
+from shapes.area import circle, rectangle, triangle
+
+
+def test_rectangle():
+    assert rectangle(3, 5) == 15
+
+
+def test_triangle():
+    assert triangle(3, 4) == 6
 
 
 def test_circle():
"""
PARTIAL = """\
diff --git a/shapes/area.py b/shapes/area.py
--- a/shapes/area.py
+++ b/shapes/area.py
@@ -1,5 +1,5 @@
 def rectangle(width, height):
-    return width + height
+    return width * height
 
 
 def triangle(base, height):
"""
WRONG = PARTIAL.replace("+    return width * height", "+    return width - height")
BREAKING = (
    PATCH
    + """\
diff --git a/shapes/text.py b/shapes/text.py
--- a/shapes/text.py
+++ b/shapes/text.py
@@ -1,2 +1,2 @@
 def joined(names):
-    return ", ".join(names)
+    return "; ".join(names)
"""
)
_ACTIVATE = """\
# Stands in for conda's: defines the function that scripts call.
conda() {
  export CONDA_DEFAULT_ENV="$2"
  export PATH="/opt/miniconda3/envs/$2/bin:$PATH"
}
"""
_EVAL = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff BASE
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
git checkout BASE tests/test_area.py
git apply -v - <<'EOF_114329324912'
TEST_PATCH
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA -p no:cacheprovider tests/test_area.py tests/test_text.py
: '>>>>> End Test Output'
git checkout BASE tests/test_area.py
"""
_BUILD = """
set -eu
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b HOME=/root
export GIT_AUTHOR_DATE=2021-01-01T00:00:00+0000 GIT_COMMITTER_DATE=2021-01-01T00:00:00+0000
mkdir -p /opt/miniconda3/envs/testbed/bin /opt/miniconda3/envs/testbed/lib
ln -s /usr/bin/python3 /opt/miniconda3/envs/testbed/bin/python
cd /testbed
chmod +x tools/run.sh
git init -q
git add setup.cfg .gitignore
git commit -q -m first
git add -A
git commit -q -m base
base=$(git rev-parse HEAD)
git apply /build/patch /build/test_patch
git commit -q -a -m 'SECRET'
git tag -a -m v1 v1.0
git update-ref refs/remotes/origin/main HEAD
git checkout -q --detach
echo '# unreachable' >>shapes/text.py
git commit -q -a -m 'SECRET unreachable'
git checkout -q main
git reset -q --hard "$base"
echo '# SECRET' >>shapes/text.py
git stash -q
rm -rf /build
chown -R root:root /testbed /opt/miniconda3
echo "$base"
"""


def build(client: Any, base_image: str) -> dict[str, Any]:
    """Make the image in an engine, under the row's image name, and return the row."""
    # The tests' base image has a repository of its own settings only; the branch is called main there.
    made = client.create_container(
        base_image,
        entrypoint=["/bin/sh", "-c", _BUILD.replace("SECRET", SECRET)],
        command=[],
        user="0:0",
        host_config=client.create_host_config(network_mode="none"),
    )["Id"]
    try:
        client.put_archive(made, "/", _archive())
        client.start(made)
        code = client.wait(made)["StatusCode"]
        told = client.logs(made).decode()
        assert code == 0, told
        repository, _, tag = IMAGE.rpartition(":")
        client.commit(made, repository, tag, changes=["ENTRYPOINT []", 'CMD ["/bin/sh"]'])
    finally:
        client.remove_container(made, force=True)
    return row(told.split()[-1])


def row(base_commit: str) -> dict[str, Any]:
    """The row of the instance."""
    script = _EVAL.replace("BASE", base_commit).replace("TEST_PATCH", TEST_PATCH)
    return {
        "instance_id": ID,
        "repo": "small/shapes",
        "base_commit": base_commit,
        "version": "1.0",
        "problem_statement": "The areas of rectangles and triangles are wrong: 3 by 5 is 15, not 8.",
        "hints_text": "Multiply.",
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": ["tests/test_area.py::test_rectangle", "tests/test_area.py::test_triangle"],
        "PASS_TO_PASS": ["tests/test_area.py::test_circle", "tests/test_text.py::test_joined"],
        "image": IMAGE,
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "environment_setup_commit": base_commit,
    }


def _archive() -> bytes:
    files = {f"testbed/{path}": dedent(text) for path, text in FILES.items()}
    files |= {"build/patch": PATCH, "build/test_patch": TEST_PATCH, "opt/miniconda3/bin/activate": _ACTIVATE}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()
