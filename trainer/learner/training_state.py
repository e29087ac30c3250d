"""What a learner must remember beside its weights, as safetensors and JSON: optimiser state and random generators.

Invariants: nothing is ever pickled. Loading checks names and shapes before anything is changed; a restored learner
continues with the same numbers.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from agentgym_rtmc.errors import CheckpointError


def save_optimizer(optimizer: torch.optim.Optimizer, names: list[str], path: Path) -> None:
    """Write an optimiser's state, one tensor per parameter and kind (`<parameter>/exp_avg`).

    `names` are the parameters' names in the order of the optimiser's groups.
    """
    state = optimizer.state_dict()
    tensors = {
        f"{names[index]}/{kind}": value.detach().cpu().contiguous()
        for index, kinds in state["state"].items()
        for kind, value in kinds.items()
        if isinstance(value, torch.Tensor)
    }
    plain = {
        f"{names[index]}/{kind}": value
        for index, kinds in state["state"].items()
        for kind, value in kinds.items()
        if not isinstance(value, torch.Tensor)
    }
    description = {"groups": state["param_groups"], "plain": plain, "names": names}
    save_file(tensors, path, metadata={"optimizer": json.dumps(description)})


def load_optimizer(optimizer: torch.optim.Optimizer, names: list[str], path: Path) -> None:
    """Put a saved state into an optimiser over the same parameters. Raises CheckpointError, changing nothing."""
    try:
        with safe_open(path, framework="pt") as file:
            description = json.loads(file.metadata()["optimizer"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); resume from an earlier checkpoint") from error
    if description["names"] != names:
        odd = sorted(set(description["names"]) ^ set(names))[:3]
        raise CheckpointError(
            f"{path} belongs to a model with other parameters (for example {', '.join(odd) or 'in another order'}); "
            "resume with the configuration the run was started with"
        )
    shapes = [tuple(parameter.shape) for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    index = {name: number for number, name in enumerate(names)}
    for key, value in {**tensors, **description["plain"]}.items():
        name, _, kind = key.rpartition("/")
        if isinstance(value, torch.Tensor) and value.ndim and tuple(value.shape) != shapes[index[name]]:
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(value.shape)}, the model's {shapes[index[name]]}; "
                "resume with the configuration the run was started with"
            )
        state.setdefault(index[name], {})[kind] = value
    optimizer.load_state_dict({"state": state, "param_groups": description["groups"]})


def capture_rng() -> dict[str, Any]:
    """Return the state of Python's, numpy's and torch's global generators as JSON."""
    version, internal, gauss = random.getstate()
    # numpy types a legacy state as a tuple or a dict, by argument
    numpy_state: Any = np.random.get_state(legacy=True)
    kind, keys, position, has_gauss, cached = numpy_state
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, keys.tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _hex(torch.get_rng_state()),
        "cuda": [_hex(state) for state in cuda],
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Bring the global generators back. CUDA's are restored where there are as many devices as then."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] and torch.cuda.is_available() and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([_bytes(one) for one in state["cuda"]])


def _hex(state: torch.Tensor) -> str:
    return state.cpu().numpy().tobytes().hex()


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def load_weights(model: Any, folder: Path) -> None:
    """Put the weights of a transformers folder into a model of the same class and shape. Raises CheckpointError."""
    try:
        with quiet_transformers():
            saved = type(model).from_pretrained(folder, dtype=model.dtype, use_safetensors=True, local_files_only=True)
        model.load_state_dict(saved.state_dict())
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder} does not fit the model ({error}); resume with the configuration the run was started with"
        ) from error


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Run without transformers' progress bars."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
