"""The `engine:` of a scenario: which batching policy, and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from scenarios.schema.source.hints import did_you_mean, refusal
from scenarios.schema.strict import Strict

_PATH, _CLASS = r"(.+\.py)", r"([^\W\d]\w*)"

Count = Annotated[int, Field(ge=1, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Price = Annotated[float, Field(ge=0, le=1e9)]
Weights = dict[str, Annotated[float, Field(ge=1e-6, le=1e6)]]


def _choice(key: str, allowed: Callable[[], Sequence[str]]) -> AfterValidator:
    """One of the words allowed."""

    def check(word: str) -> str:
        words = allowed()
        if word in words:
            return word
        raise refusal(f"unknown {key} {word!r}", did_you_mean(word, words))

    return AfterValidator(check)


def _policies() -> Sequence[str]:
    from simulator.policies import built_in_policies

    return built_in_policies()


def _orders() -> Sequence[str]:
    from simulator.queues import QUEUES

    return tuple(order for order in QUEUES if order != "mlfq")  # that is fastserve, which preempts by it


def _preemption_modes() -> Sequence[str]:
    from simulator.policies.parts.preemption import MODES

    return MODES


def _victims() -> Sequence[str]:
    from simulator.policies.parts.victims import VICTIMS

    return tuple(VICTIMS)


def _versions() -> Sequence[str]:
    from simulator.policies.parts.vllm_versions import VERSIONS

    return VERSIONS


def _version(value: object) -> object:
    """YAML takes 0.20 without quotes for a number."""
    return f"{value:.2f}" if isinstance(value, float) else value


def _capacity_policies() -> Sequence[str]:
    from simulator.policies.tensorrt_llm import CAPACITY_POLICIES

    return CAPACITY_POLICIES


ORDER_KEYS = ("aging_s", "max_wait_s", "class_weights", "w_p", "w_q")
"""Keys that are parameters of a queue order, for every policy that takes an order."""


class Engine(Strict):
    """A batching policy and its parameters. Which of them a policy has is its own to say."""

    policy: Annotated[str, _choice("policy", _policies)] = "chunked_prefill"
    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 2048
    block_size: Annotated[int, Field(ge=1, le=2**20)] = 16
    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=10**9)] = 0
    long_prefill_token_threshold_adaptive: bool = False
    max_num_active_seqs: Count | None = None
    async_scheduling: bool = False
    """A live vLLM server of 0.33 has it on by default; here the plainer, synchronous engine is."""
    version: Annotated[str, BeforeValidator(_version), _choice("version", _versions)] = "0.33"
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    reserve_full_isl: bool = True
    order: Annotated[str, _choice("order", _orders)] = "fcfs"
    aging_s: Seconds | None = None
    max_wait_s: Annotated[float, Field(gt=0, le=1e9)] | None = 60.0
    class_weights: Weights | None = None
    w_p: Price = 1.0
    w_q: Price = 2.0
    preemption_mode: Annotated[str, _choice("preemption_mode", _preemption_modes)] = "recompute"
    victim: Annotated[str, _choice("victim", _victims)] | None = None
    swap_overlap: bool = False
    batch_timeout_s: Seconds = 0.1
    stream: bool = True
    capacity_policy: Annotated[str, _choice("capacity_policy", _capacity_policies)] = "guaranteed_no_evict"
    waiting_served_ratio: Annotated[float, Field(ge=0, le=1e6)] = 0.3
    max_waiting_tokens: Annotated[int, Field(ge=0, le=10**9)] = 20
    max_batch_prefill_tokens: Count | None = None
    max_batch_total_tokens: Count | None = None
    chunked_prefill_size: Annotated[int, Field(ge=-1, le=10**9)] | None = None
    max_prefill_tokens: Count | None = None
    enable_mixed_chunk: bool = False
    schedule_conservativeness: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    min_quantum_tokens: Count = 1
    prompt_tokens_per_quantum: Count = 256
    starve_limit_s: Annotated[float, Field(gt=0, le=1e9)] = 3.0

    def given(self) -> tuple[str, ...]:
        """The keys that were given, in the schema's order and then the file's; the others hold their defaults."""
        known = [key for key in type(self).model_fields if key in self.model_fields_set]
        return (*known, *(self.model_extra or {}))

    def parameters(self, *, given_only: bool = False) -> dict[str, object]:
        """What a policy is made with: all keys but the engine's own, `_ENGINE_KEYS`.

        `given_only` leaves out the keys that were not given.
        """
        keys = self.given() if given_only else self.resolved()
        return {key: self._value(key) for key in keys if key not in _ENGINE_KEYS}

    def resolved(self) -> dict[str, object]:
        """Every key and its value."""
        return {key: getattr(self, key) for key in type(self).model_fields}

    def _value(self, key: str) -> object:
        extra = self.model_extra or {}  # first: a policy's parameter may be called like a method of this class
        return extra[key] if key in extra else getattr(self, key)

    @classmethod
    def defaults(cls) -> dict[str, object]:
        """The default of every key."""
        return {key: field.default for key, field in cls.model_fields.items()}


_ENGINE_KEYS = ("policy", "block_size", "enable_prefix_caching", "swap_overlap")


class UserEngine(Engine):
    """An engine with a policy of the user's, `path.py:Class`: further keys are that policy's own parameters.

    A parameter that is not given keeps the default of the policy's own file, not the one of `Engine`.
    """

    model_config = ConfigDict(extra="allow")

    policy: Annotated[
        str, Field(pattern=f"^{_PATH}:{_CLASS}$", description="the path of a file and a class in it, `path.py:Class`")
    ]
    order: str = "fcfs"
    preemption_mode: str = "recompute"
    victim: str | None = None

    def resolved(self) -> dict[str, object]:
        """The engine's own keys, and those that were given."""
        own = {key: getattr(self, key) for key in type(self).model_fields if key in _ENGINE_KEYS}
        return own | {key: self._value(key) for key in self.given()}

    @property
    def path(self) -> Path:
        """The policy's file."""
        return Path(self.policy.rpartition(":")[0])
