"""Observation, tool state, commands, replayed edits, and signatures made of signatures."""

from __future__ import annotations

import tomllib

import pytest

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.errors import RegistrationError, SignatureError
from agentgym_rtmc.signatures import episode_keys, levels_of, make_signature
from agentgym_rtmc.signatures.compose import signature_of
from agentgym_rtmc.signatures.growing import GrowingMap, GrowingSet
from agentgym_rtmc.signatures.observation import normalised
from agentgym_rtmc.tasks import Task


def episode(*turns: Turn, info: dict | None = None) -> Episode:
    return Episode(id="e", group="g", opening=Opening(task=Task(id="t"), observation="", info=info or {}), turns=turns)


def shell(command: str, observation: str = "", **info) -> Turn:
    call = Call(name="shell", arguments={"command": command})
    return Turn(text=command, calls=(call,), observation=observation, reward=0.0, info=info)


def after(signature, *turns: Turn) -> str:
    return episode_keys(signature, episode(*turns, shell("submit"))).states[-1]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("3 passed in 0.12s", "3 passed in 4.5s"),
        ("<X object at 0x7f00aa11>", "<X object at 0x55ee0042>"),
        ("/tmp/a1b2/x.py failed", "/tmp/zz99/y.py failed"),
        ("2024-01-02T10:11:12Z start", "2025-12-31 23:59:59 start"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a  \r\nb", "a\nb"),
        ("pid 1234 done", "pid 99 done"),
        ("random seed: 18492396", "random seed: 7"),
        ("took 12 ms", "took 3 ms"),
    ],
)
def test_volatile_parts_do_not_split_observations(left, right):
    assert normalised(left) == normalised(right)
    assert normalised(normalised(left)) == normalised(left)


@pytest.mark.parametrize(
    ("left", "right"),
    [("3 passed", "4 passed"), ("line 12", "line 13"), ("x = 1.5", "x = 1.6"), ("/usr/a", "/usr/b"), ("m.py", "n.py")],
)
def test_what_matters_still_does(left, right):
    assert normalised(left) != normalised(right)


def test_observation_is_the_last_one():
    signature = make_signature("observation")
    assert after(signature, shell("a", "x"), shell("b", "in 1.0s")) == after(signature, shell("c", "in 2.0s"))


def test_tool_state_follows_the_database():
    signature = make_signature("tool_state", ignore=["note"])
    turns = [
        Turn(
            text="x",
            calls=(Call(name="order", arguments={"id": 1, "note": "a"}),),
            observation="",
            reward=0.0,
            info={"database": "d1"},
        ),
        Turn(text="thanks", observation="", reward=0.0),
        Turn(
            text="y",
            calls=(Call(name="order", arguments={"note": "b", "id": 1}),),
            observation="",
            reward=0.0,
            info={"database": {"orders": []}},
        ),
        Turn(text="z", observation="", reward=0.0),
    ]
    keys = episode_keys(signature, episode(*turns, info={"database": "d0"}))
    assert keys.states[:3] == ("d0", "d1", "d1")
    assert keys.states[3] not in ("d0", "d1")
    assert keys.actions[0] == keys.actions[2] == 'order({"id": 1})'
    assert keys.actions[1] == keys.actions[3] == "say"


def test_commands_by_set_order_or_last():
    a, b = shell("cat m.py"), shell("cat ./m.py 2>/dev/null")
    c = shell("ls")
    assert after(make_signature("commands"), a, c, b) == after(make_signature("commands"), c, b)
    ordered = make_signature("commands", history="order")
    assert after(ordered, a, c) == after(ordered, b, c) != after(ordered, c, a)
    last = make_signature("commands", history="last")
    assert after(last, c, a) == after(last, b)
    with pytest.raises(SignatureError, match="'first'"):
        make_signature("commands", history="first")


def test_replayed_edits_are_marked_and_reverts_take_them_back():
    signature = make_signature("edits")
    edit = shell("sed -i s/a/b/ m.py")
    assert after(signature, edit).startswith("~")
    assert after(signature, edit) == after(signature, shell("sed -i 's|a|b|' /testbed/m.py"))
    assert after(signature, edit, shell("git checkout m.py")) == "start"
    assert after(signature, edit, shell("git checkout -- n.py")) == after(signature, edit)
    assert after(signature, shell("echo x > reproduce.py")) == "start"


