"""An agent's image: owned by the agent, without what came later, made once. In a real engine."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.docker.engine import connect
from agentgym_rtmc.environments.sandbox.opening import open_sandbox
from agentgym_rtmc.environments.swebench.image import PreparedImage, image_name, prepare_image
from agentgym_rtmc.environments.swebench.preparation import BASE, ENVIRONMENT, HOME, WORKDIR
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import ImageMissingError, TaskError

EVERY_OBJECT = "git cat-file --batch-all-objects --batch-check='%(objectname) %(objecttype)'"


@pytest.fixture(scope="module")
def prepared(small_row: SWEBenchRow) -> PreparedImage:
    return prepare_image(small_row, "agent")


@pytest.fixture
def run(prepared: PreparedImage, request: pytest.FixtureRequest) -> Any:
    name = getattr(request, "param", prepared.name)
    spec = SandboxSpec(image=name, workdir=WORKDIR, writable_root=True, env={"HOME": HOME}, disk_bytes=256 * MIB)
    with open_sandbox(spec) as sandbox:
        yield lambda command: sandbox.exec(["bash", "-c", command], timeout=60, merge=True)


def test_made_once(small_row: SWEBenchRow, prepared: PreparedImage) -> None:
    again = prepare_image(small_row, "agent")
    assert again == PreparedImage(prepared.name, made=False)
    other = small_row.model_copy(update={"base_commit": "HEAD"})
    assert image_name(other, "agent", "sha256:1") != image_name(small_row, "agent", "sha256:1")
    assert image_name(other, "grader", "sha256:1") == image_name(small_row, "grader", "sha256:1")


def test_official_image_holds_what_must_go(small_row: SWEBenchRow, small: Any) -> None:
    """Without this the next test could not fail."""
    spec = SandboxSpec(image=small_row.image, workdir=WORKDIR, writable_root=True, disk_bytes=256 * MIB)
    with open_sandbox(spec) as sandbox:
        told = sandbox.exec(["bash", "-c", "git log --all --reflog --format=%s; git stash list; git tag"]).stdout
    assert small.SECRET in told and "unreachable" in told and "stash@{0}" in told and "v1.0" in told


def test_nothing_later_is_there(run: Any, small: Any, small_row: SWEBenchRow) -> None:
    assert run("git log --all --reflog --format=%s").stdout == "base\nfirst\n"
    assert run("git rev-parse HEAD").stdout.strip() == small_row.base_commit
    assert (
        run("git for-each-ref --format='%(refname)'; git stash list; git remote; git tag").stdout == "refs/heads/main\n"
    )
    stored = sorted(line.split()[0] for line in run(EVERY_OBJECT).stdout.splitlines())
    reached = sorted(
        line.split()[0] for line in run(f"git rev-list --objects {small_row.base_commit}").stdout.splitlines()
    )
    assert stored == reached and len(stored) > 10
    assert (
        run("git fsck --unreachable --no-reflogs --lost-found 2>&1; ls .git/lost-found").stdout.count("unreachable")
        == 0
    )
    everything = "git cat-file --batch-all-objects --batch --unordered | grep -c -e 'width \\* height' -e 'comes later'"
    assert run(everything).stdout.strip() == "0"
    assert run(f"git --git-dir={BASE} log --all --format=%s").stdout == "base\n"
    of_base = run(f"git --git-dir={BASE} cat-file --batch-all-objects --batch --unordered | grep -c 'width . height'")
    assert of_base.stdout.strip() == "1"  # the wrong one, with a plus
    assert run("git status --porcelain").stdout == ""


def test_owned_by_the_agent(run: Any) -> None:
    assert run("find /testbed -not -user 65534 | head").stdout == ""
    assert run(f"stat -c %u {ENVIRONMENT} {ENVIRONMENT}/bin; touch {ENVIRONMENT}/lib/x && echo written").stdout == (
        "65534\n65534\nwritten\n"
    )
    assert run("git commit -q --allow-empty -m mine && git log --format=%an -1; pwd; echo $HOME").stdout == (
        f"agent\n/testbed\n{HOME}\n"
    )


def test_the_clean_copy_cannot_be_changed(run: Any) -> None:
    listed = f"find {BASE} -type f | sort | xargs sha256sum"
    before = run(listed).stdout
    tried = run(f"touch {BASE}/x; echo x >>{BASE}/config; chmod -R u+w {BASE}; mv {BASE} /tmp/y; rm -rf {BASE}").stdout
    assert tried.count("Permission denied") + tried.count("not permitted") > 4
    assert run(listed).stdout == before and before.count("\n") > 4


def test_nothing_in_the_environment_s_variables_is_the_preparation_s(run: Any) -> None:
    told = run(
        ". /usr/lib/agentgym-rtmc/environment; echo $CONDA_DEFAULT_ENV; command -v python; echo $HOME; env"
    ).stdout
    assert told.startswith(f"testbed\n{ENVIRONMENT}/bin/python\n{HOME}\n")
    assert "GIT_CONFIG" not in told and "/.preparation" not in told


def look(row: SWEBenchRow, command: str) -> str:
    spec = SandboxSpec(image=prepare_image(row, "agent").name, workdir=WORKDIR, writable_root=True)
    with open_sandbox(spec) as sandbox:
        return sandbox.exec(["bash", "-c", command], timeout=60, merge=True).stdout


def test_the_image_s_own_changes_are_a_commit_on_top(small_row: SWEBenchRow) -> None:
    """Official images may differ from the base commit: the agent sees a clean working tree."""
    first = small_row.model_copy(update={"base_commit": look(small_row, "git rev-parse HEAD~1").strip()})
    told = look(
        first, "git log --format=%s; git status --porcelain; git diff --stat HEAD~1 -- setup.cfg shapes/text.py"
    )
    assert told.startswith("The image as it is\nfirst\n shapes/text.py | 2 ++\n")


def test_a_planted_bug_has_no_history(small_row: SWEBenchRow) -> None:
    bug = (
        "diff --git a/shapes/text.py b/shapes/text.py\n--- a/shapes/text.py\n+++ b/shapes/text.py\n"
        '@@ -1,2 +1,2 @@\n def joined(names):\n-    return ", ".join(names)\n+    return "".join(names)\n'
    )
    planted = small_row.model_copy(update={"bug_patch": bug})
    told = look(planted, "git log --format=%s; git status --porcelain; cat shapes/text.py")
    assert told == 'The image as it is\ndef joined(names):\n    return "".join(names)\n'
    assert look(planted, "git cat-file --batch-all-objects --batch | grep -c 'return \", \"'").strip() == "0"


def test_what_does_not_fit_is_told(small_row: SWEBenchRow) -> None:
    with pytest.raises(ImageMissingError, match="agentgym-rtmc prefetch nowhere/none"):
        prepare_image(small_row.model_copy(update={"image": "nowhere/none:latest"}), "agent")
    with pytest.raises(TaskError, match=r"small__shapes-1.*there is no commit 0123456"):
        prepare_image(small_row.model_copy(update={"base_commit": "0123456789"}), "agent")


UNSTARTED = """
import os, signal, sys
from agentgym_rtmc.environments.sandbox.docker import labels
from agentgym_rtmc.environments.sandbox.docker.engine import connect
print(connect().slow.create_container(sys.argv[1], ["true"], labels=labels.labels(3600))["Id"], flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""
NEXT = {
    "sandbox": "from agentgym_rtmc.environments.sandbox.opening import open_sandbox\n"
    "from agentgym_rtmc.environments.sandbox.base import SandboxSpec\n"
    "open_sandbox(SandboxSpec(image=row.image, writable_root=True)).close()",
    "preparation": "from agentgym_rtmc.environments.swebench.image import prepare_image\n"
    "from agentgym_rtmc.environments.sandbox.docker.engine import connect\n"
    "import uuid\n"
    "row = row.model_copy(update={'bug_patch': f'{uuid.uuid4()}\\n{row.patch}'})\n"  # one that was not made before
    "connect().slow.remove_image(prepare_image(row, 'agent').name)",
}


@pytest.mark.parametrize("what", NEXT)
def test_the_next_run_removes_what_was_made_and_never_started(what: str, small_row: SWEBenchRow) -> None:
    """A kill between making a container and starting it; what a living process has made stays."""
    words = [sys.executable, "-c", UNSTARTED, small_row.image]
    killed = subprocess.run([*words, "killed"], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with subprocess.Popen([*words, "living"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living:
        assert living.stdin is not None and living.stdout is not None
        kept, left = living.stdout.readline().strip(), killed.stdout.strip()
        engine = connect()
        assert [engine.slow.inspect_container(one)["State"]["Status"] for one in (left, kept)] == ["created"] * 2
        row = f"row = SWEBenchRow.model_validate_json({small_row.model_dump_json()!r})\n"
        begin = f"from agentgym_rtmc.environments.swebench.rows import SWEBenchRow\n{row}"
        subprocess.run([sys.executable, "-c", begin + NEXT[what]], check=True)
        names = {row["Id"] for row in engine.slow.containers(all=True)}
        living.stdin.close()
    engine.slow.remove_container(kept, force=True)
    assert left not in names and kept in names
