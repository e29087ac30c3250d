"""First lessons of the embedded model: supervised learning on a demonstrator's episodes, kept in the user's cache.

Invariants: the ids are the very ones a policy would see; the agent's own tokens count fully, what it read counts
`context_weight`. The loss reported is of the agent's tokens on tasks that were kept out. Equal inputs (code, tasks,
settings) find the model that was made from them before; anything else, or a damaged cache entry, makes it again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agentgym_rtmc.episode_file import EpisodeWriter, read_episodes
from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.folders import cache_folder
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.learner.logprobs import TokenScorer
from agentgym_rtmc.trainer.learner.muon import Muon, hidden_matrices
from agentgym_rtmc.trainer.learner.packing import collate, plan_microbatches
from agentgym_rtmc.trainer.learner.rows import LearningRow, build_rows
from agentgym_rtmc.trainer.policy import chat, demonstrations, tiny
from agentgym_rtmc.trainer.policy.chat import Chat
from agentgym_rtmc.trainer.policy.config import TinyConfig, WarmStartConfig
from agentgym_rtmc.trainer.policy.demonstrations import collect_demonstrations, sources_digest, texts_of, with_ids
from agentgym_rtmc.trainer.policy.folder_cache import cached_folder, content_key
from agentgym_rtmc.trainer.policy.tiny import build_model, save_policy, train_tokenizer
from agentgym_rtmc.trainer.rollout import EnvFactory

_EPISODES, _REPORT = "demonstrations.jsonl", "warm_start.json"
_TOKENIZER_EPISODES = 400


class Report(Protocol):
    """Told how far a phase is: `report("demonstrations", 40, 2000, solved=0.4)`."""

    def __call__(self, phase: str, done: int, total: int, /, **figures: float) -> None:
        """Take note."""
        ...


def no_report(phase: str, done: int, total: int, /, **figures: float) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class WarmStartReport:
    """What came of it. `solved` is the share of episodes with reward; losses are in nats per token of the agent."""

    episodes: int
    solved: float
    tokens: int
    agent_tokens: int
    rows_cut: int
    steps: int
    train_loss: float
    heldout_loss: float
    seconds: float


def warm_start(
    env_id: str,
    make_env: EnvFactory,
    tasks: Sequence[Task],
    model: TinyConfig,
    config: WarmStartConfig,
    *,
    observation_role: Literal["user", "tool"] = "user",
    report: Report = no_report,
    root: Path | None = None,
) -> tuple[Path, WarmStartReport]:
    """Return the folder of a model taught on the environment's demonstrator, from the cache where it can.

    `root` replaces the user's cache folder. Raises RegistrationError where the environment has no demonstrator,
    ConfigError where there are too few tasks to keep some out.
    """
    root = (root or cache_folder()) / "warm-start"
    env = make_env()
    spec, prompt = env.spec, env.get_wrapper_attr("system_prompt") if env.has_wrapper_attr("system_prompt") else ""
    env.close()
    played = content_key(
        env_id,
        repr(sorted(spec.kwargs.items())) if spec else "",
        prompt,
        sources_digest(env_id),
        [task.model_dump() for task in tasks],
        {name: getattr(config, name) for name in ("episodes", "seed")},
    )
    folder, _ = cached_folder(
        root / "demonstrations" / played,
        lambda draft: _write_demonstrations(draft, env_id, make_env, tasks, config, report),
    )
    episodes = read_episodes(folder / _EPISODES).episodes
    code = [Path(module.__file__ or "").read_bytes() for module in (chat, demonstrations, tiny)]
    taught = content_key(
        model.model_dump(),
        config.model_dump(exclude={"workers"}),
        observation_role,
        *(episode.model_dump(mode="json") for episode in episodes),
        *code,
        Path(__file__).read_bytes(),
        [torch.__version__],
    )

    def build(draft: Path) -> None:
        policy, tokenizer, result = teach(episodes, model, config, observation_role=observation_role, report=report)
        save_policy(draft, policy, tokenizer)
        (draft / _REPORT).write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")

    folder, _ = cached_folder(root / "models" / taught, build)
    return folder, WarmStartReport(**json.loads((folder / _REPORT).read_text(encoding="utf-8")))


def _write_demonstrations(
    draft: Path,
    env_id: str,
    make_env: EnvFactory,
    tasks: Sequence[Task],
    config: WarmStartConfig,
    report: Report,
) -> None:
    done = solved = turns = 0

    def count(episode: Episode) -> None:
        nonlocal done, solved, turns
        done, solved, turns = done + 1, solved + (episode.total_reward > 0), turns + len(episode.turns)
        report("demonstrations", done, config.episodes, solved=solved / done, turns=turns)

    episodes = collect_demonstrations(
        env_id, make_env, tasks, config.episodes, seed=config.seed, workers=config.workers, on_episode=count
    )
    with EpisodeWriter(draft / _EPISODES) as writer:
        writer.append(episodes)


def teach(
    episodes: Sequence[Episode],
    model_config: TinyConfig,
    config: WarmStartConfig,
    *,
    observation_role: Literal["user", "tool"] = "user",
    report: Report = no_report,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, WarmStartReport]:
    """Train a tokenizer and a fresh model on episodes. Deterministic for equal inputs and threads."""
    started = time.monotonic()
    tasks = sorted({episode.opening.task.id for episode in episodes})
    rng = np.random.default_rng(config.seed)
    kept_out = set(rng.permutation(tasks)[: max(1, round(len(tasks) * config.heldout_share))].tolist())
    lessons = [episode for episode in episodes if episode.opening.task.id not in kept_out]
    exam = [episode for episode in episodes if episode.opening.task.id in kept_out]
    if not lessons or not exam:
        raise ConfigError("a warm start needs demonstrations of at least two tasks, one of them kept out")

    texts = [text for episode in lessons[:_TOKENIZER_EPISODES] for text in texts_of(episode)]
    tokenizer = train_tokenizer(texts, model_config)
    dialogue = Chat(tokenizer)
    rows, cut = _rows(lessons, dialogue, model_config.context, config, observation_role)
    agent_tokens = sum(int(row.sampled_mask.sum()) for row in rows)
    rows = [_with_context(row, config.context_weight) for row in rows]
    exam_rows, _ = _rows(exam, dialogue, model_config.context, config, observation_role)
    if not rows or not exam_rows:
        raise ConfigError(f"no demonstration fits into policy.tiny.context = {model_config.context} tokens")
    model = build_model(model_config, tokenizer, config.seed)
    steps, loss = _train(model, rows, exam_rows, config, report)
    result = WarmStartReport(
        episodes=len(episodes),
        solved=sum(episode.total_reward > 0 for episode in episodes) / len(episodes),
        tokens=sum(map(len, rows)),
        agent_tokens=agent_tokens,
        rows_cut=cut,
        steps=steps,
        train_loss=loss,
        heldout_loss=token_loss(model, exam_rows, config.batch_tokens),
        seconds=time.monotonic() - started,
    )
    return model, tokenizer, result


def _rows(
    episodes: Sequence[Episode],
    dialogue: Chat,
    context: int,
    config: WarmStartConfig,
    observation_role: Literal["user", "tool"],
) -> tuple[list[LearningRow], int]:
    """Rows with a weight for each of the agent's tokens, and how many episodes did not fit into the context whole."""
    shown = [with_ids(e, dialogue, observation_role=observation_role, max_tokens=context) for e in episodes]
    cut = sum(len(short.turns) < len(whole.turns) for short, whole in zip(shown, episodes, strict=True))
    weights = [action_weights(episode, config) for episode in shown]
    rows, _ = build_rows(shown, weights)
    return rows, cut


