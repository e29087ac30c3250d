"""Machine checks of which the second one fails."""

from collections.abc import Iterator

from agentgym_rtmc.doctor import Check


def half() -> Iterator[Check]:
    """Yield one finding, then fail."""
    yield Check("first", "ok", "fine")
    raise RuntimeError("ill")
