"""Which optional package comes with which extra of this distribution.

Invariants: nothing is imported here; an import that fails for one of these packages is told with what brings it.
"""

from __future__ import annotations

from agentgym_rtmc.errors import DependencyError

EXTRAS: dict[str, str] = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "matplotlib": "train",
    "tensorboard": "tensorboard",
    "pyarrow": "parquet",
    "vllm": "vllm",
    "docker": "docker",
    "tenacity": "docker",
    "swebench": "swebench",
    "datasets": "swebench",
    "huggingface_hub": "swebench",
    "httpx2": "endpoint",
}
"""Import name of each optional package -> the extra that brings it."""


def install_hint(package: str) -> str:
    """Return the command that brings an optional package.

    >>> install_hint("torch")
    "pip install 'agentgym-rtmc[train]'"
    """
    return f"pip install 'agentgym-rtmc[{EXTRAS[package]}]'"


def missing_extra(error: ModuleNotFoundError) -> DependencyError | None:
    """Say which extra brings the module that an import missed; None if it is none of ours."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return DependencyError(f"this needs {package}, which is not installed: {install_hint(package)}")
