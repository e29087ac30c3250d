"""Fixtures: every back end this machine offers, and both kinds of sandbox on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import local, root, snapshot
from agentgym_rtmc.environments.sandbox.base import Sandbox, SandboxSpec

BACKENDS = ("bubblewrap", "unshare", "landlock")
MakeSandbox = Callable[..., Sandbox]

BY_NATURE = {
    ("landlock", "test_surroundings_are_the_sandbox_s_own"): "it has the host's name, no table of users, its own paths",
    ("landlock", "test_hidden_memory_and_disk[local landlock-shared memory]"): "it has no /dev/shm",
    ("landlock", "test_sockets_are_dropped_and_told[landlock]"): "it has no sockets",
}
"""What a way of isolating cannot do or has not got at all, whoever writes it: (its name, test) to the reason."""


@pytest.fixture(autouse=True)
def able_by_nature(request: pytest.FixtureRequest) -> None:
    """Skips what cannot be, with the reason."""
    for (way, test), reason in BY_NATURE.items():
        if way in request.node.name and request.node.name.startswith(test):
            pytest.skip(f"{way} cannot by nature: {reason}")


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What files have no part in is tried with one way of keeping them; `make test-full` tries the other, too."""
    for item in items:
        if item.path.name == "test_lifecycle.py" and "docker copy" in item.name:
            item.add_marker(pytest.mark.full)


def maker(kind: str, request: pytest.FixtureRequest) -> Iterator[MakeSandbox]:
    """Yields a function that makes sandboxes of one kind, such as `local bubblewrap`, and closes them at the end."""
    implementation, way = kind.split()
    fields: dict[str, object] = {"timeout": 10.0}
    if implementation == "docker":
        fields |= {"isolation": "docker", "image": request.getfixturevalue("image")}
    else:
        reason = local.why_not(way, request.getfixturevalue("root_folder"))
        if reason:
            pytest.skip(f"{way} does not work here: {reason}")
        fields["isolation"] = way
    with ExitStack() as stack:

        def build(**more: object) -> Sandbox:
            spec = SandboxSpec.model_validate(fields | more)
            if implementation == "local":
                return stack.enter_context(local.LocalSandbox(spec))
            if implementation == "snapshot":
                return stack.enter_context(snapshot.SnapshotSandbox(spec, memo=False))
            from agentgym_rtmc.environments.sandbox.docker.sandbox import DockerSandbox

            how = "overlay" if way == "overlay" else "copy"
            return stack.enter_context(DockerSandbox(spec, how=how))

        yield build


LOCAL = [f"local {name}" for name in BACKENDS]
SNAPSHOT = [f"snapshot {name}" for name in BACKENDS]
DOCKER = ["docker overlay", "docker copy"]


@pytest.fixture(params=[*LOCAL, *SNAPSHOT, *DOCKER])
def make(request: pytest.FixtureRequest) -> Iterator[MakeSandbox]:
    """Makes sandboxes of every kind; keyword arguments go to the spec."""
    yield from maker(request.param, request)


@pytest.fixture(params=[*LOCAL, DOCKER[0]])
def make_local(request: pytest.FixtureRequest) -> Iterator[MakeSandbox]:
    """Makes sandboxes of every kind but those whose inside is the same as another's."""
    yield from maker(request.param, request)


@pytest.fixture
def sandbox(make: MakeSandbox) -> Sandbox:
    """A sandbox with the default limits."""
    return make()
