"""A profile of any model from tables: the products of its layers, its heads, its experts, its all-reduces.

What the tables lack is refused by name, never left out: a part that is not there would cost nothing. Each part says how
its times were come by (`PartSource`): measured at that size, interpolated, extrapolated, estimated or assumed.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.model import NVFP4_BYTES
from simulator.hardware.models import Model
from simulator.timing.profile.kernels import Attention, DecodeTable, PrefillTable, RoutedExperts, Skew
from simulator.timing.profile.profile_schema import Profile, expert_precision, kv_precision, precision, shapes
from simulator.timing.profile.surface import Array, Curve, Surface, decode_features, flat, mesh, scaled
from simulator.timing.tables.all_reduces import all_reduces, with_norms
from simulator.timing.tables.assumed import LAUNCH_US, MOST_ROWS, MOST_TOKENS, elementwise, sampler
from simulator.timing.tables.attention import (
    PACKED,
    Found,
    beside_factor,
    decode_physics,
    decode_us,
    estimated_skew,
    find_table,
    prompt_counts,
    prompt_physics,
    prompt_us,
)
from simulator.timing.tables.experts import (
    AUTO,
    EVEN,
    ExpertTables,
    FoundExperts,
    beside,
    chooses_experts,
    errors_of_experts,
    has_experts,
    routed_experts,
    seen_beside,
)
from simulator.timing.tables.latent import latent_attention
from simulator.timing.tables.linear import linear_attention
from simulator.timing.tables.products import (
    BLOCKS,
    WEIGHT_BYTES,
    feed_forward,
    layer_products,
    linear_products,
    product_curve,
    with_blocks,
)
from simulator.timing.tables.table_schema import (
    ASSUMED,
    BORROWED,
    ESTIMATED,
    EXTRAPOLATED,
    INTERPOLATED,
    MEASURED,
    NOTHING,
    UNEQUAL,
    HeadTable,
    PartSource,
    Tables,
    as_under,
    engine_of,
    first,
    marked,
    with_products,
)

ASSUMED_HOST_S = 300e-6
"""Seconds for which a GPU waits between two steps of an engine that schedules asynchronously: as in fitted profiles."""
DATA_CENTRE = ("h100", "h200", "b200", "b300", "gb200", "gb300")
UNMEASURED = "no public table holds dense products of int4 or int8 weights"
"""Why products of weights that are widened to bf16 on the way are in no tables."""


@lru_cache(maxsize=64)
def compose(
    tables: Tables,
    model: Model,
    gpu: Gpu,
    ranks: int,
    load: str = EVEN,
    backend: str = AUTO,
    lenders: tuple[Tables, ...] = (),
    shares_experts: bool = False,
    fused: Tables | None = None,
) -> Profile:
    """The profile of a model on `ranks` GPUs in tensor parallel. InputError that names a part that is missing.

    `load` says how tokens spread over experts, one of `experts.LOADS`, `backend` whose kernels compute them. A part
    that the tables lack comes from the first of the `lenders` that has it. With `shares_experts` each GPU holds whole
    experts, otherwise a part of the width of all. `fused` are the tables whose all-reduces hold the norms of small
    steps; None where norms are kernels of their own.
    """
    if model.kv_lora_rank and precision(model) == BLOCKS:
        tables = with_blocks(tables)
    tables = with_products(tables, (precision(model), "bf16"), lenders)
    parts: list[PartSource] = []
    layer = _products(tables, model, ranks, parts)
    experts, read = None, [tables.document]
    if model.experts:
        near = _tables_of_experts(tables, model, backend, lenders)
        way = (load, backend, shares_experts)
        experts, found = _experts(tables, near, model, ranks, way, parts, layer)
        read.append({**found.document, "errors": errors_of_experts(found, model)})
    around = elementwise(model, gpu, ranks)
    for name in _held_elsewhere(engine_of(tables.software), model, tables.gpu, ranks):
        around.pop(name, None)
    head = _product(tables, "bf16", -(-model.vocab // ranks), model.hidden, "lm_head", parts, MOST_ROWS)
    skew = None
    if model.kv_lora_rank:
        (attention, more, latent), lender = first(
            tables, lenders, lambda each: latent_attention(each, tables, model, gpu, ranks)
        )
        parts += marked(more, tables, lender.software)
        read.append(latent)
    else:
        (attention, more), lender = first(tables, lenders, lambda each: _attention(each, model, ranks))
        parts += marked(more, tables, lender.software)
        skew = _skew(tables, model, ranks, attention, parts)
    reduce = None
    if ranks > 1:
        reduce, more = all_reduces(tables, lenders, model, gpu, ranks)
        parts += more
        if fused is not None and "norm" in around:
            reduce, around["norm"], more = with_norms(reduce, around["norm"], fused, model, gpu, ranks)
            parts += more
    parts.append(PartSource(", ".join(around), ASSUMED, "from bytes and launches"))
    parts.append(PartSource("sampler", ASSUMED, "as measured on other cards"))
    return Profile(
        name=tables.name,
        model=model.name,
        gpu=tables.gpu,
        tensor_parallel=ranks,
        layers=model.layers,
        host_s=ASSUMED_HOST_S,
        host_per_seq_s=0.0,
        layer_curves={**layer, **around},
        step_curves={},
        row_curves={"lm_head": head, "sampler": sampler(model, gpu)},
        attention=attention,
        skew=skew,
        experts=experts,
        all_reduce=reduce,
        document=_document(tables, model, parts, read),
    )


def _held_elsewhere(engine: str, model: Model, gpu: str, ranks: int) -> list[str]:
    """Return the element-wise operators that other parts hold.

    All-reduces that add the residual and normalise: TensorRT-LLM's (`AllReduceFusionOp.RESIDUAL_RMS_NORM`), and by
    default SGLang's on Hopper and Blackwell for DeepSeek-V3, Kimi, gpt-oss, GLM-4.5 and Qwen3's experts
    (`enable_flashinfer_allreduce_fusion`, server_args.py). Attention that was measured with its write of the cache, and
    TensorRT-LLM's with rope too (collector/sglang/collect_attn.py and collector/trtllm of ai-dynamo/aiconfigurator).
    """
    if engine == "TensorRT-LLM":
        return ["rope", "cache_write", *(["norm"] if ranks > 1 else [])]
    if engine != "SGLang":
        return []
    others = model.has_states or model.index_topk or model.qk_norm_whole
    fuses = gpu in DATA_CENTRE and model.experts > 0 and not others
    return ["cache_write", *(["norm"] if fuses and ranks > 1 else [])]


def _document(
    tables: Tables, model: Model, parts: list[PartSource], read: list[Mapping[str, Any]]
) -> Mapping[str, Any]:
    return {
        "dtype": precision(model),
        **({"expert_dtype": expert_precision(model)} if model.experts else {}),
        "kv_dtype": kv_precision(model),
        "dimensions": shapes(model),
        "software": tables.software,
        "sources": [source for document in read for source in document.get("sources", ())],
        "host": {"step_s": ASSUMED_HOST_S, "seq_s": 0.0, "from": ASSUMED},
        "errors": {kind: errors for document in read for kind, errors in document.get("errors", {}).items()},
        "latent": bool(model.kv_lora_rank),
        "parts": [(part.name, part.how, part.words) for part in parts],
    }


def _products(tables: Tables, model: Model, ranks: int, parts: list[PartSource]) -> dict[str, Curve]:
    dtype = precision(model)
    if dtype not in tables.products:
        left = tables.document.get("left_out", {}).get(f"products {dtype}", "")
        if model.multiplied_in == "bf16" and dtype not in WEIGHT_BYTES:
            left = UNMEASURED
        what = f"{tables.name} has no matrix products of {dtype}" + (f": {left}" if left else "")
        hint = f"measured: {', '.join(tables.products)}; or kind: roofline"
        raise InputError(
            what, hint=f"weights in nvfp4 have {NVFP4_BYTES} bytes; {hint}" if "in nvfp4" in dtype else hint
        )
    found = {op: _product(tables, dtype, n, k, op, parts) for op, (n, k) in layer_products(model, ranks).items()}
    if linear := model.state_layers / model.layers:
        attention = model.attention_layers / model.layers
        shares = {
            "qkv": attention,
            "output_projection": attention,
            "gate_up": model.dense_share,
            "down": model.dense_share,
        }
        found = {op: curve if shares[op] == 1.0 else scaled(curve, shares[op]) for op, curve in found.items()}
        for op, (n, k) in linear_products(model, ranks).items():
            found[op] = scaled(_product(tables, dtype, n, k, op, parts), linear)
    return found


def _tables_of_experts(tables: Tables, model: Model, backend: str, lenders: tuple[Tables, ...]) -> list[ExpertTables]:
    """The tables of experts beside these: those that hold the model's precision first, the nearest version before."""
    near = []
    for each in (tables, *lenders):
        near += [] if each.folder is None else beside(each.folder, each.gpu, each.software)
    if not near:
        what = f"{model.name} has {model.experts} experts in a layer, of which no kernel times lie beside {tables.name}"
        raise InputError(what, hint="kind: roofline, or a profile fitted to rows of the kind experts")
    return [each for each in near if has_experts(each, model, backend)] or near[:1]


