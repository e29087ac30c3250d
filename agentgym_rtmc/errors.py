"""Every error the project raises on purpose, one class per boundary.

Invariants: each message says what went wrong, where, and what to do next. What an *agent* does wrong is never an
error but an observation; these classes are for what a user, a file or a machine does wrong. `InfrastructureError` and
its children are the only ones a rollout may retry: they mark an episode invalid and are never scored as the agent's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AgentGymError(Exception):
    """Base of all errors of this project; the command line prints it without a traceback."""


class ConfigError(AgentGymError):
    """A configuration file, an override or an argument is wrong. The message names the key."""


class RegistrationError(AgentGymError):
    """An environment, signature, estimator or policy is unknown or registered twice."""


class TaskError(AgentGymError):
    """A task or task set cannot be loaded or does not fit its environment. The message names the task or row."""


class EpisodeFileError(AgentGymError):
    """An `episodes.jsonl` cannot be read: wrong version, not a file, broken in the middle."""


class ProtocolError(AgentGymError):
    """A model's text does not contain an action in the expected form. Becomes an observation, never escapes an env."""


class ToolError(AgentGymError):
    """A tool refuses what the agent asked for ("no such order"). Raised by tools, shown to the agent as the result."""


class CreditError(AgentGymError, ValueError):
    """Keys, rewards or parameters given to a tree or an estimator are unusable. The message names the argument."""


class SignatureError(AgentGymError):
    """A signature broke its contract (impure, not a string, raised on a turn)."""


class RunFolderError(AgentGymError):
    """A run's folder is not one, cannot be written, or is in use by another process."""


class CheckpointError(AgentGymError):
    """A checkpoint is missing, incomplete, corrupt or does not fit the configuration."""


class DependencyError(AgentGymError):
    """An optional package or program is missing. The message names what brings it."""


class InfrastructureError(AgentGymError):
    """The machine, not the agent, failed. The episode is retried on a fresh environment, else marked invalid."""


class SandboxError(InfrastructureError):
    """A sandbox could not be created, or died."""


class SandboxBusyError(SandboxError):
    """A sandbox cannot be forked: something in it still holds a file open for writing."""


class SandboxUnavailableError(AgentGymError):
    """This machine cannot isolate commands. The message says why and what to install or switch."""


class ImageMissingError(SandboxUnavailableError):
    """A container image is not on this machine. The message gives the command that fetches it."""


class GradingError(InfrastructureError):
    """The grader itself failed (not the graded work)."""


class SamplerError(InfrastructureError):
    """The token sampler failed or passed its wall clock."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest known name, or the list of names when none is close.

    >>> nearest("rtmcc", ["grpo", "rtmc"])
    "; did you mean 'rtmc'?"
    >>> nearest("zzz", ["grpo", "rtmc"])
    '; known: grpo, rtmc'
    """
    names = sorted(known)
    folded = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {folded[close[0]]!r}?"
    return f"; known: {', '.join(names)}" if names else "; none are known"
