"""The worked examples in the docstrings are true, and credit needs neither torch nor anything but the ground floor."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import agentgym_rtmc.trainer.credit as credit

MODULES = [f"{credit.__name__}.{module.name}" for module in pkgutil.iter_modules(credit.__path__)]

OURS = sorted(n for n, entry in credit.ESTIMATORS.items() if entry.function.__module__.startswith(credit.__name__))


@pytest.mark.parametrize("name", MODULES)
def test_worked_examples(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", OURS)
def test_every_estimator_is_documented_with_an_example(name):
    text = credit.ESTIMATORS[name].function.__doc__
    assert "Shape: (steps,)" in text and ">>>" in text


def test_importing_credit_brings_no_torch():
    heavy = ("torch", "transformers", "scipy", "networkx")
    code = f"import sys, agentgym_rtmc.trainer.credit; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
