"""Runs one of our scripts in a fresh sandbox that holds nothing but the scripts it needs.

Invariants: the sandbox is gone afterwards; a request reaches the script through standard input, never as a file. Only a
failure of the machine raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from agentgym_rtmc.environments.sandbox.base import MIB, ExecResult, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.errors import GradingError, SandboxError

_PACKAGE = "agentgym_rtmc.environments.code_repair"
SECONDS = 10.0
"""Wall-clock seconds of a script; its CPU seconds are limited to 3."""
SPEC = SandboxSpec(
    timeout=SECONDS, cpu_seconds=3, memory_bytes=256 * MIB, processes=16, disk_bytes=4 * MIB, output_bytes=32 * MIB
)


@cache
def _text(module: str) -> bytes:
    *folders, name = module.split(".")
    return files(_PACKAGE).joinpath(*folders, f"{name}.py").read_bytes()


def run_script(module: str, needs: Sequence[str], request: str, timeout: float = SPEC.timeout) -> ExecResult:
    """Run `main` of a module of CodeRepair's, given with the modules it imports by their names below the package.

    Raises GradingError when the sandbox fails.
    """
    code = f"import sys; sys.path.insert(0, {SPEC.workdir!r}); from {_PACKAGE}.{module} import main; main()"
    try:
        with LocalSandbox(SPEC) as sandbox:
            for name in (module, *needs):
                sandbox.write(f"{_PACKAGE}.{name}".replace(".", "/") + ".py", _text(name))
            return sandbox.exec(["python3", "-I", "-S", "-c", code], timeout, request.encode("utf-8", "surrogatepass"))
    except SandboxError as error:
        raise GradingError(f"the sandbox that grades failed: {error}; run `agentgym-rtmc doctor`") from error
