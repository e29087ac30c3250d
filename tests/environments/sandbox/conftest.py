"""Fixtures: every back end this machine offers, and both kinds of sandbox on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import local, root, snapshot
from agentgym_rtmc.environments.sandbox.base import Sandbox, SandboxSpec

BACKENDS = ("bubblewrap", "unshare")
MakeSandbox = Callable[..., Sandbox]


@pytest.fixture(scope="session")
def root_folder() -> Path:
    """The machine's sandbox root."""
    return root.ensure_root()


@pytest.fixture(params=BACKENDS)
def isolation(request: pytest.FixtureRequest, root_folder: Path) -> str:
    """A back end's name; skipped where it does not work, with the reason."""
    reason = local.why_not(request.param, root_folder)
    if reason:
        pytest.skip(f"{request.param} does not work here: {reason}")
    return str(request.param)


def maker(kind: str, isolation: str) -> Iterator[MakeSandbox]:
    """Yields a function that makes sandboxes of one kind on one back end and closes them at the end."""
    with ExitStack() as stack:

        def build(**fields: object) -> Sandbox:
            spec = SandboxSpec.model_validate({"isolation": isolation, "timeout": 10.0, **fields})
            if kind == "local":
                return stack.enter_context(local.LocalSandbox(spec))
            return stack.enter_context(snapshot.SnapshotSandbox(spec, memo=False))

        yield build


@pytest.fixture(params=["local", "snapshot"])
def make(request: pytest.FixtureRequest, isolation: str) -> Iterator[MakeSandbox]:
    """Makes sandboxes of both kinds; keyword arguments go to the spec."""
    yield from maker(request.param, isolation)


@pytest.fixture
def make_local(isolation: str) -> Iterator[MakeSandbox]:
    """Makes sandboxes of the local kind, where what runs inside is the same for both."""
    yield from maker("local", isolation)


@pytest.fixture
def sandbox(make: MakeSandbox) -> Sandbox:
    """A sandbox with the default limits."""
    return make()