def _experts(
    tables: Tables,
    near: list[ExpertTables],
    model: Model,
    ranks: int,
    how: tuple[str, str, bool],
    parts: list[PartSource],
    layer: dict[str, Curve],
) -> tuple[RoutedExperts, ExpertTables]:
    """The routed experts, and the tables that they come from. What stands beside them goes into `layer`, as a mean over
    all layers: router, choice of experts, experts that every token uses, and the feed-forward of layers without.
    """
    found, (routed, alone) = _best(near, model, ranks, how, engine_of(tables.software))
    words = f"{alone.words}, {alone.kernel}"
    if found.software != tables.software:
        words = as_under(words, found.software)
    is_lent = engine_of(found.software) != engine_of(tables.software)
    parts.append(PartSource("experts", BORROWED if is_lent else alone.how, words))
    others = {"router": scaled(_product(tables, "bf16", model.experts, model.hidden, "router", parts), routed.share)}
    if not chooses_experts(alone.kernel):
        others["top_k"] = scaled(Curve((1.0, MOST_TOKENS), (LAUNCH_US, LAUNCH_US), 0.0), routed.share)
        parts.append(PartSource("top_k", ASSUMED, "a launch"))
    dtype = precision(model)

    def products(name: str, width: int, share: float) -> dict[str, Curve]:
        sizes = feed_forward(model, width, ranks) if width and share else {}
        return {
            f"{name}_{op}": scaled(_product(tables, dtype, n, k, f"{name}_{op}", parts), share)
            for op, (n, k) in sizes.items()
        }

    shared = products("shared", model.shared_experts * model.intermediate, routed.share)
    if shared:
        others["shared_experts"] = seen_beside(list(shared.values()), routed, engine_of(tables.software))
        parts.append(PartSource("shared_experts", ESTIMATED, "hidden behind the routed ones in small batches"))
    layer |= others | products("dense", model.dense_intermediate, 1.0 - routed.share)
    return routed, found


