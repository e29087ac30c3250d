"""A model behind an OpenAI-compatible server: a real one, in a process of its own on the loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2")
pytest.importorskip("tenacity")
pytest.importorskip("transformers")

from agentgym_rtmc.cli import main
from agentgym_rtmc.episode_file import read_episodes
from agentgym_rtmc.errors import ConfigError, SamplerError
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.policy.base import SampleKey, SamplingParams
from agentgym_rtmc.trainer.policy.config import EndpointConfig, PolicyConfig
from agentgym_rtmc.trainer.policy.endpoint import EndpointPolicy, Usage
from agentgym_rtmc.trainer.policy.factory import make_policy
from agentgym_rtmc.trainer.transcript import Conversation

SERVER = Path(__file__).parents[1] / "modules" / "chat_server.py"
KEY = "AGENTGYM_TEST_KEY"
PARAMS = SamplingParams(temperature=0.7, max_tokens=9)


class Served:
    """A running server: its address and what it was asked."""

    def __init__(self, url: str, record: Path) -> None:
        self.url, self._record = url, record

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._record.read_text().splitlines()] if self._record.exists() else []

    def config(self, **changes: Any) -> EndpointConfig:
        return EndpointConfig(base_url=self.url, **({"backoff": 0.0, "key_variable": KEY} | changes))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:

        def start(mode: str = "say", **options: Any) -> Served:
            record = tmp_path / f"record-{id(options)}.jsonl"
            options = {"mode": mode, "text": "said", "record": str(record), **options}
            process = subprocess.Popen(
                [sys.executable, str(SERVER), json.dumps(options)],
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            stack.enter_context(process.stdout)
            return Served(f"http://127.0.0.1:{int(process.stdout.readline())}/v1", record)

        yield start


def conversations(count: int) -> list[Conversation]:
    return [Conversation.opened(f"s{number}", "system", f"hello {number}") for number in range(count)]


def keys(count: int) -> list[SampleKey]:
    return [SampleKey(1, number, 0) for number in range(count)]


def ask(policy: EndpointPolicy, count: int = 1, params: SamplingParams = PARAMS) -> list[tuple[str, str]]:
    done = policy.complete(conversations(count), keys(count), params)
    return [(one.text, one.finish_reason) for one in done]


def test_what_is_asked_and_what_comes_back(serve: Callable[..., Served]) -> None:
    served = serve()
    config = served.config(extra={"reasoning_effort": "low"})
    with closing(EndpointPolicy(config, "m")) as policy:
        conversation = conversations(1)[0]
        conversation.record("answer", None, None, False)
        conversation.observe("seen", "tool")
        (done,) = policy.complete([conversation], [SampleKey(1, 2, 3)], SamplingParams(0.5, 0.9, 40, 7))
    assert (done.text, done.finish_reason, done.token_ids, done.weights_version) == ("said", "stop", None, None)
    (request,) = served.requests
    assert request["path"] == "/v1/chat/completions"
    seed = request["body"].pop("seed")
    assert 0 <= seed < 2**31
    assert request["body"] == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "system"},
            {"role": "user", "content": "hello 0"},
            {"role": "assistant", "content": "answer"},
            {"role": "user", "content": "seen"},
        ],
        "temperature": 0.5,
        "max_tokens": 7,
        "top_p": 0.9,
        "top_k": 40,
        "reasoning_effort": "low",
    }
    assert policy.figures() == {
        "requests": 1,
        "requests_retried": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "replies_without_usage": 1,
    }


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": None, "completion_tokens": None}, {"prompt_tokens": "many"}, [], {"prompt_tokens": -7}]
)
def test_a_reply_counts_though_its_usage_cannot_be_read(serve: Callable[..., Served], usage: Any) -> None:
    """It is paid for: to ask again for what was answered would cost twice."""
    body = {"choices": [{"message": {"content": "paid"}, "finish_reason": "stop"}], "usage": usage}
    served = serve(faults=[{"status": 200, "body": body}])
    with closing(EndpointPolicy(served.config(), "m")) as policy:
        assert ask(policy) == [("paid", "stop")]
        assert (policy.usage.requests, policy.usage.uncounted, policy.usage.prompt_tokens) == (1, 1, 0)


def test_seeds_are_of_the_episode_and_the_turn(serve: Callable[..., Served]) -> None:
    served = serve()
    with closing(EndpointPolicy(served.config(max_tokens_field="max_completion_tokens"), "m")) as policy:
        assert ask(policy, 5) == [("said", "stop")] * 5
        assert ask(policy, 5) == [("said", "stop")] * 5
        policy.complete(conversations(1), [SampleKey(1, 0, 1)], PARAMS)
    bodies = [request["body"] for request in served.requests]
    seeds = {(body["messages"][1]["content"], body["seed"]) for body in bodies}
    assert len(seeds) == 6, "equal keys send equal seeds, others do not"
    assert all(body["max_completion_tokens"] == 9 and "max_tokens" not in body for body in bodies)
    with closing(EndpointPolicy(served.config(send_seed=False), "m")) as policy:
        ask(policy)
    assert "seed" not in served.requests[-1]["body"]


def test_it_serves_the_embedded_model(serve: Callable[..., Served], tmp_path: Path, model: Any, tokenizer: Any) -> None:
    """Sampling by the model's own server gives what the model gives here; the counts are true tokens."""
    from agentgym_rtmc.trainer.policy.tiny import save_policy
    from agentgym_rtmc.trainer.policy.tokens import load_policy

    save_policy(tmp_path / "model", model, tokenizer)
    served = serve("tiny", folder=str(tmp_path / "model"))
    here = load_policy(PolicyConfig(kind="hf", model=str(tmp_path / "model")), tmp_path / "model")
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    expected = here.complete(conversations(3), keys(3), greedy)
    with closing(EndpointPolicy(served.config(price_input=2.0, price_output=10.0), "tiny")) as policy:
        assert ask(policy, 3, greedy) == [(one.text, one.finish_reason) for one in expected]
        prompt = sum(len(one.context_ids or ()) for one in expected)
        sampled = sum(len(one.token_ids or ()) for one in expected)
        figures = policy.figures()
        assert (figures["prompt_tokens"], figures["completion_tokens"]) == (prompt, sampled)
        assert figures["cost"] == pytest.approx((2 * prompt + 10 * sampled) / 1e6)
        # At a temperature, equal keys sample equal turns.
        warm = SamplingParams(temperature=1.0, max_tokens=12)
        assert ask(policy, 3, warm) == ask(policy, 3, warm)


