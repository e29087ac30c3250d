"""Limits of the containers that agents work in and that gradings run in."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.swebench import preparation

GRADING_SECONDS = 1800.0
"""What set-up, and the tests, may take unless something else is said."""
_MARGIN = 600.0
"""Seconds a container may live beyond what is planned for it."""


class ContainerLimits(BaseModel):
    """Per container. Real projects' tests want about one core and up to a few GiB."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: Annotated[float, Field(gt=0)] = 1.0
    memory_mb: Annotated[int, Field(ge=64)] = 4096
    disk_mb: Annotated[int, Field(ge=16)] = 4096
    """What may be written, in all."""
    processes: Annotated[int, Field(ge=16)] = 512

    def agent(self, image: str, command_seconds: float, episode_seconds: float) -> SandboxSpec:
        """For an agent: `image` as `prepare_image` makes it."""
        return self._spec(image, command_seconds, episode_seconds, {"HOME": preparation.HOME})

    def grading(self, image: str, seconds: float) -> SandboxSpec:
        """For a grading, each command of which may take `seconds`: no package index, whatever the script asks pip for.

        The variables that sandboxes set for agents are taken back: official gradings have none of them.
        """
        return self._spec(
            image,
            seconds,
            3 * seconds,
            {
                "HOME": preparation.HOME,
                "PIP_NO_INDEX": "1",
                # What pip's options say with "no" is off where the variable is false.
                "PIP_NO_BUILD_ISOLATION": "false",
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                "PYTEST_ADDOPTS": "",
                "PYTHONDONTWRITEBYTECODE": "",
                "PYTHONHASHSEED": "random",
                "PYTHONNOUSERSITE": "",
            },
            output_bytes=24 * MIB,
        )

    def _spec(
        self, image: str, timeout: float, lifetime: float, env: dict[str, str], output_bytes: int = 1 * MIB
    ) -> SandboxSpec:
        return SandboxSpec(
            isolation="docker",
            image=image,
            workdir=preparation.WORKDIR,
            writable_root=True,
            timeout=timeout,
            ttl=lifetime + _MARGIN,
            cpu_seconds=max(1, int(4 * lifetime)),
            cpus=self.cpus,
            memory_bytes=self.memory_mb * MIB,
            disk_bytes=self.disk_mb * MIB,
            disk_files=1_000_000,
            file_bytes=self.disk_mb * MIB,
            processes=self.processes,
            open_files=4096,
            output_bytes=output_bytes,
            kept_output_bytes=0,
            env=env,
        )
