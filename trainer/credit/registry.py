"""Estimators by name, and the one call that runs any of them.

An estimator is a pure function `(tree, **parameters) -> advantages` with one float per step of the tree (or a `Credit`
with more to tell). A user's own is registered by `@estimator("mine")` or named as `module:function`.
Invariants: what holds for every estimator is done here, once: unknown names and parameters are refused with the
nearest known ones, steps of invalid episodes, of groups with fewer than two valid episodes (unless the estimator
compares with a critic and not with them) and of unsampled tokens get 0, results are finite. An estimator with scope
"group" looks at one group at a time and is run over chunks of whole groups; one with scope "batch" sees the whole tree.
One with level "token" is meant for token trees: from there a training loop takes an advantage for each sampled token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

import numpy as np

from agentgym_rtmc.errors import CreditError, RegistrationError, nearest
from agentgym_rtmc.registration import load
from agentgym_rtmc.trainer.credit import checks
from agentgym_rtmc.trainer.credit.numbering import Bools, Floats
from agentgym_rtmc.trainer.credit.tree import RolloutTree

Scope = Literal["group", "batch"]
Level = Literal["turn", "token"]
Memory = Mapping[str, float]
"""What an estimator carries from batch to batch: plain numbers, so that any checkpoint can hold them."""


@dataclass(frozen=True, eq=False)
class Credit:
    """What an estimator returns when advantages are not all it has to tell.

    advantages: (steps,). memory: to be handed in with the next batch, or None. report: counts and sums, added up over
    chunks and shown to the user.
    """

    advantages: Floats
    memory: Memory | None = None
    report: Mapping[str, float] = field(default_factory=dict)


class Advantages(list[Floats]):
    """One float64 array per episode, one value per step, in the order the episodes were given.

    flat: the same in the tree's order, (steps,). memory, report: see `Credit`.
    """

    def __init__(self, tree: RolloutTree, credit: Credit, credited: Bools | None = None) -> None:
        super().__init__(tree.split(credit.advantages))
        self.flat = credit.advantages
        self.memory = credit.memory
        self.report = credit.report
        self._credited = tree.credited if credited is None else credited
        self._sampled = None if tree.sampled is None else tree.split(tree.sampled)

    def sampled(self) -> list[Floats]:
        """Leave out the tokens that the policy did not sample: one array per episode. Turns are all its own."""
        if self._sampled is None:
            return list(self)
        return [values[mask] for values, mask in zip(self, self._sampled, strict=True)]

    @property
    def rms(self) -> float:
        """Root mean square over the credited steps: estimators differ in scale by an order of magnitude."""
        credited = self.flat[self._credited]
        return float(np.sqrt(np.mean(credited * credited))) if len(credited) else 0.0


EstimatorFunction = Callable[..., "Floats | Credit"]
F = TypeVar("F", bound=EstimatorFunction)


@dataclass(frozen=True)
class Estimator:
    """A registered estimator. `scope`, `level` and `needs_company` as in the module's docstring."""

    name: str
    function: EstimatorFunction
    scope: Scope
    level: Level = "turn"
    needs_company: bool = True

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.function) or self.name).splitlines()[0]

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Keyword parameters and their defaults (`inspect.Parameter.empty` where one is required)."""
        return {
            name: parameter.default
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name != "memory"
        }

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Refuse parameters the estimator does not have, and missing ones."""
        known = self.parameters
        for name in parameters:
            if name not in known:
                raise CreditError(f"estimator {self.name!r} has no parameter {name!r}{nearest(name, known)}")
        missing = [n for n, v in known.items() if v is inspect.Parameter.empty and n not in parameters]
        if missing:
            raise CreditError(f"estimator {self.name!r} needs {', '.join(missing)}")

    @cached_property
    def has_memory(self) -> bool:
        """Whether it takes a `memory`."""
        return "memory" in inspect.signature(self.function).parameters

    def credited(self, tree: RolloutTree) -> Bools:
        """Steps of a tree that may get credit from it. Shape: (steps,)."""
        return tree.credited if self.needs_company else tree.taken