LATER = {"status": 429, "headers": {"retry-after": "0"}, "body": {"error": {"message": "slow down"}}}
LOST = {"close": True}


@pytest.mark.parametrize(
    "fault",
    [
        LATER,
        {"status": 429, "headers": {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}},
        {"status": 503, "headers": {"retry-after": "soon"}},
        {"status": 500},
        {"status": 529},
        LOST,
        {"status": 200, "body": "no json"},
        {"status": 200, "body": {"choices": []}},
    ],
)
def test_what_fails_for_the_moment_is_tried_again(serve: Callable[..., Served], fault: dict[str, Any]) -> None:
    served = serve(faults=[fault, fault])
    with closing(EndpointPolicy(served.config(retries=2), "m")) as policy:
        assert ask(policy) == [("said", "stop")]
        assert (policy.usage.requests, policy.usage.retried) == (3, 2)


def test_a_server_that_does_not_answer_in_time(serve: Callable[..., Served]) -> None:
    served = serve(faults=[{"sleep": 3.0}])
    with closing(EndpointPolicy(served.config(timeout=0.5), "m")) as policy:
        assert ask(policy) == [("said", "stop")] and policy.usage.retried == 1


def test_the_server_says_when(serve: Callable[..., Served]) -> None:
    """The next try comes no earlier than asked for, however short the backoff."""
    served = serve(faults=[{"status": 429, "headers": {"retry-after": "0.6"}}])
    with closing(EndpointPolicy(served.config(), "m")) as policy:
        ask(policy)
    first, second = (request["time"] for request in served.requests)
    assert second - first >= 0.6


