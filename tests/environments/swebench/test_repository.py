"""What is taken out of an agent's repository, in a real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agentgym_rtmc.environments.sandbox.base import Sandbox
from agentgym_rtmc.environments.sandbox.opening import open_sandbox
from agentgym_rtmc.environments.swebench.image import prepare_image
from agentgym_rtmc.environments.swebench.limits import ContainerLimits
from agentgym_rtmc.environments.swebench.patch import CleanPatch, clean_patch
from agentgym_rtmc.environments.swebench.repository import MOST_FILES, Repository
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow

Collect = Callable[[str], tuple[CleanPatch, Repository]]


@pytest.fixture
def sandbox(small_row: SWEBenchRow) -> Iterator[Sandbox]:
    limits = ContainerLimits(memory_mb=256, disk_mb=64)
    with open_sandbox(limits.agent(prepare_image(small_row, "agent").name, 60.0, 600.0)) as made:
        yield made


@pytest.fixture
def collect(sandbox: Sandbox) -> Collect:
    def after(command: str) -> tuple[CleanPatch, Repository]:
        sandbox.exec(["bash", "-c", command])
        repository = Repository(sandbox)
        data = repository.patch()
        assert data is not None
        return clean_patch(data.decode("utf-8", "surrogateescape")), repository

    return after


def test_everything_that_was_done(collect: Collect) -> None:
    patch, repository = collect(
        "echo a >staged.txt; git add staged.txt; echo b >committed.txt; git add committed.txt; git commit -qm x; "
        "echo c >untracked.txt; rm setup.cfg; git mv shapes/text.py shapes/words.py; chmod -x tools/run.sh; "
        "ln -s text.py shapes/alias; mkdir -p 'deep/er ä'; printf 'no newline' >'deep/er ä/ü.txt'; echo d >x.log; "
        "printf '\\0\\1' >new.bin; printf '\\0\\3' >logo.bin; git stash -q; git stash pop -q; chmod 000 deep"
    )
    changed = {change.path: (change.old, change.new_mode) for change in patch.changes}
    assert sorted(changed) == [
        "committed.txt",
        "deep/er ä/ü.txt",
        "setup.cfg",
        "shapes/alias",
        "shapes/text.py",
        "shapes/words.py",
        "staged.txt",
        "tools/run.sh",
        "untracked.txt",
    ]
    assert changed["shapes/alias"] == (None, "120000") and changed["tools/run.sh"] == ("tools/run.sh", "100644")
    assert patch.dropped == ("logo.bin: a binary file", "new.bin: a binary file") and not patch.refused
    files = repository.changes()
    assert files is not None and files["setup.cfg"] is None and "x.log" not in files and "new.bin" in files


def test_git_s_own_data_makes_no_difference(collect: Collect, sandbox: Sandbox) -> None:
    patch, _ = collect(
        "echo '# more' >>shapes/text.py; git config core.fsmonitor 'touch /testbed/ran; :'; "
        "git config filter.x.clean 'touch /testbed/ran; cat; :'; echo '*.py filter=x diff=x' >.gitattributes; "
        "git config diff.x.textconv 'touch /testbed/ran; :'; git config diff.external 'touch /testbed/ran; :'; "
        "git update-index --assume-unchanged shapes/text.py; echo '*' >.git/info/exclude; rm -rf .git/objects; "
        "printf '[core]\\n\\tfsmonitor = touch /testbed/ran\\n[diff]\\n\\tnoprefix = true\\n' >~/.gitconfig; "
        "git config core.worktree /tmp; rm -f ran"
    )
    assert sorted(change.path for change in patch.changes) == [".gitattributes", "shapes/text.py"]
    assert sandbox.exec(["test", "-e", "ran"]).code == 1


def test_a_repository_within_is_left_out(collect: Collect) -> None:
    patch, _ = collect("git init -q inner; cd inner; echo x >y; git add y; git commit -qm x; echo z >../z")
    assert [change.path for change in patch.changes] == ["z"] and not patch.refused


def test_untouched_and_blanks(collect: Collect) -> None:
    patch, repository = collect("touch shapes/*.py; cat setup.cfg >/tmp/s; rm setup.cfg; cp /tmp/s setup.cfg")
    assert not patch.text and repository.changes() == {}
    assert collect("sed -i 's/$/  /' shapes/text.py")[1].changes() != {}


def test_very_many_files(collect: Collect) -> None:
    patch, repository = collect("for i in $(seq 300); do echo $i >f$i; done")
    assert len(patch.changes) == 300
    files = repository.changes()
    assert files is not None and len(files) == MOST_FILES


def test_a_full_disk_is_the_agent_s_doing(collect: Collect, sandbox: Sandbox) -> None:
    sandbox.exec(["bash", "-c", "for i in 1 2 3 4 5 6; do head -c 30000000 /dev/zero >big$i; sync; done"])
    sandbox.exec(["bash", "-c", "for i in 1 2 3 4 5 6; do head -c 30000000 /dev/zero >more$i; sync; done"])
    repository = Repository(sandbox)
    assert repository.changes() is None or len(repository.changes() or {}) > 0
    data = repository.patch()
    assert data is None or b"big1" in data
