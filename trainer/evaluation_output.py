"""Where an evaluation's episodes go, with the arguments it was asked for beside them.

    <name>.jsonl             the episodes, each as soon as it ended
    <name>.arguments.json    what decides about them

Invariants: the arguments are on the disk before the first episode. A file is gone on with by the same evaluation only:
other arguments are refused with the keys that differ, and a file that has episodes is never added to unasked. Settings
that change no episode (workers, retries, prices, where a model runs) and the number of tasks may differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.episode_file import EpisodeReader, EpisodeWriter, read_episodes
from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.registration import find_env
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.run_folder import fresh_folder

_ENV = ("id", "task_set", "task_options", "options", "heldout_split")
_EVALUATION = ("samples", "temperature", "seed")
_ROLLOUT = ("observation_role",)
_POLICY_ASIDE = frozenset(
    {
        "policy.temperature",  # the evaluation has its own
        *(f"policy.{name}" for name in ("device", "cache_gib", "slot_cache", "offline")),
        *(f"policy.endpoint.{name}" for name in ("key_variable", "concurrency", "requests_per_minute", "timeout")),
        *(f"policy.endpoint.{name}" for name in ("retries", "backoff", "price_input", "price_cached", "price_output")),
    }
)
_MOST_SHOWN = 5


def arguments_of(config: TrainConfig) -> dict[str, Any]:
    """What decides about an evaluation's episodes, by dotted key."""
    values = config.model_dump(mode="json")
    chosen = {
        "env": {name: values["env"][name] for name in _ENV} | {"id": find_env(config.env.id).id},
        "evaluation": {name: values["evaluation"][name] for name in _EVALUATION},
        "rollout": {name: values["rollout"][name] for name in _ROLLOUT},
        "policy": values["policy"],
    }
    return {key: value for key, value in _flat(chosen) if key not in _POLICY_ASIDE}


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


class EvaluationOutput:
    """An episode file and its arguments. `kept`: the episodes that are there already, with `resume`.

    `path` None: `<run.folder>/<date>-<time>-eval-<environment>/episodes.jsonl`, removed again where no episode came
    about. `any`: whether there are episodes. Raises ConfigError for a file with
    episodes unless `resume`, and for one of another evaluation; EpisodeFileError for what is no episode file.
    """

    def __init__(self, path: Path | None, config: TrainConfig, *, resume: bool = False) -> None:
        self._fresh = path is None
        if path is None:
            name = config.env.id.rpartition("/")[2]
            path = fresh_folder(Path(config.run.folder), f"eval-{name}") / "episodes.jsonl"
        self.path = path
        self.record = path.with_suffix(".arguments.json")
        self.kept: list[Episode] = []
        arguments = arguments_of(config)
        if path.exists() and path.stat().st_size:
            if resume:
                self._compare(arguments)
                self.kept = read_episodes(path).episodes
            elif any(True for _ in EpisodeReader(path)):
                raise ConfigError(f"{path} has episodes already; go on with --resume, or choose another -o")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self.record, json.dumps(arguments, indent=1, sort_keys=True) + "\n")
        self._writer = EpisodeWriter(path)
        self.any = bool(self.kept)

    def _compare(self, arguments: dict[str, Any]) -> None:
        try:
            before: dict[str, Any] = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path} cannot be resumed: the arguments it was made with are not in {self.record}; "
                "choose another -o"
            ) from error
        plain = json.loads(json.dumps(arguments))
        differ = [key for key in sorted(before.keys() | plain.keys()) if before.get(key) != plain.get(key)]
        if differ:
            shown = ", ".join(
                f"{key} (was {before.get(key)!r}, now {plain.get(key)!r})" for key in differ[:_MOST_SHOWN]
            )
            more = f" and {len(differ) - _MOST_SHOWN} more" if len(differ) > _MOST_SHOWN else ""
            raise ConfigError(
                f"{self.path} is of an evaluation with other arguments: {shown}{more}; "
                "give the same ones, or choose another -o"
            )

    def append(self, episode: Episode) -> None:
        """Write an episode; returns when it is on the disk."""
        self._writer.append([episode])
        self.any = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        if self._fresh and not self.any:
            self.path.unlink()
            self.record.unlink()
            self.path.parent.rmdir()