def _best(
    near: list[ExpertTables], model: Model, ranks: int, how: tuple[str, str, bool], engine: str
) -> tuple[ExpertTables, tuple[RoutedExperts, FoundExperts]]:
    """The first tables that have such experts; of another engine's, those that measured this size before others."""
    extrapolated = None
    for each in near:
        try:
            found = routed_experts(each, model, ranks, *how)
        except InputError:
            continue
        if engine_of(each.software) == engine or found[1].how == MEASURED:
            return each, found
        extrapolated = extrapolated or (each, found)
    return extrapolated or (near[0], routed_experts(near[0], model, ranks, *how))  # which refuses


def _product(
    tables: Tables, dtype: str, n: int, k: int, op: str, parts: list[PartSource], most: float = float("inf")
) -> Curve:
    """One product's curve over tokens, up to `most`; an unquantised head is bf16 whatever the layers are."""
    if dtype not in tables.products:
        raise InputError(f"{tables.name} has no matrix products of {dtype}, which the {op} needs")
    surface = tables.products[dtype]
    m_axis, n_axis, k_axis = surface.axes
    inside = all(axis.values[0] <= size <= axis.values[-1] for axis, size in ((n_axis, n), (k_axis, k)))
    on_grid = n in n_axis.values and k in k_axis.values
    how = MEASURED if on_grid else INTERPOLATED if inside else EXTRAPOLATED
    if estimated := tables.document.get("estimated", {}).get(dtype, ""):
        how, estimated = ESTIMATED, f", {estimated}"
    quantised = "" if dtype == "bf16" else ", with the quantisation of its input"
    if lent := tables.document.get("lent", {}).get(dtype):
        how, estimated = BORROWED, f", as under {lent}"
    parts.append(PartSource(op, how, f"{dtype}, {n:,} x {k:,}{quantised}{estimated}"))
    sizes = np.asarray([size for size in m_axis.values if size <= most])
    return product_curve(surface, n, k, sizes, WEIGHT_BYTES[dtype])


