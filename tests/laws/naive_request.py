"""A request of the second engine (`tests.laws.naive_engine`), which keeps every token's time."""

from dataclasses import dataclass, field
from math import nan

from simulator.division import cdiv
from simulator.request import Request


@dataclass(eq=False)
class NaiveRequest:
    """A request with everything that ever happened to it; as a `RequestView` it is what the policy sees."""

    request: Request
    block_size: int
    state: str = "waiting"  # prefilling decoding swapped finished rejected
    num_computed_tokens: int = 0
    token_s: list[float] = field(default_factory=list)
    reserved_tokens: int = 0
    padding_tokens: int = 0
    extra_context: int = 0  # computed while held
    scheduled_s: float = nan
    released_s: float = nan
    num_preemptions: int = 0
    promoted_at_tokens: int | None = None
    recomputed_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    waits: list[tuple[float, float, bool]] = field(default_factory=list)
    left_s: float = nan
    placeholders: int = 0  # tokens that are being sampled, where that is known beforehand
    lost_tokens: int = 0  # by the last preemption
    plans_to_free: int = 0  # plans until its blocks come free, where those of finished requests do so late
    reason: str | None = None

    def __post_init__(self) -> None:
        request = self.request
        self.row, self.request_id, self.arrival_s = request.row, request.request_id, request.arrival_s
        self.input_tokens, self.max_tokens = request.input_tokens, request.max_tokens
        self.priority, self.class_name = request.priority, request.class_name
        self.predicted_output_tokens, self.deadline_s = request.predicted_output_tokens, request.deadline_s
        self.lora, self.images = request.lora, request.images
        self.true_output_tokens = min(request.output_tokens, request.max_tokens)

    @property
    def output_tokens_so_far(self) -> int:
        return len(self.token_s) + self.placeholders

    @property
    def num_tokens(self) -> int:
        return self.input_tokens + self.output_tokens_so_far

    @property
    def num_tokens_to_compute(self) -> int:
        return self.padding_tokens + self.num_tokens - self.num_computed_tokens

    @property
    def num_blocks(self) -> int:
        is_free = self.released_s == self.released_s and not self.plans_to_free
        if is_free or self.state in ("waiting", "swapped", "rejected"):
            return 0
        return cdiv(max(self.num_computed_tokens, self.reserved_tokens), self.block_size)

    @property
    def is_decoding(self) -> bool:
        return self.state == "decoding"

    @property
    def is_swapped(self) -> bool:
        return self.state == "swapped"