_REGISTRY: dict[str, Estimator] = {}
ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(_REGISTRY)
"""All registered estimators by name."""


def estimator(
    name: str, *, scope: Scope = "batch", level: Level = "turn", needs_company: bool = True
) -> Callable[[F], F]:
    """Register a function as an estimator; its parameters are keyword-only.

    Say `scope="group"` if the advantages of a group depend on nothing outside it: large batches then run in chunks.
    Say `level="token"` if it credits single tokens: training then hands it the tree of `from_group_tokens`. Say
    `needs_company=False` if it credits an episode without comparing it with others of its group.
    """

    def register(function: F) -> F:
        known = _REGISTRY.get(name)
        if known is not None and known.function is not function:
            raise RegistrationError(f"an estimator named {name!r} is already registered")
        _REGISTRY[name] = Estimator(name, function, scope, level, needs_company)
        return function

    return register


def find_estimator(name: str) -> Estimator:
    """Return a registered estimator, or the function named as `module:function`."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    if ":" not in name:
        raise CreditError(f"no estimator {name!r}{nearest(name, _REGISTRY)} (your own is named as 'module:function')")
    function = load(name)
    if not callable(function):
        raise CreditError(f"{name} is a {type(function).__name__}, not a function (tree, **parameters) -> advantages")
    for known in _REGISTRY.values():
        if known.function is function:
            return known
    return Estimator(name, cast("EstimatorFunction", function), "batch")


def estimate(
    name: str, tree: RolloutTree, *, memory: Memory | None = None, rms: float | None = None, **parameters: Any
) -> Advantages:
    """Run an estimator by name: one float64 array per episode, one value per step.

    memory: what the previous batch's result carried (None at first); estimators without one ignore it. rms: scale the
    batch to this root mean square, so that estimators can share a learning rate; `Advantages.rms` tells it otherwise.

    >>> tree = RolloutTree.from_keys([["s"], ["s"]], [["a"], ["b"]], [[1.0], [0.0]])
    >>> estimate("dr_grpo", tree)
    [array([0.5]), array([-0.5])]
    """
    chosen = find_estimator(name)
    chosen.check(parameters)
    if rms is not None and checks.strength("rms", rms) == 0.0:
        raise CreditError("rms=0 would erase all credit; leave it out for the estimator's own scale")
    if chosen.has_memory:
        parameters["memory"] = memory
    if chosen.scope == "batch":
        credit = _run(chosen, tree, parameters)
    else:
        values = np.empty(tree.step_count)
        report: dict[str, float] = {}
        for steps, part in tree.chunks():
            found = _run(chosen, part, parameters)
            values[steps] = found.advantages
            for key, amount in found.report.items():
                report[key] = report.get(key, 0) + amount
        credit = Credit(values, None, report)
    credited = chosen.credited(tree)
    advantages = Advantages(tree, credit, credited)
    if rms is None or advantages.rms == 0.0:
        return advantages
    return Advantages(tree, replace(credit, advantages=credit.advantages * (rms / advantages.rms)), credited)


def _run(chosen: Estimator, tree: RolloutTree, parameters: Mapping[str, Any]) -> Credit:
    found = chosen.function(tree, **parameters)
    credit = found if isinstance(found, Credit) else Credit(np.asarray(found, dtype=np.float64))
    if credit.advantages.shape != (tree.step_count,):
        shape = credit.advantages.shape
        raise CreditError(
            f"estimator {chosen.name!r} returned shape {shape}, not one value per step ({tree.step_count},)"
        )
    credited = chosen.credited(tree)
    values = credit.advantages if credited.all() else np.where(credited, credit.advantages, 0.0)
    if not np.isfinite(values).all():
        raise CreditError(
            f"estimator {chosen.name!r} returned a value that is not finite; "
            "with long episodes a discount close to 1 keeps gamma**turn representable"
        )
    return Credit(values, credit.memory, credit.report)
