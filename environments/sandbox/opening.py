"""From a `SandboxSpec` to a sandbox: the one place that knows which implementation serves which isolation."""

from __future__ import annotations

from agentgym_rtmc.environments.sandbox.base import LOCAL_ISOLATIONS, Sandbox, SandboxSpec
from agentgym_rtmc.registration import load

_DOCKER = "agentgym_rtmc.environments.sandbox.docker.sandbox:DockerSandbox"
_LOCAL = "agentgym_rtmc.environments.sandbox.local:LocalSandbox"
IMPLEMENTATIONS = {"docker": _DOCKER} | dict.fromkeys(LOCAL_ISOLATIONS, _LOCAL)
"""Isolation name to `module:Class`; a class takes the spec. `auto` depends on whether an image is named."""


def implementation(spec: SandboxSpec) -> str:
    """The `module:Class` that serves `spec`.

    >>> implementation(SandboxSpec(image="python:3.12")).rpartition(":")[2]
    'DockerSandbox'
    """
    if spec.isolation == "auto":
        return _DOCKER if spec.image is not None else _LOCAL
    return IMPLEMENTATIONS.get(spec.isolation, spec.isolation)


def open_sandbox(spec: SandboxSpec) -> Sandbox:
    """A fresh sandbox for `spec`, to be closed by the caller.

    Raises SandboxUnavailableError when this machine cannot serve it (ImageMissingError: the image is not here),
    SandboxError when the machine failed, and what loading a `module:Class` raises.
    """
    sandbox: Sandbox = load(implementation(spec))(spec)
    return sandbox
