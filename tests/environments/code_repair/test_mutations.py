"""Mutation operators, variants and edits as commands."""

import ast
import difflib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rtmc.environments.code_repair import driver
from agentgym_rtmc.environments.code_repair.build import make_forms
from agentgym_rtmc.environments.code_repair.corpus import load_programs
from agentgym_rtmc.environments.code_repair.inputs import draw
from agentgym_rtmc.environments.code_repair.mutations import OPERATORS, Edit, edits_by_operator, find_edits
from agentgym_rtmc.environments.code_repair.repairs import difference, find_repairs, sed_script
from agentgym_rtmc.environments.code_repair.variants import bound_names, draw_names, rename, reshape, vary_constants
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.errors import TaskError

PROGRAMS = load_programs()
SAMPLE = """\
def f(a, b):
    out = []
    while a < len(b) and not out:
        if b[a] == 3 or flag(a, b):
            continue
        out.append(b[0] - a)
        a += 1
    done = True
    for i in range(a):
        break
    return out
"""


def test_every_operator_finds_its_place():
    found = {
        operator: [edit.apply(SAMPLE) for edit in group] for operator, group in edits_by_operator(find_edits(SAMPLE))
    }
    assert set(found) == set(OPERATORS) - {"added_not"}
    assert any("while a <= len(b)" in text for text in found["compare"])
    assert any("b[0] + a" in text for text in found["arithmetic"])
    assert any("a += 2" in text for text in found["off_by_one"])
    assert any("or not out" in text for text in found["boolean"])
    assert any("done = False" in text for text in found["flipped_literal"])
    assert any("and out:" in text for text in found["dropped_not"])
    assert any("flag(b, a)" in text for text in found["swapped_arguments"])
    assert any("return done" in text for text in found["wrong_return"])
    assert any("b[a] == 0" in text or "b[a] == 1" in text for text in found["wrong_constant"])
    assert any("b[a + 1]" in text for text in found["wrong_index"])
    assert any("range(1, a)" in text for text in found["wrong_bound"])
    assert any("out.extend" in text for text in found["wrong_call"])
    assert any("pass\n        a += 1" in text for text in found["dropped_statement"])
    assert any("if a < len(b)" in text for text in found["wrong_jump"])
    assert any("break\n        out" in text for text in found["wrong_jump"])


def test_mutants_are_single_distinct_parsing_edits():
    assert len(OPERATORS) >= 10
    for program in PROGRAMS:
        edits = find_edits(program.source)
        texts = [edit.apply(program.source) for edit in edits]
        assert len(set(texts)) == len(texts) and program.source not in texts
        assert edits == find_edits(program.source)
        for edit, text in zip(edits, texts, strict=True):
            ast.parse(text)
            assert edit.inverse(program.source).apply(text) == program.source
            assert edit.operator in OPERATORS
            changed = [line for line in difflib.ndiff(program.source.splitlines(), text.splitlines()) if line[0] == "-"]
            assert len(changed) == 1


@pytest.mark.parametrize("text", ["def f(:", "x = 'é'"])
def test_unusable_programs_are_refused(text):
    with pytest.raises(TaskError):
        find_edits(text)
    assert find_repairs(text) == ()


def test_forms_answer_like_the_program_they_come_from():
    """Shapes never change an answer; constants may."""
    shaped = 0
    for program in PROGRAMS:
        calls = program.draw_calls(20)
        for form in make_forms(program):
            plain = vary_constants([program.source], program.vary, form.number)[0]
            if form.number and not program.vary and form.source != program.source:
                shaped += 1
                plain = program.source
            elif program.vary:
                continue
            job = {"calls": calls, "source": form.source}
            assert driver.run_job(job) == driver.run_job({**job, "source": plain}), form.source
    assert shaped > 200


def test_a_shape_differs_and_keeps_its_answers():
    source = "def f(a, b):\n    if a < b:\n        a += b * 2\n    else:\n        a -= 1\n    return a + b\n"
    shapes = {reshape(source, random.Random(seed)) for seed in range(60)}
    assert len(shapes) > 8
    job = {"calls": [["f", [a, b]] for a in range(4) for b in range(4)]}
    first = driver.run_job({**job, "source": source})
    assert all(driver.run_job({**job, "source": shape}) == first for shape in shapes)


