"""What each layer of a model keeps of a request, and the KV groups that layers which keep the same form (vLLM 0.33)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simulator.division import cdiv
from simulator.errors import InputError
from simulator.hardware.model import (
    ATTENTION,
    CHUNK,
    DENSE,
    EXPERTS,
    FULL,
    GATED_DELTA,
    LAYER_WORDS,
    MAMBA,
    STATES,
    WINDOW,
    Model,
)

# KV groups of a model whose layers keep different things of a request, as vLLM forms them (0.33).
#
# A layer keeps the keys and values of all tokens, of a window, of a chunk, or a state. Layers that keep the same
# share a group, and a group has one block table for each request. All groups take blocks from one pool, so a block
# has as many bytes in each of them. File and line numbers are those of vllm/v1/core/kv_cache_planning.py, except
# where they say another file.

LayerKind = Literal["full", "window", "chunked", "mamba"]
Layout = Literal["LBNHC", "LBHNC", "BLHNC"]
"""Order of the dimensions of the cache: L layers, B blocks, N tokens, H heads, C content."""

MORE_THAN_SMALLEST = 1.5
"""Groups are as large as the largest kind of layers where that is below so many times the smallest (:521)."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps of a request, in blocks of `block_size` tokens.

    Attention has `heads` of `head_bytes` a token, keys and values. `window` or `chunk` are tokens; a full layer keeps
    all tokens even where it attends to a window. A `mamba` layer, of whatever linear attention, keeps `state_bytes`,
    and with `checkpoint` can save its state inside a chunk at multiples of that many tokens.
    """

    kind: LayerKind
    block_size: int
    heads: int = 0
    head_bytes: int = 0
    window: int = 0
    chunk: int = 0
    state_bytes: int = 0
    checkpoint: int | None = None
    padded_bytes: int = 0  # of a page, where it is padded

    @property
    def content_bytes(self) -> int:
        """Bytes of a page without its padding."""
        return self.state_bytes if self.kind == "mamba" else self.block_size * self.heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a block of this layer."""
        return self.padded_bytes or self.content_bytes


Layers = Mapping[int, LayerCache]
"""Layers that have a cache, by their number."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with one block table, in the group's order. They share `cache`, but for heads where `mixes` is true."""

    layers: Mapping[int, LayerCache]
    cache: LayerCache
    mixes: bool = False

    def of_stage(self, stage: Layers) -> "KVGroup":
        """The part of the group that lies on one pipeline stage (:1416)."""
        own = {number: cache for number, cache in self.layers.items() if number in stage}
        return KVGroup(own, next(iter(own.values())) if own and self.mixes else self.cache, self.mixes)

    @property
    def page_bytes(self) -> int:
        """Bytes of a block of all its layers."""
        return sum(cache.page_bytes for cache in self.layers.values())


def kv_groups(layers: Layers, *, layout: Layout = "LBNHC", one_kind: bool = False) -> list[KVGroup]:
    """The groups of these layers (:1113). `one_kind`: windows and chunks keep all tokens, without the hybrid manager.

    InputError where the kinds cannot be brought together.
    """
    if one_kind:
        layers = _all_full(layers)
    if (alike := _merged(list(layers.values()))) is not None:
        return [KVGroup(dict(layers), alike)]
    if _need_same_slots(layers):
        return [KVGroup(dict(layers), next(iter(layers.values())), mixes=True)]
    if layout.startswith("B") and len({cache.page_bytes for cache in layers.values()}) > 1:
        return _packed(layers)
    return _equal_groups(_equal_pages(layers))


def _merged(caches: Sequence[LayerCache]) -> LayerCache | None:
    """The cache that these have in common; None where they differ. Full layers may have no window or one.

    (v1/kv_cache_interface.py:307, 663)
    """
    first = caches[0]
    if all(cache == first for cache in caches):
        return first
    if any(replace(cache, window=0, chunk=0) != replace(first, window=0, chunk=0) for cache in caches):
        return None
    if first.kind != "full":
        return None
    windows, chunks = ({getattr(cache, name) for cache in caches} - {0} for name in ("window", "chunk"))
    if len(windows) > 1 or len(chunks) > 1:
        raise InputError("layers of several windows cannot share a group that keeps all tokens")
    return replace(first, window=max(windows, default=0), chunk=max(chunks, default=0))


def _need_same_slots(layers: Layers) -> bool:
    """Return whether all layers need the same slots, if with other heads (v1/kv_cache_interface.py:1348)."""
    first = next(iter(layers.values()))
    if any((cache.kind, cache.block_size) != (first.kind, first.block_size) for cache in layers.values()):
        return False
    if first.kind == "full":
        return True
    if first.kind == "mamba":
        return len({(cache.page_bytes, cache.checkpoint) for cache in layers.values()}) == 1
    return len({(cache.window, cache.chunk) for cache in layers.values()}) == 1


