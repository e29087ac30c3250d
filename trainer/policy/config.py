"""Settings of policies. Imports nothing heavy: a configuration is read and checked without torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from agentgym_rtmc.settings import Settings
from agentgym_rtmc.trainer.policy.base import SamplingParams


class TinyConfig(Settings):
    """Size of the embedded model. The defaults make about 0.9 million parameters."""

    hidden_size: int = Field(128, ge=16, description="width")
    layers: int = Field(4, ge=1, description="decoder layers")
    heads: int = Field(4, ge=1, description="query heads; they divide the width")
    key_value_heads: int = Field(2, ge=1, description="key/value heads; they divide the query heads")
    intermediate_size: int = Field(384, ge=16, description="width of the gated feed-forward layer")
    context: int = Field(768, ge=32, description="most tokens a conversation may hold")
    vocabulary: int = Field(640, ge=272, description="tokens, the 256 bytes and the 5 control tokens included")
    digits: int = Field(1, ge=1, description="most digits of a number in one token; 2 or 3 where ids are to be copied")
    phrases: int = Field(24, ge=0, description="tokens kept for what agents write again and again")
    tied: bool = Field(False, description="share the embedding with the output layer")
    initial_std: float = Field(0.05, gt=0, description="standard deviation of the initial weights")

    @model_validator(mode="after")
    def _divisible(self) -> TinyConfig:
        if self.hidden_size % self.heads or self.heads % self.key_value_heads:
            raise ValueError("heads must divide hidden_size, and key_value_heads must divide heads")
        if self.vocabulary - self.phrases < 261:
            raise ValueError("vocabulary has no room for 256 bytes, 5 control tokens and the phrases")
        return self


class WarmStartConfig(Settings):
    """Supervised learning of the embedded model on the demonstrator's episodes."""

    episodes: int = Field(2000, ge=2, description="demonstrations to collect")
    epochs: float = Field(3.0, gt=0, description="passes over them")
    learning_rate: float = Field(3e-3, gt=0, description="peak; a short warm-up, then a cosine to a tenth")
    batch_tokens: int = Field(4096, ge=64, description="tokens of one optimiser step, padding included")
    weight_decay: float = Field(0.1, ge=0, description="of matrices only")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: orthogonal steps for the hidden matrices, AdamW for the rest"
    )
    context_weight: float = Field(0.5, ge=0, description="weight of what the agent read (its own tokens count 1)")
    failed_weight: float = Field(1.0, ge=0, description="weight of actions in episodes without reward")
    repeat_weight: float = Field(1.0, ge=0, description="weight of actions that the episode had taken before")
    heldout_share: float = Field(0.05, gt=0, lt=1, description="share of the tasks kept out to measure the loss on")
    seed: int = Field(0, ge=0, description="fixes demonstrations, initial weights and order")
    workers: int = Field(4, ge=1, description="threads that step environments")


class EndpointConfig(Settings):
    """An OpenAI-compatible server. Its key is read from an environment variable and never written anywhere."""

    base_url: str = Field("", description="address up to and with the version, such as http://127.0.0.1:8000/v1")
    key_variable: str = Field("OPENAI_API_KEY", description="environment variable with the key; unset: none is sent")
    concurrency: int = Field(16, ge=1, description="requests at the same time")
    requests_per_minute: float = Field(0.0, ge=0, description="most requests a minute; 0: no limit")
    timeout: float = Field(300.0, gt=0, description="seconds to wait for an answer")
    retries: int = Field(6, ge=0, description="further tries after 429, 5xx, a timeout or a lost connection")
    backoff: float = Field(1.0, ge=0, description="seconds; the waits before them double from there, at random below")
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="what the server calls the most tokens of one turn"
    )
    send_seed: bool = Field(True, description="send a seed that depends on episode and turn")
    extra: dict[str, Any] = Field(default_factory=dict, description="further fields of every request")
    price_input: float = Field(0.0, ge=0, description="price of a million prompt tokens")
    price_cached: float | None = Field(None, ge=0, description="of those the server had cached; default: the same")
    price_output: float = Field(0.0, ge=0, description="price of a million sampled tokens")

    @model_validator(mode="after")
    def _address(self) -> EndpointConfig:
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise ValueError("base_url must start with http:// or https://")
        return self


class PolicyConfig(Settings):
    """Which policy acts, and how it samples."""

    kind: Literal["tiny", "hf", "endpoint", "scripted"] = Field(
        "tiny", description="embedded model, any causal LM, one behind a server (not trained), or a script"
    )
    model: str = Field(
        "", description="hf: folder or hub id; endpoint: its name there; tiny: a saved one instead of a warm start"
    )
    player: Literal["reference", "demonstrator"] = Field("reference", description="scripted: who plays")
    temperature: float = Field(1.0, ge=0, description="sampling temperature; 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling; 1 is off")
    top_k: int = Field(0, ge=0, description="sample among the k most likely; 0 is off")
    max_tokens: int = Field(96, ge=1, description="most tokens of one turn")
    max_context: int | None = Field(None, ge=2, description="most tokens of a conversation; default: the model's")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="float32 on a CPU by default")
    device: str = Field("auto", description="cpu, cuda, cuda:1, …; auto takes an accelerator where there is one")
    cache_gib: float = Field(2.0, gt=0, description="memory for keys and values kept between turns")
    slot_cache: bool = Field(True, description="keep keys and values between turns where that is exact")
    template_options: dict[str, Any] = Field(default_factory=dict, description="handed to the chat template")
    trust_remote_code: bool = Field(False, description="run code that comes with a model: only if you trust it")
    offline: bool = Field(False, description="load from folders and the hub cache only")
    tiny: TinyConfig = Field(default_factory=lambda: TinyConfig(), description="size of the embedded model")
    warm_start: WarmStartConfig = Field(default_factory=lambda: WarmStartConfig(), description="its first lessons")
    endpoint: EndpointConfig = Field(
        default_factory=lambda: EndpointConfig(), description="kind 'endpoint': the server"
    )

    @model_validator(mode="after")
    def _named(self) -> PolicyConfig:
        if self.kind == "hf" and not self.model:
            raise ValueError("kind 'hf' needs policy.model: a folder or the id of a causal language model")
        if self.kind == "endpoint" and not (self.model and self.endpoint.base_url):
            raise ValueError("kind 'endpoint' needs policy.model and policy.endpoint.base_url, the server's address")
        return self

    def sampling(self, **changes: Any) -> SamplingParams:
        """Return the sampling parameters, with changes (`temperature=0`)."""
        values = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        return SamplingParams(**(values | changes))