def test_names_are_replaced_everywhere_but_in_strings():
    for program in PROGRAMS:
        for seed in range(3):
            names = draw_names(program.source, random.Random(seed))
            assert len(set(names.values())) == len(names) and names.keys() <= bound_names(program.source)
            assert not set(names.values()) & bound_names(program.source)
            renamed = rename(program.source, names)
            calls = program.draw_calls(20)
            new_calls = [[names.get(first, first), *rest] for first, *rest in calls]
            before = driver.run_job({"source": program.source, "calls": calls})
            assert driver.run_job({"source": renamed, "calls": new_calls}) == before, renamed
            back = {new: old for old, new in names.items()}
            assert rename(renamed, back) == program.source


def test_constants_change_as_whole_words_and_together():
    texts = vary_constants(["above 10 of 100", "x > 10"], {"10": ["10", "12", "15"]}, 2)
    assert texts == ["above 15 of 100", "x > 15"]
    assert vary_constants(["a"], {}, 3) == ["a"]


def test_inputs_are_drawn_by_the_generator():
    description = "list(one('a', 'b'), 1, 3)"
    assert draw(description, random.Random(4)) == draw(description, random.Random(4))
    seen = {tuple(draw(description, random.Random(seed))) for seed in range(50)}
    assert {len(item) for item in seen} == {1, 2, 3}
    assert draw("bool()", random.Random(1)) in (True, False)
    with pytest.raises(TaskError, match="unknown kind"):
        draw("list(nothing(3), 1, 1)", random.Random(1))


# -- edits as sed commands --------------------------------------------------------------------------------------------


def occurrence_replace(text, script):
    """What sed is to do with our scripts, worked out apart from it."""
    _, old, new, number = script.split("|")
    place = -len(old)
    for _ in range(int(number)):
        place = text.index(old, place + len(old))
    return text[:place] + new + text[place + len(old) :]


@given(st.text("ab <=+1(", min_size=1, max_size=20), st.text("ab <=+1(", min_size=1, max_size=20))
def test_the_difference_of_two_texts_is_one_edit(before, after):
    assert difference(before, after).apply(before) == after


@given(st.data())
def test_scripts_hit_the_right_occurrence(data):
    text = data.draw(st.text("aab <=1(\n", min_size=3, max_size=40).filter(lambda t: t.strip()))
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + 3)))
    edit = Edit(start, end, data.draw(st.sampled_from(["", "b", " <= ", "1"])), "any")
    script = sed_script(text, edit)
    if "\\n" not in script:
        assert occurrence_replace(text, script) == edit.apply(text)


def test_a_unique_script_needs_no_counting():
    text = "while a < b and c < d:\n    a = a + 1\n"
    place = text.index("< d")
    assert sed_script(text, Edit(place, place + 1, "<=", "compare")) == "s| <| <=|2"
    assert sed_script(text, Edit(place, place + 1, "<=", "compare"), unique=True) == "s| < d| <= d|1"
    for program in PROGRAMS:
        for edit in find_edits(program.source):
            script = sed_script(program.source, edit, unique=True)
            if "\\" not in script and script.count("|") == 3:
                assert script.endswith("|1")
                assert occurrence_replace(program.source, script) == edit.apply(program.source)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_real_sed_carries_out_any_edit(sandboxed, data):
    """Many edits a call: each file is edited by the script of its own."""
    alphabet = "ab .*[]^$\\|&/'\"(){}+?-<=\n\t#!"
    edits = []
    for _ in range(12):
        text = data.draw(st.text(alphabet, min_size=2, max_size=30).filter(lambda t: t.strip()))
        start = data.draw(st.integers(0, len(text) - 1))
        end = data.draw(st.integers(start, min(len(text), start + 4)))
        edits.append((text, Edit(start, end, data.draw(st.text(alphabet, max_size=5)), "any")))
    with LocalSandbox() as sandbox:
        for number, (text, edit) in enumerate(edits):
            sandbox.write(f"{number}.txt", text.encode())
            sandbox.write(f"{number}.sed", sed_script(text, edit).encode())
        command = f"for i in $(seq 0 {len(edits) - 1}); do sed -zi -f $i.sed $i.txt || echo failed $i; done"
        result = sandbox.exec(["sh", "-c", command], merge=True)
        assert result.stdout == ""
        for number, (text, edit) in enumerate(edits):
            assert sandbox.read(f"{number}.txt").decode() == edit.apply(text), sed_script(text, edit)
