"""A request as the workload has it, as a router sees it, and as a policy sees it.

The true output length is known to `Request` alone, which the engine keeps to itself. Routers are given
`ArrivingRequest`s and policies `RequestView`s: objects that neither hold the length nor lead to it.
"""

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class PromptContent:
    """Content of a request's tokens, as far as it is known, for a prefix cache.

    `block_hashes` name the prompt's blocks of `hash_block_size` tokens, the last one perhaps partial. Equal hashes
    mean equal content up to and including that block. `prefix_tokens` leading tokens are shared by all requests of
    the same `prefix_group`. Prompt and answer are otherwise the first tokens of `conversation`, of which its next
    request has more. `output_token_ids` are the answer's, and no part of what a router sees. Without content, a
    request's tokens are its own.
    """

    block_hashes: tuple[int, ...] = ()
    hash_block_size: int = 0
    prefix_group: str | None = None
    prefix_tokens: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    output_token_ids: tuple[int, ...] = ()
    conversation: str | None = None


class Image(NamedTuple):
    """An image in a prompt: the `tokens` placeholders from `offset` on; equal identifiers are equal images.

    Every placeholder takes an embedding of the encoder, but for each `break_every`-th, which is text; 0: none is.
    """

    identifier: str
    offset: int
    tokens: int
    break_every: int = 0

    @property
    def end(self) -> int:
        """The first position behind it."""
        return self.offset + self.tokens

    @property
    def embeddings(self) -> int:
        """Embeddings that the encoder computes for it."""
        return self.embeddings_between(0, self.tokens)

    def embeddings_between(self, first: int, end: int) -> int:
        """Those of its placeholders from `first` to before `end`."""
        every = self.break_every
        return end - first if not every else end - end // every - (first - first // every)


class ArrivingRequest(NamedTuple):
    """A request as the client sent it: what a router sees.

    The fields are those of `Request`, without the length of the answer and the accepted drafts.
    """

    row: int
    request_id: str
    arrival_s: float
    input_tokens: int
    max_tokens: int
    priority: int
    class_name: str
    session_id: str | None
    predicted_output_tokens: int | None
    deadline_s: float | None
    content: PromptContent | None
    data_parallel_rank: int | None
    lora: str | None
    images: tuple[Image, ...]

    def prompt(self) -> "Request":
        """A request with this prompt, of whose answer nothing is known."""
        return Request._make((*self[:4], 1, *self[4:], None))


class Request(NamedTuple):
    """One request of a workload. `row` is its place in the workload: unique, and what breaks every tie.

    Smaller `priority` is served first, as in vLLM. `deadline_s` counts from the arrival. `max_tokens` is the cap on
    the output that the client sent; `output_tokens` is the length of the answer, at least 1 and at most the cap.
    `data_parallel_rank` is the rank that the client asks for, which the router `vllm_dp` gives it. `lora` names the
    adapter that serves it, None for the model itself. `images` lie in its prompt, in order, and do not overlap.
    `accepted_drafts` are those of its verify steps in turn, from the first again after the last, where they are known.
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
    data_parallel_rank: int | None = None
    lora: str | None = None
    images: tuple[Image, ...] = ()
    accepted_drafts: tuple[int, ...] | None = None

    def arriving(self) -> ArrivingRequest:
        """The request without its answer."""
        content = self.content
        if content is not None and content.output_token_ids:
            content = replace(content, output_token_ids=())
            return ArrivingRequest._make((*self[:4], *self[5:11], content, *self[12:15]))
        return tuple.__new__(ArrivingRequest, _WITHOUT_ANSWER(self))

    def reaching(self, now_s: float) -> "Request":
        """The request as whoever it reaches at `now_s` sees it: it arrives then, and its deadline is as much nearer."""
        if now_s == self.arrival_s:
            return self
        deadline_s = None if self.deadline_s is None else self.arrival_s + self.deadline_s - now_s
        return self._replace(arrival_s=now_s, deadline_s=deadline_s)


_WITHOUT_ANSWER = itemgetter(*[at for at, name in enumerate(Request._fields) if name in ArrivingRequest._fields])


class RequestView(Protocol):
    """A request as a policy sees it. Token counts are those before the step that is being planned."""

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
        """The client's cap on the output, and the only bound on it that a server knows."""

    @property
    def predicted_output_tokens(self) -> int | None: ...

    @property
    def deadline_s(self) -> float | None: ...

    @property
    def lora(self) -> str | None:
        """Its adapter."""

    @property
    def images(self) -> tuple[Image, ...]:
        """Images in its prompt, in order."""

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
        """Tokens left of its prefill, padding included; 1 for a decoding request."""

    @property
    def num_blocks(self) -> int:
        """Device blocks held."""

    @property
    def is_decoding(self) -> bool:
        """In the batch with its prompt computed: its next step is one token."""

    @property
    def is_swapped(self) -> bool:
        """Its KV lies in host memory."""

    @property
    def num_preemptions(self) -> int: ...

    @property
    def promoted_at_tokens(self) -> int | None:
        """Tokens sampled when its queue last promoted it for waiting too long; None without a promotion."""