def _with_context(row: LearningRow, weight: float) -> LearningRow:
    """Let the model learn to read as well: programs and test output are where names are copied from.

    Agents' tokens are few (about one in eight), and copying is learnt several times faster from all of them.
    """
    if weight == 0:
        return row
    learnt = np.ones_like(row.sampled_mask)
    learnt[0] = False
    weights = np.where(row.sampled_mask, row.advantages, np.float32(weight))
    weights[0] = 0
    return replace(row, sampled_mask=learnt, advantages=weights)


def action_weights(episode: Episode, config: WarmStartConfig) -> NDArray[np.float64]:
    """How much each turn counts in the loss. Shape: (turns,)."""
    weight = 1.0 if episode.total_reward > 0 else config.failed_weight
    taken: set[str] = set()
    weights = []
    for turn in episode.turns:
        weights.append(weight * (config.repeat_weight if turn.text in taken else 1.0))
        taken.add(turn.text)
    return np.asarray(weights)


def _train(
    model: PreTrainedModel,
    rows: Sequence[LearningRow],
    exam: Sequence[LearningRow],
    config: WarmStartConfig,
    report: Report,
) -> tuple[int, float]:
    """AdamW over length-bucketed batches in random order; returns the steps and the loss of the last tenth of them."""
    rng = np.random.default_rng([config.seed, 1])
    batches = _batches(rows, config, rng)
    optimizers = _optimizers(model, config)
    scorer = TokenScorer(model)
    losses: list[float] = []
    model.train()
    for step, batch in enumerate(batches):
        model.zero_grad(set_to_none=True)
        loss = _loss(scorer, rows, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * _schedule(step, len(batches))
            optimizer.step()
        losses.append(loss.item())
        figures = {"loss": float(np.mean(losses[-50:]))}
        if step + 1 == len(batches) or (step + 1) % -(-len(batches) // 5) == 0:
            figures["heldout_loss"] = token_loss(model, exam, config.batch_tokens)
        report("supervised start", step + 1, len(batches), **figures)
    model.train(False)
    return len(batches), float(np.mean(losses[-max(1, len(losses) // 10) :]))


def _optimizers(model: PreTrainedModel, config: WarmStartConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or for what Muon is not for."""
    hidden = hidden_matrices(model) if config.optimizer == "muon" else []
    taken = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)
    if not hidden:
        return [adam]
    return [adam, Muon(hidden, lr=config.learning_rate, weight_decay=config.weight_decay)]


def _batches(rows: Sequence[LearningRow], config: WarmStartConfig, rng: np.random.Generator) -> list[list[int]]:
    """Batches of similar length for all epochs, reshuffled in each; a broken epoch ends it."""
    batches: list[list[int]] = []
    whole = math.ceil(config.epochs)
    for epoch in range(whole):
        # A little noise on the lengths gives every epoch other company in the batches.
        order = rng.permutation(len(rows))
        noisy = [max(1, round(len(rows[i]) * rng.uniform(0.9, 1.1))) for i in order]
        parts = [[int(order[i]) for i in part] for part in plan_microbatches(noisy, config.batch_tokens)]
        shuffled = [parts[i] for i in rng.permutation(len(parts))]
        share = min(1.0, config.epochs - epoch)
        batches += shuffled[: max(1, round(len(shuffled) * share))]
    return batches


def _schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate: up over the first twentieth, then a cosine down to a tenth."""
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def _loss(scorer: TokenScorer, rows: Sequence[LearningRow], batch: Sequence[int]) -> torch.Tensor:
    """Weighted mean negative log-likelihood of the agent's tokens, in nats."""
    weights = [row.advantages[row.sampled_mask] for row in rows]
    micro = collate(
        rows, batch, advantages=weights, old_logprobs=weights, weights=weights, turns=[row.turn for row in rows]
    )
    logprobs, _ = scorer(micro.ids, micro.position, micro.target)
    return -(logprobs * micro.weights).sum() / micro.weights.sum()


def token_loss(model: PreTrainedModel, rows: Sequence[LearningRow], batch_tokens: int) -> float:
    """Mean negative log-likelihood of all the agent's tokens in the rows, in nats."""
    scorer = TokenScorer(model)
    training = model.training
    model.train(False)
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in plan_microbatches([len(row) for row in rows], batch_tokens):
            count = sum(int(rows[i].sampled_mask.sum()) for i in batch)
            total += float(_loss(scorer, rows, batch)) * count
            tokens += count
    model.train(training)
    return total / tokens