def _all_full(layers: Layers) -> Layers:
    """Windows and chunks as full attention (:703); InputError beside layers with a state."""
    kinds = {cache.kind for cache in layers.values()}
    if len(kinds) > 1 and "full" in kinds:
        sizes = {cache.block_size for cache in layers.values() if cache.kind == "full"}
        size = sizes.pop() if len(sizes) == 1 else 0
        layers = {
            number: replace(cache, kind="full", block_size=size or cache.block_size)
            if cache.kind in ("window", "chunked")
            else cache
            for number, cache in layers.items()
        }
    if _merged(list(layers.values())) is None and not _need_same_slots(layers):
        raise InputError(
            "without the hybrid KV cache manager all layers must keep the same, and these cannot",
            hint="leave disable_hybrid_kv_cache_manager out",
        )
    return layers


def _equal_pages(layers: Layers) -> Layers:
    """Layers whose pages are equal: by larger blocks where that goes out, else by padding (:346)."""
    largest = max(cache.page_bytes for cache in layers.values())
    equal = {}
    for number, cache in layers.items():
        bytes_now = cache.page_bytes
        if bytes_now == largest:
            equal[number] = cache
        elif cache.kind != "mamba" and largest % bytes_now == 0:
            equal[number] = replace(cache, block_size=cache.block_size * (largest // bytes_now))
        else:
            equal[number] = replace(cache, padded_bytes=largest)
    return equal


def _equal_groups(layers: Layers) -> list[KVGroup]:
    """Groups of as many layers each, the last of a kind with fewer (:411)."""
    buckets: list[list[int]] = []
    for number, cache in layers.items():
        for bucket in buckets:
            if _alike([*(layers[other] for other in bucket), cache]):
                bucket.append(number)
                break
        else:
            buckets.append([number])
    smallest, largest = min(map(len, buckets)), max(map(len, buckets))
    size = largest if largest < smallest * MORE_THAN_SMALLEST else smallest
    groups = []
    for bucket in buckets:
        count = cdiv(len(bucket), size)
        for place in range(count):
            own = {number: layers[number] for number in bucket[place::count]}
            alike = _merged(list(own.values()))
            assert alike is not None
            groups.append(KVGroup(own, alike))
    return groups


def _alike(caches: Sequence[LayerCache]) -> bool:
    try:
        return _merged(caches) is not None
    except InputError:
        return False


def _packed(layers: Layers) -> list[KVGroup]:
    """Groups of unequal pages, side by side in each block, where blocks are the outermost dimension (:914)."""
    buckets: list[dict[int, LayerCache]] = []
    for number, cache in layers.items():
        for bucket in buckets:
            if _need_same_slots({**bucket, number: cache}):
                bucket[number] = cache
                break
        else:
            buckets.append({number: cache})
    by_page = [_by_page(bucket) for bucket in buckets]
    balanced = [len({len(numbers) for numbers in pages.values()}) == 1 for pages in by_page]
    most = [max(Counter(cache.page_bytes for cache in bucket.values()).values()) for bucket in buckets]
    rows = list(zip(buckets, by_page, balanced, most, strict=True))
    least = max([n for _, pages, even, n in rows if even and len(pages) > 1], default=0)
    repeats = _closest_divisor([n for _, _, even, n in rows if even], least) if least else None

    def splits(even: bool, count: int) -> int:
        return cdiv(count, repeats) if even and repeats is not None else 1

    def holds_states(bucket: Layers) -> bool:
        kind = next(iter(bucket.values())).kind
        return kind == "mamba" or (repeats is None and kind == "window")

    anchor = max(
        _widest(pages, len(bucket) if holds_states(bucket) else splits(even, n)) for bucket, pages, even, n in rows
    )
    groups = []
    for bucket, pages, even, n in rows:
        count = splits(even, n)
        if holds_states(bucket):
            fit = max(anchor // next(iter(bucket.values())).page_bytes, 1)
            count = max(count, cdiv(len(bucket), fit))
        patterns = list(zip(*pages.values(), strict=False))
        for place in range(count):
            numbers = list(bucket) if count == 1 else [x for pattern in patterns[place::count] for x in pattern]
            own = {number: bucket[number] for number in numbers}
            groups.append(KVGroup(own, next(iter(own.values())), mixes=True))
    return groups


def _by_page(bucket: Layers) -> dict[int, list[int]]:
    """Layers by the bytes of their pages."""
    pages: dict[int, list[int]] = {}
    for number, cache in bucket.items():
        pages.setdefault(cache.page_bytes, []).append(number)
    return pages


def _widest(pages: Mapping[int, Sequence[int]], count: int) -> int:
    """Bytes of the largest of the `count` groups that a bucket is split into."""
    return sum(cdiv(len(numbers), count) * page for page, numbers in pages.items())


def _closest_divisor(values: Sequence[int], least: int) -> int:
    """The divisor from `least` on that pads these values the least, of equal ones the largest (:868)."""
    if least > max(values):
        return least
    return min(range(max(1, least), max(values) + 1), key=lambda d: (sum(-value % d for value in values), -d))


# What each layer of a model keeps of a request, and whether its kinds of layers go with its other dimensions.

_ANY_TOKEN = 1  # a state of Mamba 2 can be saved at any token (mamba_mixer2.py:1109)


def state_bytes(model: Model, tensor_parallel: int) -> int:
    """Bytes of one layer's state on each GPU: the inputs of its convolution, and a matrix for each head.

    vLLM's `gated_delta_net_state_shape` and `mamba2_state_shape` (model_executor/layers/mamba/mamba_utils.py of 0.33).
    """
    keys, values = model.linear_key_heads, model.linear_value_heads
    if values % tensor_parallel:
        raise InputError(
            f"tensor_parallel {tensor_parallel} does not divide the {values} heads of {model.name}'s linear attention"
        )
    if keys % tensor_parallel:
        keys = tensor_parallel  # a group of keys for each GPU
    channels = (2 * keys * model.linear_head_dim + values * model.value_head_dim) // tensor_parallel
    matrix = values // tensor_parallel * model.value_head_dim * model.linear_head_dim
    return (model.linear_conv_kernel_dim - 1) * channels * 2 + matrix * model.state_dtype_bytes


def layer_caches(model: Model, tensor_parallel: int) -> list[LayerCache | None]:
    """What each layer keeps on each GPU; None for layers that keep nothing. Block sizes are the server's (0)."""
    latent = model.kv_lora_rank + model.rope_head_dim
    heads = 1 if model.kv_lora_rank else model.local_kv_heads(tensor_parallel)
    width = (latent if model.kv_lora_rank else 2 * model.head_dim) * model.kv_dtype_bytes + model.index_bytes_per_token
    state = state_bytes(model, tensor_parallel) if model.has_states else 0
    kept: dict[str, LayerCache | None] = {
        FULL: LayerCache("full", 0, heads, width),
        WINDOW: LayerCache("window", 0, heads, width, window=model.sliding_window),
        CHUNK: LayerCache("chunked", 0, heads, width, chunk=model.attention_chunk_size),
        GATED_DELTA: LayerCache("mamba", 0, state_bytes=state),
        MAMBA: LayerCache("mamba", 0, state_bytes=state, checkpoint=_ANY_TOKEN),
        DENSE: None,
        EXPERTS: None,
    }
    return [kept[letter] for letter in model.kinds_of_layers]


def check_layer_types(model: Model) -> None:
    """Raise InputError unless the kinds of layers go with the model's other dimensions."""
    unknown = sorted(set(model.layer_types) - set(LAYER_WORDS))
    known = ", ".join(f"{letter} {word}" for letter, word in LAYER_WORDS.items())
    if unknown:
        raise InputError(f"model: layer_types has {unknown[0]!r}", hint=f"allowed: {known}")
    found = Counter(model.kinds_of_layers)
    needed = {
        WINDOW: "sliding_window",
        CHUNK: "attention_chunk_size",
        **dict.fromkeys(STATES, "linear_value_heads"),
    }
    for letter, key in needed.items():
        if found[letter] and not getattr(model, key):
            raise InputError(f"model: layers of the kind {letter} ({LAYER_WORDS[letter]}) need {key}")
    if model.layer_types:
        for letter, key in {WINDOW: "sliding_window", CHUNK: "attention_chunk_size"}.items():
            if getattr(model, key) and not found[letter]:
                raise InputError(f"model: {key} without a layer that has it", hint=f"{letter} in layer_types")
        if model.full_attention_layers not in (0, found[FULL]):
            what = f"full_attention_layers is {model.full_attention_layers}, layer_types has {found[FULL]}"
            raise InputError(f"model: {what}", hint="leave full_attention_layers out")
        if model.linear_layers != found[GATED_DELTA]:
            what = f"linear_layers is {model.linear_layers}, layer_types has {found[GATED_DELTA]} of the kind G"
            raise InputError(f"model: {what}")
        if not any(found[letter] for letter in ATTENTION):
            raise InputError("model: layer_types has no layer with attention", hint=f"allowed: {known}")
    if model.has_states:
        for key in ("linear_key_heads", "linear_head_dim", "linear_conv_kernel_dim"):
            if getattr(model, key) < 1:
                raise InputError(f"model: layers with a state need {key}")
        if model.state_dtype_bytes not in (1, 2, 4):
            raise InputError(f"model: state_dtype_bytes must be 1, 2 (bf16) or 4 (fp32), not {model.state_dtype_bytes}")
