"""Blocks, capacity and concurrency of a KV cache with several groups, as vLLM plans them at start-up (0.33).

File and line numbers are those of vllm/v1/core/kv_cache_planning.py, except where they say another file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm

from simulator.division import cdiv
from simulator.errors import InputError
from simulator.hardware.kv_groups import KVGroup, LayerCache, Layout, kv_groups

KERNEL_BLOCK = 16
"""Tokens of the smallest block that attention kernels of NVIDIA GPUs read."""

GIB = 2**30


class NoRoomError(InputError):
    """A request of the longest context does not fit. `needed` and `available` are bytes of one stage's GPU."""

    def __init__(self, needed: int, available: int, max_model_len: int) -> None:
        what = f"one request of max_model_len {max_model_len} needs {needed / GIB:.2f} GiB of KV cache"
        super().__init__(
            f"{what}, {max(0, available) / GIB:.2f} are there", hint="a smaller max_model_len, or more GPUs"
        )
        self.needed = needed
        self.available = available


@dataclass(frozen=True, slots=True)
class KVSettings:
    """A server's settings that its KV groups depend on; names are vLLM's.

    `batches_in_flight` is 2 with asynchronous scheduling, else 1. `state_alignment`: a kernel that can save a state
    inside a chunk does it at multiples of so many tokens (64 for gated delta nets, 1 for Mamba 2); None where it
    cannot.
    """

    max_model_len: int
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    batches_in_flight: int = 1
    enable_prefix_caching: bool = True
    prefix_match_unit: int | None = None
    layout: Layout = "LBNHC"
    disable_hybrid_kv_cache_manager: bool = False
    state_alignment: int | None = None

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that are scheduled and may not have been computed yet (config/vllm.py:601)."""
        return self.batches_in_flight * self.max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class KVPlan:
    """The KV cache of one replica. `bytes_per_block` are those of each stage; `num_blocks` holds the null block."""

    groups: tuple[KVGroup, ...]
    num_blocks: int
    bytes_per_block: tuple[int, ...]
    scheduler_block_size: int
    hash_block_size: int
    settings: KVSettings

    @property
    def block_size(self) -> int:
        """Tokens of the smallest group's block: `cache_config.block_size` (v1/engine/core.py:335)."""
        return min(group.cache.block_size for group in self.groups)

    def blocks_at(self, tokens: int) -> int:
        """Blocks of all groups that one request of so many tokens may come to hold, its prefill included."""
        in_flight = self.settings.in_flight_tokens
        return sum([group_blocks(group, tokens, in_flight, self.settings) for group in self.groups])

    def blocks_of(self, tokens: int) -> int:
        """Blocks of all groups, at most, of a request that decodes with a context of so many tokens."""
        return sum([min(group_blocks(group, tokens, 0, self.settings), _whole(group, tokens)) for group in self.groups])

    @property
    def max_concurrency(self) -> float:
        """Requests of the longest context that the cache holds (v1/core/kv_cache_utils.py:1061)."""
        return self.num_blocks / self.blocks_at(self.settings.max_model_len)

    @property
    def capacity_tokens(self) -> int:
        """Tokens of the cache, as vLLM logs them: concurrency times the longest context."""
        return int(self.max_concurrency * self.settings.max_model_len)


def group_blocks(group: KVGroup, tokens: int, in_flight: int, settings: KVSettings) -> int:
    """Blocks of a group that one request of so many tokens may come to hold (v1/kv_cache_interface.py:643 ff.)."""
    return max(_blocks(cache, tokens, in_flight, settings) for cache in group.layers.values() or [group.cache])


def _whole(group: KVGroup, tokens: int) -> int:
    """Blocks of all these tokens; of a state that prefix caching keeps, its last two."""
    return 2 if group.cache.kind == "mamba" else cdiv(tokens, group.cache.block_size)


def _blocks(cache: LayerCache, tokens: int, in_flight: int, settings: KVSettings) -> int:
    if cache.kind == "window":
        return cdiv(min(cache.window - 1 + in_flight, tokens), cache.block_size) + 1
    if cache.kind == "chunked":
        return cdiv(min(cache.chunk + in_flight, tokens), cache.block_size)
    if cache.kind == "mamba":
        return 2 + (cache.checkpoint is not None) if settings.enable_prefix_caching else 1
    return cdiv(tokens, cache.block_size)


