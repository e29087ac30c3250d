"""No isolation at all: commands run as ordinary processes of the user, in the workspace's real folder.

Only for people who have isolated the whole machine and say so (`SandboxSpec(isolation="none")` or
AGENTGYM_RTMC_UNSAFE_NO_SANDBOX=1). Commands can read and destroy everything the user can; `spec.workdir` does not
exist; a process that leaves its group and session may outlive its command where there is no control group.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agentgym_rtmc.environments.sandbox.backend import environment, limits
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.process import Launch
from agentgym_rtmc.environments.sandbox.root_sources import find_program, interpreter


class Plain:
    """Starts commands directly, with the per-process limits where `prlimit` is installed."""

    name = "none"
    private_memory = False
    scratch: Path | None = None

    def __init__(self, spec: SandboxSpec, root: Path, folder: Path, workspace: Path) -> None:
        """See `Backend`; `root` is not used. `python` is the running interpreter's base, without site-packages."""
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        for name in ("python", "python3"):
            (programs / name).unlink(missing_ok=True)
            (programs / name).write_text(f'#!/bin/sh\nexec "{interpreter()}" -s "$@"\n')
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        host = {"PATH": path, "HOME": str(workspace)}
        self._env = {k: v for k, v in environment(spec).items() if not k.startswith("GIT_") or k.endswith("_DATE")}
        self._env |= host
        self._workspace = workspace
        prlimit = find_program("prlimit") if sys.platform == "linux" else None
        # No limit on the number of processes: the kernel would count all of the user's.
        words = [word for word in limits(spec, str(prlimit.parent)) if "--nproc" not in word] if prlimit else []
        self._before = [word.encode() for word in words]

    def launch(self, argv: list[bytes]) -> Launch:
        """See `Backend`."""
        return Launch(argv=[*self._before, *argv], env=self._env, cwd=self._workspace, ends_by="group", marked=False)

    def close(self) -> None:
        """See `Backend`."""
