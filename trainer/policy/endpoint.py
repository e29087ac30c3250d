"""A policy behind an OpenAI-compatible server: conversations go out as chat messages, text comes back.

Invariants: text only, so it cannot be trained. The key is read from the environment when the policy is made and is in
no setting, message or error. What a server says for the moment (429, 5xx, a lost connection, a timeout) is tried
again, as late as it asks for; a wrong key, address or model ends the run at once. One conversation that fails does not
take the others of its batch along. Everything that was used is counted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx2
from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, field_validator
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from agentgym_rtmc.episodes import FinishReason
from agentgym_rtmc.errors import ConfigError, SamplerError
from agentgym_rtmc.trainer.policy.base import Completion, SampleKey, SamplingParams, Spent
from agentgym_rtmc.trainer.policy.config import EndpointConfig
from agentgym_rtmc.trainer.transcript import Conversation

_log = logging.getLogger(__name__)
_LONGEST_WAIT = 120.0
"""Seconds between two tries at most, whatever the server asks for."""
_FOR_THE_MOMENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_TOO_LONG = ("context_length_exceeded", "context length", "maximum context", "context window", "too many tokens")


class _TemporaryError(SamplerError):
    """Worth another try, not before `after` seconds have passed (None: the server does not say)."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class _ContextFullError(Exception):
    """The conversation does not fit into the model's context."""