def plan_kv(
    layers: Sequence[LayerCache | None],
    memory: Sequence[int],
    settings: KVSettings,
    split: Sequence[int] | None = None,
    *,
    num_gpu_blocks: int | None = None,
) -> KVPlan:
    """Plan the cache of these layers (None: a layer without one), `split` over stages with so many bytes for KV each.

    Block sizes of the layers are replaced by those that the settings and states lead to. `num_gpu_blocks` is the
    count of every stage instead of its memory. InputError where kinds of layers or block sizes do not go together;
    `NoRoomError` where not even one request of the longest context fits.
    """
    sized = {number: cache for number, cache in enumerate(_sized(layers, settings)) if cache is not None}
    groups = kv_groups(sized, layout=settings.layout, one_kind=settings.disable_hybrid_kv_cache_manager)
    stages, first = [], 0
    for count in split or [len(layers)]:
        own = {number: sized[number] for number in range(first, first + count) if number in sized}
        stages.append([group.of_stage(own) for group in groups])
        first += count
    pages = [max(group.page_bytes for group in stage) for stage in stages]
    if num_gpu_blocks is not None:
        memory = [num_gpu_blocks * page for page in pages]
    for stage, page, given in zip(stages, pages, memory, strict=True):
        needed = page * sum(group_blocks(g, settings.max_model_len, settings.in_flight_tokens, settings) for g in stage)
        if needed > given - page or given <= page:
            raise NoRoomError(needed, given - page, settings.max_model_len)
    blocks = min(given // page for given, page in zip(memory, pages, strict=True))
    told = tuple(KVGroup(whole.layers, own.cache, whole.mixes) for whole, own in zip(groups, stages[0], strict=True))
    scheduled, hashed = block_sizes(told, settings)
    return KVPlan(told, blocks, tuple(pages), scheduled, hashed, settings)


def _sized(layers: Sequence[LayerCache | None], settings: KVSettings) -> Sequence[LayerCache | None]:
    """Layers with their block sizes, attention's raised until a page of it holds a state (platforms/interface.py:940).

    A state is padded to that page. Beside prefix caching, states are kept at the ends of blocks; without it one block
    of a state serves the longest context (model_executor/models/config.py:760).
    """
    caches = settings.enable_prefix_caching
    size, padded = settings.block_size, 0
    state_bytes = max([cache.state_bytes for cache in layers if cache is not None], default=0)
    attention = next((cache for cache in layers if cache is not None and cache.kind == "full"), None)
    raises = any(cache is not None and cache.kind == "mamba" and not cache.block_size for cache in layers)
    if raises and attention is not None:
        unit = max(KERNEL_BLOCK, size)
        if caches:
            unit = lcm(unit, settings.state_alignment or 1)
        token_bytes = attention.heads * attention.head_bytes
        raised = unit * cdiv(state_bytes, unit * token_bytes)
        size = max(size, KERNEL_BLOCK * cdiv(raised, KERNEL_BLOCK))
        padded = size * token_bytes
    grid = size
    if settings.prefix_match_unit and settings.state_alignment:
        grid = lcm(settings.prefix_match_unit, settings.state_alignment)
    saves = raises and caches and settings.state_alignment is not None
    return [
        cache
        if cache is None
        else replace(
            cache,
            block_size=(cache.block_size or size) if caches else settings.max_model_len,
            padded_bytes=padded if padded != cache.state_bytes else 0,
            checkpoint=grid if saves else cache.checkpoint,
        )
        if cache.kind == "mamba"
        else replace(cache, block_size=cache.block_size or size)
        for cache in layers
    ]


def block_sizes(groups: Sequence[KVGroup], settings: KVSettings) -> tuple[int, int]:
    """Tokens of the scheduler's block, to which hits are cut, and of a block's hash (v1/core/kv_cache_utils.py:816)."""
    sizes = [group.cache.block_size for group in groups]
    unit, caches = settings.prefix_match_unit, settings.enable_prefix_caching
    if len(sizes) == 1:
        if caches and unit not in (None, sizes[0]):
            what = f"prefix_match_unit {unit}: hits of a model with one KV group end at blocks of {sizes[0]}"
            raise InputError(what, hint="leave prefix_match_unit out")
        return sizes[0], sizes[0]
    scheduled = lcm(*sizes)
    if not caches:
        return scheduled, scheduled
    hashed = unit or gcd(*sizes)
    if any(size % hashed for size in sizes):
        raise InputError(f"prefix_match_unit {hashed} must divide the blocks of all KV groups: {sorted(set(sizes))}")
    return scheduled, hashed
