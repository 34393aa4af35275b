"""A request as it is (`Request`) and as a policy may see it (`RequestView`).

The true output length is a field of `Request` alone. A policy is given `RequestView`s, whose type has no such
member: that a policy cannot know how long an answer will be is checked by the type checker, not by good manners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class PromptContent:
    """What a prefix cache may know of a prompt's content.

    `block_hashes` name the prompt's blocks of `hash_block_size` tokens, the last one perhaps partial. Equal hashes
    mean equal content up to and including that block. `prefix_tokens` leading tokens are shared by all requests of
    the same `prefix_group`. Without content, a request's tokens are its own.
    """

    block_hashes: tuple[int, ...] = ()
    hash_block_size: int = 0
    prefix_group: str | None = None
    prefix_tokens: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    output_token_ids: tuple[int, ...] = ()


class Request(NamedTuple):
    """One request of a workload. `row` is its place in the workload: unique, and what breaks every tie.

    Smaller `priority` is served first, as in vLLM. `deadline_s` counts from the arrival. `max_tokens` is the cap on
    the output that the client sent; `output_tokens`, at least 1, is what the model will really answer, and nobody's
    policy ever reads it.
    """

    row: int
    request_id: str
    arrival_s: float
    input_tokens: int
    output_tokens: int
    max_tokens: int
    priority: int = 0
    class_name: str = "default"
    session_id: str | None = None
    predicted_output_tokens: int | None = None
    deadline_s: float | None = None
    content: PromptContent | None = None


class RequestView(Protocol):
    """What a policy sees of a request. Token counts are those before the step that is being planned."""

    @property
    def row(self) -> int:
        """Place in the workload: breaks ties."""

    @property
    def request_id(self) -> str: ...

    @property
    def class_name(self) -> str: ...

    @property
    def arrival_s(self) -> float: ...

    @property
    def priority(self) -> int:
        """Smaller is served first."""

    @property
    def input_tokens(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """The client's cap on the output: the only bound on it that a server knows."""

    @property
    def predicted_output_tokens(self) -> int | None: ...

    @property
    def deadline_s(self) -> float | None: ...

    @property
    def output_tokens_so_far(self) -> int:
        """Tokens sampled up to now; they survive preemption."""

    @property
    def num_tokens(self) -> int:
        """Prompt and sampled tokens: what a recomputation has to prefill."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV lies in device memory, or on the host for a swapped request. Padding counts."""

    @property
    def num_tokens_to_compute(self) -> int:
        """What is left of its prefill, padding included; 1 for a request that decodes."""

    @property
    def num_blocks(self) -> int:
        """Device blocks held."""

    @property
    def is_decoding(self) -> bool:
        """In the batch, its prompt computed: the next step of it is one token."""

    @property
    def is_swapped(self) -> bool:
        """Its KV lies in host memory."""

    @property
    def num_preemptions(self) -> int: ...

    @property
    def promoted_at_tokens(self) -> int | None:
        """Sampled tokens when its queue last promoted it for having waited too long; None if it never did."""