@dataclass
class Usage:
    """What was used so far. Counts of tokens are the server's; `uncounted` are replies that told none."""

    requests: int = 0
    retried: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    uncounted: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: int) -> None:
        """Add to counts; from any thread."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)


class _PromptDetails(BaseModel):
    cached_tokens: int | None = Field(None, ge=0)


class _Counts(BaseModel):
    prompt_tokens: int = Field(0, ge=0)
    completion_tokens: int = Field(0, ge=0)
    prompt_tokens_details: _PromptDetails | None = None


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Reply(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Counts | None = None

    @field_validator("usage", mode="wrap")
    @classmethod
    def _unread_is_uncounted(cls, value: Any, read: ValidatorFunctionWrapHandler) -> _Counts | None:
        # An answer is paid for, whatever its counts look like: asking again would cost twice.
        try:
            counts: _Counts | None = read(value)
        except ValidationError:
            return None
        return counts


class EndpointPolicy:
    """A `Policy` that asks `model` at `config.base_url`. `usage` counts, `figures()` sums up with the cost."""

    def __init__(self, config: EndpointConfig, model: str) -> None:
        self.max_context: int | None = None
        self.usage = Usage()
        self._config = config
        self._model = model
        self._pace = _Pace(config.requests_per_minute)
        key = os.environ.get(config.key_variable, "") if config.key_variable else ""
        self._client = httpx2.Client(
            base_url=config.base_url.rstrip("/") + "/",
            timeout=httpx2.Timeout(config.timeout, connect=min(30.0, config.timeout)),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx2.Limits(max_connections=config.concurrency),
        )
        self._pool = ThreadPoolExecutor(config.concurrency, thread_name_prefix="endpoint")

    @classmethod
    def connect(cls, config: EndpointConfig, model: str) -> Self:
        """Make a policy and see that the server can be reached and takes the key (ConfigError)."""
        policy = cls(config, model)
        try:
            response = policy._client.get("models", timeout=30.0)
        except httpx2.HTTPError as error:
            policy.close()
            raise ConfigError(
                f"policy.endpoint.base_url: {config.base_url} cannot be reached ({_short(str(error))}); is it up?"
            ) from error
        if response.status_code in (401, 403):
            policy.close()
            raise policy._key_error()
        return policy

    def complete(
        self, conversations: Sequence[Conversation], keys: Sequence[SampleKey], params: SamplingParams
    ) -> list[Completion]:
        """Take a turn in each conversation (see `Policy`), up to `concurrency` at the same time.

        One that the server does not answer ends as `abort`; raises SamplerError when it answers none.
        """
        futures = [
            self._pool.submit(self._ask, conversation, key, params)
            for conversation, key in zip(conversations, keys, strict=True)
        ]
        completions: list[Completion] = []
        failures: list[SamplerError] = []
        for future in futures:
            try:
                completions.append(future.result())
            except SamplerError as error:
                failures.append(error)
                completions.append(Completion("", "abort"))
            except BaseException:
                for waiting in futures:
                    waiting.cancel()
                raise
        if failures and len(failures) == len(completions):
            raise SamplerError(str(failures[0])) from failures[0]
        for failure in failures:
            _log.warning("a turn is lost: %s", failure)
        return completions

    def figures(self) -> dict[str, float]:
        """What was used, for a table row: requests, tokens and, where there are prices, the cost in their currency."""
        usage, config = self.usage, self._config
        figures: dict[str, float] = {
            "requests": usage.requests,
            "requests_retried": usage.retried,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        if usage.cached_tokens:
            figures["cached_tokens"] = usage.cached_tokens
        if usage.uncounted:
            figures["replies_without_usage"] = usage.uncounted
        if config.price_input or config.price_output:
            figures["cost"] = self._cost(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        return figures

    def _cost(self, prompt: int, cached: int, completion: int) -> float:
        config = self._config
        for_cached = config.price_input if config.price_cached is None else config.price_cached
        return ((prompt - cached) * config.price_input + cached * for_cached + completion * config.price_output) / 1e6

    def close(self) -> None:
        """Close the connections. Requests under way are waited for."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    # -- one conversation, in a thread of the pool --------------------------------------------------------------

    def _ask(self, conversation: Conversation, key: SampleKey, params: SamplingParams) -> Completion:
        body = self._body(conversation, key, params)
        tries = Retrying(
            stop=stop_after_attempt(self._config.retries + 1),
            retry=retry_if_exception_type(_TemporaryError),
            wait=self._wait,
            before_sleep=lambda _: self.usage.add(retried=1),
            reraise=True,
        )
        try:
            reply: _Reply = tries(self._post, body)
        except _ContextFullError:
            return Completion("", "length")
        choice = reply.choices[0]
        finish: FinishReason = "length" if choice.finish_reason == "length" else "stop"
        return Completion(choice.message.content or "", finish, spent=self._count(reply))

    def _body(self, conversation: Conversation, key: SampleKey, params: SamplingParams) -> dict[str, Any]:
        # Observations of the role `tool` belong to calls that such a server makes itself; ours are text.
        messages = [
            {"role": "user" if message["role"] == "tool" else message["role"], "content": message["content"]}
            for message in conversation.messages
        ]
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "temperature": params.temperature,
            self._config.max_tokens_field: params.max_tokens,
        }
        if params.top_p < 1:
            body["top_p"] = params.top_p
        if params.top_k:
            body["top_k"] = params.top_k
        if self._config.send_seed:
            name = f"{key.seed}/{key.episode}/{key.turn}"
            body["seed"] = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1
        return body | self._config.extra

    def _post(self, body: dict[str, Any]) -> _Reply:
        self._pace.wait()
        self.usage.add(requests=1)
        try:
            response = self._client.post("chat/completions", json=body)
        except httpx2.TimeoutException as error:
            raise _TemporaryError(f"the endpoint did not answer within {self._config.timeout:g} s") from error
        except httpx2.HTTPError as error:
            raise _TemporaryError(f"the connection to the endpoint failed: {_short(str(error))}") from error
        if response.status_code != 200:
            raise self._refusal(response)
        try:
            return _Reply.model_validate_json(response.content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the reply"
            raise _TemporaryError(f"the endpoint's reply is no chat completion: {place}: {first['msg']}") from error

    def _refusal(self, response: httpx2.Response) -> Exception:
        said = _short(response.text)
        if response.status_code in _FOR_THE_MOMENT:
            return _TemporaryError(f"the endpoint answered {response.status_code}: {said}", _retry_after(response))
        if response.status_code in (401, 403):
            return self._key_error()
        if response.status_code in (404, 405):
            return ConfigError(
                f"the endpoint {self._config.base_url} answered {response.status_code}: {said}; check "
                f"policy.endpoint.base_url and policy.model ({self._model!r})"
            )
        if response.status_code in (400, 413, 422) and any(words in response.text.lower() for words in _TOO_LONG):
            return _ContextFullError()
        return SamplerError(f"the endpoint answered {response.status_code}: {said}")

    def _key_error(self) -> ConfigError:
        name = self._config.key_variable
        what = f"the key in {name}" if os.environ.get(name) else f"a request without a key: {name} is not set"
        return ConfigError(f"the endpoint {self._config.base_url} refuses {what} (policy.endpoint.key_variable)")

    def _wait(self, state: RetryCallState) -> float:
        """Seconds before the next try: what the server asks for, else longer and longer, and never quite the same."""
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.after if isinstance(error, _TemporaryError) else None
        backoff = wait_random_exponential(multiplier=self._config.backoff, max=_LONGEST_WAIT)(state)
        return min(_LONGEST_WAIT, backoff if asked is None else max(0.0, asked))

    def _count(self, reply: _Reply) -> Spent | None:
        if reply.usage is None:
            self.usage.add(uncounted=1)
            return None
        prompt, completion = reply.usage.prompt_tokens, reply.usage.completion_tokens
        details = reply.usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details is not None else 0
        self.usage.add(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
        return Spent(prompt + completion, self._cost(prompt, cached, completion))


class _Pace:
    """Lets requests start no faster than so many a minute (0: as fast as they come)."""

    def __init__(self, per_minute: float) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait for the next free moment."""
        if not self._interval:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._interval
        time.sleep(start - now)


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds that a server asks to wait for: the header is a number or a date."""
    value = response.headers.get("retry-after", "")
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:297]}..."