def test_a_pace_is_kept(serve: Callable[..., Served]) -> None:
    served = serve()
    with closing(EndpointPolicy(served.config(requests_per_minute=600), "m")) as policy:
        ask(policy, 6)
    times = [request["time"] for request in served.requests]
    assert len(times) == 6 and max(times) - min(times) >= 0.4


def test_when_the_tries_are_used_up(serve: Callable[..., Served]) -> None:
    """One conversation of several is lost and says so; where all are, the sampler has failed."""
    served = serve(faults=[{"status": 500, "body": "ouch"}] * 3)
    with closing(EndpointPolicy(served.config(retries=0, concurrency=1), "m")) as policy:
        assert ask(policy, 4) == [("", "abort")] * 3 + [("said", "stop")]
    served = serve(faults=[{"status": 500, "body": "ouch"}] * 3)
    with (
        closing(EndpointPolicy(served.config(retries=0), "m")) as policy,
        pytest.raises(SamplerError, match="the endpoint answered 500: ouch"),
    ):
        ask(policy, 2)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_full_context_ends_the_episode_not_the_run(serve: Callable[..., Served], status: int) -> None:
    body = {"error": {"code": "context_length_exceeded", "message": "This model's maximum context length is 8 tokens."}}
    served = serve(faults=[{"status": status, "body": body}])
    with closing(EndpointPolicy(served.config(), "m")) as policy:
        assert ask(policy) == [("", "length")]


def test_other_refusals_are_not_tried_again(serve: Callable[..., Served]) -> None:
    served = serve(faults=[{"status": 400, "body": {"error": {"message": "temperature must be 1"}}}, {"status": 404}])
    with closing(EndpointPolicy(served.config(), "m")) as policy:
        with pytest.raises(SamplerError, match=r"answered 400: .*temperature must be 1"):
            ask(policy)
        with pytest.raises(ConfigError, match=r"check policy.endpoint.base_url and policy.model \('m'\)"):
            ask(policy)
    assert len(served.requests) == 2


def test_a_turn_cut_by_length_says_so(serve: Callable[..., Served]) -> None:
    served = serve(finish="length")
    with closing(EndpointPolicy(served.config(), "m")) as policy:
        assert ask(policy) == [("said", "length")]