def test_a_shown_diff_says_what_the_files_are():
    diff = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n-a\n+b\n c\n"
    signature = make_signature("edits")
    by_hand = [shell("sed -i s/a/b/ m.py"), shell("git diff", diff)]
    by_script = [shell("python -c \"open('m.py', 'w').write('b')\""), shell("git --no-pager diff", diff)]
    assert after(signature, *by_hand) == after(signature, *by_script)
    assert after(signature, *by_hand[:1]) != after(signature, *by_script[:1])


def test_white_space_can_be_ignored():
    spaced = [shell("cat > n.py <<'EOF'\nx = 1\nEOF"), shell("cat > n.py <<'EOF'\nx  =  1\n\nEOF")]
    exact, loose = make_signature("edits"), make_signature("edits", whitespace=False)
    assert after(exact, spaced[0]) != after(exact, spaced[1])
    assert after(loose, spaced[0]) == after(loose, spaced[1])


def test_composed_states_are_equal_where_both_are():
    both = make_signature("edits + test_outcomes")
    edited, tested = {"files": {"m.py": "a"}}, {"tests": {"failed": 1, "passed": 1}}
    turns = [
        Turn(text="x", observation="", reward=0.0, info=info) for info in ({}, edited, tested, {**edited, **tested})
    ]
    states = {after(both, turn) for turn in turns}
    assert len(states) == 4
    assert after(both, turns[1], turns[2]) == after(both, turns[3])
    with pytest.raises(RegistrationError, match="takes no parameters"):
        make_signature("edits + test_outcomes", scratch=True)


def test_restricted_signatures_do_not_see_reads_or_scratch():
    quiet = make_signature("restrict", of="operations", reads=False, scratch=False)
    edit = shell("sed -i s/a/b/ m.py")
    assert after(quiet, shell("cat m.py"), edit, shell("grep -rn x .")) == after(quiet, edit)
    assert after(quiet, shell("echo x > reproduce.py"), edit) == after(quiet, edit)
    kept = make_signature("restrict", of="edits", drop=["docs/*"])
    info = {"files": {"docs/a.rst": "1"}}
    assert after(kept, shell("x", **info)) == "start"


def test_chains_and_tables_come_from_toml():
    settings = tomllib.loads(
        """
        [signature]
        name = "chain"
        [signature.parameters]
        levels = [
            "edits + test_outcomes",
            { name = "restrict", of = { name = "operations", level = "bucket" }, reads = false },
            { name = "operations", level = "file" },
        ]
        """
    )["signature"]
    chain = make_signature(settings["name"], **settings["parameters"])
    levels = levels_of(chain)
    assert len(levels) == 3
    turn = shell("sed -n 10,20p m.py")
    assert episode_keys(chain, episode(turn)) == episode_keys(levels[0], episode(turn))
    assert levels[2].action_key(turn) == "view@m.py"
    assert levels_of(levels[2]) == (levels[2],)


@pytest.mark.parametrize("part", [{"level": "file"}, {"name": 3}, "unknown", {"name": "operations", "colour": "red"}])
def test_wrong_parts_are_refused(part):
    with pytest.raises(RegistrationError):
        signature_of(part)


def test_empty_compositions_are_refused():
    for name, parameters in (
        ("compose", {"parts": []}),
        ("chain", {"levels": []}),
        ("compose", {"parts": ["edits"], "actions": 2}),
    ):
        with pytest.raises(RegistrationError):
            make_signature(name, **parameters)


def test_growing_sets_and_maps_do_not_depend_on_order():
    items = [(f"f{i % 40}", str(i % 7)) for i in range(300)]
    one, other = GrowingSet(), GrowingSet()
    for item in items:
        one = one.with_item(item)
    for item in reversed(items):
        other = other.with_item(item)
    assert set(one) == set(other) == set(items)
    assert one.total == other.total
    filled = GrowingMap()
    for path, mark in items:
        filled = filled.with_marks(path, filled.marks(path) | {mark})
    assert filled.marks("f3") == {mark for path, mark in items if path == "f3"}
    for path in list(filled):
        filled = filled.with_marks(path, frozenset())
    assert filled.total == 0
    assert list(filled) == []