def _attention(tables: Tables, model: Model, ranks: int) -> tuple[Attention, list[PartSource]]:
    """Attention of a layer: where some layers see a window and others all, the mean of both by their number."""
    parts: list[PartSource] = []
    heads = (model.heads // ranks, model.local_kv_heads(ranks))
    kv, width = kv_precision(model), model.head_dim
    share, linear = model.windowed_layers / model.layers, model.state_layers / model.layers
    attending = model.attention_layers / model.layers
    whole = attending - share
    kinds = (0, whole), (model.sliding_window, share)
    windows = [(window, part) for window, part in kinds if part]
    try:
        decode = [(find_table(tables.decode, width, kv, window, "decode attention"), part) for window, part in windows]
        prompt = [(find_table(tables.prompt, width, kv, window, "prompt attention"), part) for window, part in windows]
        physics = find_table(tables.decode, width, kv, 0, "attention"), find_table(tables.prompt, width, kv, 0, "")
    except InputError as error:
        raise InputError(f"{tables.name} has {error.message}, which {model.name} needs", hint=error.hint) from None
    decodes = _mixed([(decode_us(table, heads), part) for table, part in decode], "decode attention", windows, parts)
    prompts = _mixed([(prompt_us(table, heads), part) for table, part in prompt], "prompt attention", windows, parts)
    if linear:
        sizes = (mesh(decode[0][0].axes)[0], *mesh(prompt[0][0].axes))
        of_decodes, of_prompts, more = linear_attention(tables, model, ranks, *sizes)
        decodes, prompts = decodes + linear * of_decodes, prompts + linear * of_prompts
        parts += more
    own = decode_physics(physics[0], heads[1], whole)
    axes = decode[0][0].axes
    decode_surface = Surface(axes, own, flat(np.log(decodes) - np.log(own.us(decode_features(*mesh(axes))))))
    ours = prompt_physics(physics[1], heads[0] * attending, whole)
    seen = [(table, part / attending) for table, part in prompt]  # by steps, whose counts know nothing of states
    prompt_surface = Surface(prompt[0][0].axes, ours, flat(np.log(prompts) - np.log(_fresh(ours, seen))))
    launch_us, beside = min(own.constant_us, ours.constant_us), beside_factor(tables.gpu, *heads, kv=kv)
    words = f"measured apart, added, decodes {beside:.2f} times as long" if beside != 1 else "measured apart, added"
    parts.append(PartSource("prompts beside decodes", ESTIMATED, words))
    attention = Attention(
        DecodeTable(decode_surface),
        PrefillTable(prompt_surface, float(model.sliding_window) if share else float("inf"), share / attending),
        launch_us,
        beside,
    )
    return attention, parts


def _skew(tables: Tables, model: Model, ranks: int, attention: Attention, parts: list[PartSource]) -> Skew | None:
    """Estimate the extra cost of unequal contexts, of which the tables hold nothing."""
    if tables.gpu in PACKED:
        parts.append(PartSource(UNEQUAL, ESTIMATED, f"{NOTHING}: FlashAttention 3 splits the long ones"))
        return None
    heads, kv_heads = model.heads // ranks, model.local_kv_heads(ranks)
    key_us = dict(attention.decode.surface.physics.roofs[0])["keys"]
    plain = kv_precision(model) == "bf16"
    skew = estimated_skew(tables.gpu, heads, kv_heads, key_us, attention.beside) if plain else None
    if skew is None:
        parts.append(PartSource(UNEQUAL, ASSUMED, f"{NOTHING}: how this GPU's attention lists them is not known"))
    else:
        parts.append(PartSource(UNEQUAL, ESTIMATED, "thread blocks listed over the multiprocessors"))
    return skew


def _mixed(
    found: list[tuple[Found, float]], name: str, windows: list[tuple[int, float]], parts: list[PartSource]
) -> Array:
    """Microseconds of the mean layer; each kind of layer is a part of its own."""
    for (each, _), (window, _) in zip(found, windows, strict=True):
        parts.append(PartSource(f"{name}, window {window:,}" if window else name, each.how, each.words))
    return np.asarray(sum(part * np.exp(each.log_us) for each, part in found))


def _fresh(physics: Any, tables: list[tuple[HeadTable, float]]) -> Any:
    """A profile's physics of prompts at the places of the tables."""
    chunks, each = mesh(tables[0][0].axes)
    counts = [(prompt_counts(chunks, each, 1.0, table.window), part) for table, part in tables]
    features = {name: sum(part * of[name] for of, part in counts) for name in ("tiles", "pairs", "tokens")}
    return physics.us({**features, "chain": each})
