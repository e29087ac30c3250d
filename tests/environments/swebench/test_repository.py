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


ATTRIBUTES = (
    "*.py -diff",
    "* binary",
    "* -text -diff -merge",
    "*.py text eol=crlf",
    "*.py text=auto",
    "*.py crlf=input",
    "*.py filter=lfs diff=lfs merge=lfs",
    "*.py working-tree-encoding=UTF-16",
    "*.py working-tree-encoding=no-such-thing",
    "*.py ident",
    "[attr]quiet -diff filter=x\\n* quiet",
)


@pytest.mark.parametrize(
    ("place", "lines"), [(".gitattributes", ATTRIBUTES), ("shapes/.gitattributes", ATTRIBUTES[:2])]
)
def test_attributes_hide_nothing(collect: Collect, place: str, lines: tuple[str, ...]) -> None:
    """Whatever a tree says of its files, they are compared as they are, byte by byte."""
    for attributes in lines:
        patch, repository = collect(
            f"rm -rf .gitattributes shapes && git checkout -q . && printf '{attributes}\\n' >{place} && "
            "printf '# $Id$\\n# its end\\r\\n' >>shapes/text.py && printf 'a = 1\\r\\n' >shapes/fresh.py"
        )
        expected = sorted([place, "shapes/fresh.py", "shapes/text.py"])
        assert sorted(change.path for change in patch.changes) == expected and not patch.dropped, attributes
        assert "+# $Id$\n+# its end\r\n" in patch.text and "+a = 1\r\n" in patch.text, attributes
        assert sorted(repository.changes() or {}) == expected, attributes


def test_ignored_files_that_are_tracked(collect: Collect) -> None:
    patch, repository = collect(
        "mkdir -p sub build; for name in staged committed untracked gone; do echo $name >$name.log; done; "
        "echo deep >'sub/ü x.log'; ln -s staged.log link.log; "
        "mkdir __pycache__; echo product | tee build/x.log __pycache__/x.py; "
        "git add -f staged.log gone.log link.log 'sub/ü x.log' __pycache__ build/x.log; rm gone.log; "
        "git add -f committed.log; git commit -qm x committed.log"
    )
    expected = ["committed.log", "link.log", "staged.log", "sub/ü x.log"]
    assert sorted(change.path for change in patch.changes) == expected and not patch.dropped
    files = repository.changes()
    assert files is not None and {*expected} <= files.keys() and "untracked.log" not in files


def test_an_index_that_lies(collect: Collect, sandbox: Sandbox) -> None:
    """The agent's index is data: names that lead elsewhere, or no index at all, add nothing and hide nothing."""
    honest = "echo '# more' >>shapes/text.py; echo x >real.log; git add -f real.log; "
    rename = 'python3 -c \'import sys; d = open(".git/index", "rb").read(); {}\''
    write = 'import hashlib; open(".git/index", "wb").write(d[:-20] + hashlib.sha1(d[:-20]).digest())'
    for lie, found in {
        "": ["real.log", "shapes/text.py"],
        "mkdir other; mv real.log other/; ln -s other inner": ["shapes/text.py"],
        rename.format('d = d.replace(b"real.log", b"../r.log");' + write): ["shapes/text.py"],
        rename.format('d = d.replace(b"real.log", b".git/log");' + write): ["shapes/text.py"],
        "head -c 100 .git/index >x; cat x >.git/index; rm x": ["shapes/text.py"],
        "rm .git/index; mkfifo .git/index": ["shapes/text.py"],
        "git update-index --split-index": ["shapes/text.py"],
        "rm -rf .git": ["shapes/text.py"],
    }.items():
        patch, _ = collect(honest + lie)
        changed = [change.path for change in patch.changes if change.path != "inner"]
        assert changed == found and not patch.refused, lie
        if lie != "rm -rf .git":
            sandbox.exec(["bash", "-c", "rm -rf .git/index other inner *.log; git reset -q --hard"])


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
