"""The endpoint picker of llm-d and of the Gateway API Inference Extension, in its default profile.

Scores and weights are those of llm-d-router: `simulator/fleet/router.py` names the files of the scores, the
weights 2, 2 and 3 stand in pkg/epp/config/loader/defaults.go (`loadDefaultConfig`, 0b59e4ed), in whose order they are
added up. What it remembers of prompts is that of its `approx-prefix-cache-producer`
(pkg/epp/framework/plugins/requestcontrol/dataproducer/approximateprefix/, 09a534fc): blocks of 64 tokens at least
(`minBlockSizeTokens` in plugin.go) of the first 131,072 tokens (`defaultMaxPrefixTokens` in types.go). Of each server
it keeps as many blocks as the server says to have (`autoTune`, `makeserver`), or `lruCapacityPerServer`. A prompt's
first block counts as used before its last (`Add` in indexer.go), so it is the first to be forgotten; what a server has
need not be a prefix (`matchLongestPrefix`). A last block that is not full counts in the prompt's blocks; here it is
never found again. It scrapes its metrics every 50 ms: the usual `signal_interval_s` here.

Where prefill and decode are apart, it picks as its `disagg-profile-handler` does (pkg/epp/framework/plugins/scheduling/
profilehandler/disagg/, 02d6c2ee): the replica that decodes first, by this same sum, then one that prefills, if as many
tokens of the prompt as `nonCachedTokens` are not known to be there (prefix_based_pd_decider.go, 00ae0814), or always
(always_disagg_pd_decider.go). Both picks see the memory as it was before them, and both are remembered (`PreRequest`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.prompt_table import BlockSize, PromptTable, Stretch
from simulator.fleet.router import HighestInTurn, kv_scores, lora_scores, prefix_scores, queue_scores, weighted_sum
from simulator.parameters import Factor, check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class LlmD:
    """Give a request to the replica of the highest score; equals take turns.

    score = prefix x share of the prompt's blocks that went there before + queue x (most waiting - waiting) / (most -
    fewest waiting) + kv x free / usable KV blocks + lora x (1 where requests of its adapter are, 0.8 where less
    than half of its `max_loras` are used, else 0).
    """

    usual_interval_s: ClassVar = 0.05

    prefix: Annotated[Factor, doc("weight of the share of the prompt that went there before")] = 3.0
    queue: Annotated[Factor, doc("weight of a short queue")] = 2.0
    kv: Annotated[Factor, doc("weight of free KV blocks")] = 2.0
    lora: Annotated[Factor, doc("weight of having requests of the adapter")] = 0.0
    max_prefix_tokens: Annotated[
        int, Ge(1), Le(10**9), Unit("tokens"), doc("tokens of a prompt that are looked at")
    ] = 131_072
    non_cached_tokens: Annotated[
        int, Ge(0), Le(10**9), Unit("tokens"),
        doc("prefill and decode apart: fewer are computed where the request decodes; 0: none"),
    ] = 0  # fmt: skip
    block_size: BlockSize = 64
    max_blocks: Annotated[
        int, Ge(0), Le(10**9), Unit("blocks"), doc("blocks remembered of a replica; 0: as many as it has of its own")
    ] = 0
    _table: PromptTable = field(init=False, repr=False)
    _picker: HighestInTurn = field(init=False, repr=False, default_factory=HighestInTurn)
    _seen: tuple[int, dict[int, int]] = field(init=False, repr=False, default=(-1, {}))

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (self.prefix or self.queue or self.kv or self.lora):
            raise ValueError("prefix, queue, kv and lora are 0: at least one must be above")
        self._table = PromptTable(self.block_size, self.max_blocks, keeps_ends=True)

    def for_decode(self) -> LlmD:
        """The router of the side that decodes: one for both, which it asks first."""
        return self

    def prefills_apart(self, request: ArrivingRequest, number: int) -> bool:
        """Whether the request that this replica was just chosen for is prefilled elsewhere."""
        known = self._seen[1].get(number, 0) * self.block_size
        return request.input_tokens - known >= self.non_cached_tokens

    def uncached_tokens(self, request: ArrivingRequest, number: int) -> int:
        """The tokens of a prompt that this replica, just chosen for it, was not sent before; of whole blocks."""
        known = self._seen[1].get(number, 0) * self.block_size
        looked_at = self._blocks(request) * self.block_size
        return looked_at - known + max(0, request.input_tokens - looked_at)

    def _blocks(self, request: ArrivingRequest) -> int:
        """Blocks of a prompt that are looked at, one that is not full among them."""
        return min(self.max_prefix_tokens // self.block_size, -(-request.input_tokens // self.block_size))

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        prompt = self._table.stretches(request, self.max_prefix_tokens // self.block_size) if self.prefix else []
        blocks = self._blocks(request)
        scores = [
            (self.queue, queue_scores(replicas)),
            (self.kv, kv_scores(replicas)),
            (self.prefix, prefix_scores(self._held(request, prompt), blocks, replicas)),
        ]
        if self.lora:
            scores.append((self.lora, lora_scores(request.lora, replicas)))
        chosen = self._picker.pick(weighted_sum(scores), replicas)
        self._table.add(prompt, chosen.index, most=self.max_blocks or chosen.num_blocks)
        return chosen

    def _held(self, request: ArrivingRequest, prompt: list[Stretch]) -> dict[int, int]:
        """The blocks of the prompt that each replica was sent before this request."""
        if self._seen[0] != request.row:
            self._seen = request.row, self._table.held(prompt)
        return self._seen[1]