def test_keys_come_from_the_environment_and_go_nowhere_else(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sk-very-secret"
    served = serve(authorization=f"Bearer {secret}")
    with pytest.raises(ConfigError, match=f"refuses a request without a key: {KEY} is not set"):
        EndpointPolicy.connect(served.config(), "m")
    monkeypatch.setenv(KEY, "wrong")
    with pytest.raises(ConfigError, match=f"refuses the key in {KEY}") as caught:
        EndpointPolicy.connect(served.config(), "m")
    assert "wrong" not in str(caught.value)
    with closing(EndpointPolicy(served.config(), "m")) as policy, pytest.raises(ConfigError, match="refuses the key"):
        ask(policy, 3)
    monkeypatch.setenv(KEY, secret)
    with closing(EndpointPolicy.connect(served.config(), "m")) as policy:
        assert ask(policy) == [("said", "stop")]
        assert secret not in repr(vars(policy)["_config"]) and secret not in caplog.text


def test_an_address_nobody_answers_at() -> None:
    config = EndpointConfig(base_url="http://127.0.0.1:9/v1", key_variable="")
    with pytest.raises(ConfigError, match=r"policy.endpoint.base_url: http://127.0.0.1:9/v1 cannot be reached"):
        EndpointPolicy.connect(config, "m")


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["policy.kind=endpoint"], "needs policy.model and policy.endpoint.base_url"),
        (["policy.kind=endpoint", "policy.model=m"], "needs policy.model and policy.endpoint.base_url"),
        (["policy.endpoint.base_url=localhost:8000"], "must start with http:// or https://"),
        (["policy.endpoint.concurrency=0"], "policy.endpoint.concurrency"),
    ],
)
def test_settings_that_do_not_do(overrides: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_settings(TrainConfig, None, overrides)


def test_it_cannot_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    config = PolicyConfig(kind="endpoint", model="m", endpoint=EndpointConfig(base_url="http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="a model behind an endpoint cannot be trained"):
        make_policy(config, env_id="x", make_env=lambda: None, trainable=True)  # type: ignore[arg-type,return-value]
    arguments = ["policy.kind=endpoint", "policy.model=m", "policy.endpoint.base_url=http://127.0.0.1:9"]
    assert main(["train", *arguments]) == 2
    assert "a model behind an endpoint cannot be trained" in capsys.readouterr().err


def test_counting_is_safe_between_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    usage = Usage()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: usage.add(requests=1, prompt_tokens=3), range(2000)))
    assert (usage.requests, usage.prompt_tokens) == (2000, 6000)


# -- the command line ----------------------------------------------------------------------------------------------


def sandboxed(code: int, printed: str) -> None:
    if code == 2 and "isolate" in printed:
        pytest.skip(printed)
    assert code == 0, printed


def test_eval_on_code_repair(
    serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line to a pass rate with its interval, tokens and cost; some requests fail for the moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    served = serve("player", faults=[LATER, LOST, {"status": 502}], authorization="Bearer k")
    settings = [
        f"policy.endpoint.base_url={served.url}",
        "policy.endpoint.backoff=0.01",
        "policy.endpoint.price_input=1",
    ]
    settings += ["policy.endpoint.price_cached=0.5", "policy.endpoint.price_output=4", "rollout.env_workers=2"]
    command = [
        "eval",
        "--env",
        "CodeRepair-v0",
        "--tasks",
        "12",
        "--samples",
        "2",
        "--temperature",
        "0.7",
        "--json",
        "--quiet",
    ]
    code = main([*command, "--policy", "endpoint", "policy.model=helper", *settings, "-o", "e.jsonl"])
    printed = capsys.readouterr()
    sandboxed(code, printed.err)
    (row,) = json.loads(printed.out)
    episodes = read_episodes(tmp_path / "e.jsonl").episodes
    solved = {episode.opening.task.id for episode in episodes if episode.total_reward == 1.0}
    sys.path.append(str(SERVER.parent))
    from chat_server import solves

    tasks = {episode.opening.task.id for episode in episodes}
    assert len(tasks) == 12 and len(episodes) == 24 and solved == {task for task in tasks if solves(task)}
    assert 0 < len(solved) < 12 and row["pass_at_1"] == pytest.approx(len(solved) / 12)
    assert row["low"] < row["pass_at_1"] < row["high"] and row["agent"] == "endpoint:helper"
    turns = sum(len(episode.turns) for episode in episodes)
    assert (row["requests"], row["requests_retried"]) == (turns + 3, 3)
    assert row["completion_tokens"] == 7 * turns and row["cached_tokens"] == 3 * turns
    expected = (row["prompt_tokens"] - 3 * turns) * 1 + 3 * turns * 0.5 + 7 * turns * 4
    assert row["cost"] == pytest.approx(expected / 1e6)
    assert {request["body"]["temperature"] for request in served.requests} == {0.7}
    # The short form, as a table.
    assert main(["eval", "endpoint:helper", "--tasks", "1", "--samples", "1", *settings, "--quiet"]) == 0
    printed = capsys.readouterr()
    assert "endpoint:helper" in printed.out and "prompt tokens" in printed.out and "cost" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which agent? Give a run folder, a model, endpoint:MODEL or scripted:reference, or --policy KIND"),
        (["policy.model=m"], "which agent?"),
        (["--policy", "endpint"], "'policy.kind' should be 'tiny', 'hf', 'endpoint' or 'scripted'"),
        (["endpoint:m"], "needs policy.model and policy.endpoint.base_url"),
        (["endpoint:m", "policy.endpoint.base_url=http://127.0.0.1:9"], "cannot be reached"),
        (["--env", "CodeRepare-v0", "scripted:reference"], "no environment 'CodeRepare-v0'"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1
