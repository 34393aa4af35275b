"""Checks that a device computes correctly, before time is spent on measuring it. A failed check raises AssertionError.

The tests marked `gpu` call them, and so does the campaign, which has no pytest. They also run on a CPU; a check of
what only a GPU has raises `Skipped` there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from gpu_backend import weights
from gpu_backend.backend import Backend
from gpu_backend.device import open_device
from gpu_backend.executor import DeviceExecutor, RequestTrace
from gpu_backend.kernel_choice import available, default_attention, default_pointwise, open_attention, open_pointwise
from gpu_backend.weights import E4M3, quantised_rows, quantised_weight, random_pages
from gpu_backend.work import AttentionShape, KVScales, ScheduledPart, Swap, Work, step_arrays
from simulator.hardware.kv import KVCache
from simulator.hardware.models import custom_model
from simulator.memory.blocks import BlockManager, KVBlocks
from simulator.memory.prefix_cache import PrefixCache
from simulator.policies import built_in_policies, load_policy, policy_class, policy_parameters
from simulator.request import PromptContent
from simulator.simulate import simulate
from simulator.workload import Workload
from tools.kernel_bench.cases import reference_attention

CLOSE = 2e-3
"""Logits of the same thing in float32, computed in another order; a GPU's products may be a little coarser."""
FP8_CLOSE = 1e-2
"""Results in bfloat16 of the same e4m3 numbers."""
MODEL = custom_model(
    {
        "layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "vocab": 512, "max_model_len": 512,
        "dtype_bytes": 4, "kv_dtype_bytes": 4,
    }
)  # fmt: skip
SMALL = {"max_num_seqs": 4, "max_num_batched_tokens": 24}
REQUESTS = ((0.0, 5, 17), (0.0, 12, 3), (0.0, 41, 29), (0.004, 33, 20), (0.01, 7, 1), (0.011, 20, 12), (0.05, 64, 9))


class Skipped(Exception):  # noqa: N818 - no error: the device lacks what is to be checked
    """Why a check does not apply to the device."""


def workload(contents: Sequence[PromptContent | None] | None = None) -> Workload:
    """A few requests that meet; `contents` as a trace has them."""
    arrival, inputs, outputs = (np.array(column) for column in zip(*REQUESTS, strict=True))
    nought = np.zeros(len(REQUESTS), dtype=np.int64)
    cap = np.full(len(REQUESTS), int(outputs.max()))
    plain = Workload(arrival, inputs, outputs, cap, nought, nought)
    return replace(plain, content=contents)


def serve(
    device: str,
    policy: str,
    requests: Workload,
    *,
    blocks: int = 128,
    host: int = 0,
    caches: bool = False,
    given: Mapping[str, object] = SMALL,
    attention: str | None = None,
) -> DeviceExecutor:
    """Serve the requests on the device by a built-in policy, every page checked; with what they were answered."""
    backend = Backend(MODEL, open_device(device, 1), blocks - 1, 4, host, seed=3, attention=attention)
    executor = DeviceExecutor(backend, debug=True)
    takes = policy_parameters(policy_class(policy))
    make_blocks: Callable[[int, int], KVBlocks] = partial(PrefixCache, block_size=4) if caches else BlockManager
    simulate(
        requests,
        make_policy=lambda: load_policy(policy, {key: value for key, value in given.items() if key in takes}),
        kv=KVCache(blocks, 4, host, backend.pool.bytes_per_block),
        make_executor=lambda: executor,
        make_blocks=make_blocks,
    )
    return executor


def check_same(expected: Mapping[int, RequestTrace], found: Mapping[int, RequestTrace], what: str) -> None:
    """Raise AssertionError unless both gave every request the same tokens.

    Where the best two logits are closer than rounding, either token is right, and what follows is another sequence.
    """
    assert sorted(expected) == sorted(found), f"{what}: other requests were served"
    for row, story in expected.items():
        other = found[row]
        assert len(story.sampled) == len(other.sampled), f"{what}: request {row} has another number of tokens"
        for place, (one, two) in enumerate(zip(story.best, other.best, strict=True)):
            apart = max(abs(one[0] - two[0]), abs(one[1] - two[1]))
            assert apart <= CLOSE, f"{what}: request {row}, token {place}: logits {one} and {two}"
            if story.sampled[place] != other.sampled[place]:
                assert one[0] - one[1] <= CLOSE, f"{what}: request {row}, token {place}: another token"
                break


def graphs_give_eager_logits(device: str) -> None:
    """Captured decode steps, padded to the next size, give the logits of steps launched kernel by kernel."""
    made = open_device(device, 1)
    eager = Backend(MODEL, made, 128, 16, seed=3)
    captured = Backend(MODEL, made, 128, 16, seed=3, graphs=(1, 2, 4, 8))
    if not captured.captures:
        raise Skipped("nothing is captured on this device")
    random = np.random.default_rng(0)
    for context in ((40,), (3, 130, 77), (9, 200, 31, 64, 18), (500, 1, 2)):
        for backend in (eager, captured):
            random_pages(backend.pool.kv, 7)
        pages = np.split(random.permutation(128) + 1, np.cumsum([-(-keys // 16) for keys in context]))
        parts = tuple(
            [ScheduledPart(row, keys - 1, [row + 5], pages[row].tolist()) for row, keys in enumerate(context)]
        )
        one, two = eager.run(Work(parts)), captured.run(Work(parts))
        apart = np.abs(np.array(one.best) - np.array(two.best)).max()
        assert apart <= CLOSE, f"contexts {context}: best logits differ by {apart:.2g}"


def kernels_between_give_the_same_logits(device: str) -> None:
    """A layer's small operators as kernels, keys and values written with the rope: the logits of torch's operators."""
    if default_pointwise(device) == "torch":
        raise Skipped("torch's operators are what this device uses")
    made = open_device(device, 1)
    parts = (ScheduledPart(0, 40, [5], (3, 4, 5)), ScheduledPart(1, 16, [7] * 21, (6, 7, 8)))
    best = []
    for name in ("torch", "triton"):
        backend = Backend(MODEL, made, 16, 16, seed=3, pointwise=name)
        random_pages(backend.pool.kv, 7)
        best.append(np.array(backend.run(Work(parts[:1], parts[1:])).best))
    apart = np.abs(best[0] - best[1]).max()
    assert apart <= CLOSE, f"best logits differ by {apart:.2g}"


def pages_survive_the_host(device: str) -> None:
    """Pages swapped out and back in are, bit for bit, what they were, in another place."""
    backend = Backend(MODEL, open_device(device, 1), 64, 16, 48)
    pool = backend.pool
    pool.kv.normal_()
    out = tuple(range(1, 41))
    before = pool.kv[:, list(out)].clone()
    pool.swap_out(Swap(out, tuple(range(40))))
    pool.poison(out)
    back = tuple(range(24, 64))
    pool.swap_in(Swap(tuple(range(40)), back))
    if device == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(pool.kv[:, list(back)], before), "pages came back changed"


def policies_give_the_same_tokens(device: str) -> None:
    """Every request gets the same tokens under every policy."""
    requests = workload()
    expected = serve(device, "chunked_prefill", requests).stories
    for policy in built_in_policies():
        check_same(expected, serve(device, policy, requests).stories, policy)


def preempted_requests_get_the_same_tokens(device: str) -> None:
    """Recomputed or swapped out and back, for want of pages."""
    requests = workload()
    expected = serve(device, "chunked_prefill", requests).stories
    for mode in ("recompute", "swap"):
        given = {**SMALL, "preemption_mode": mode}
        found = serve(device, "preemptive", requests, blocks=30, host=64, given=given)
        check_same(expected, found.stories, mode)


def shared_prefixes_give_the_same_tokens(device: str) -> None:
    """With a prefix cache, requests that share pages are answered as without it."""
    requests = workload([PromptContent(prefix_group=f"g{row % 2}", prefix_tokens=4) for row in range(len(REQUESTS))])
    plain = serve(device, "chunked_prefill", requests).stories
    check_same(plain, serve(device, "chunked_prefill", requests, caches=True).stories, "prefix cache")


def attentions_agree(device: str) -> None:
    """Every attention that can be used here gives the tokens of torch's operators."""
    requests = workload()
    expected = serve(device, "chunked_prefill", requests, attention="torch").stories
    for name in available(device):
        if name in _HALF_ONLY and MODEL.dtype_bytes == 4:
            continue
        check_same(expected, serve(device, "chunked_prefill", requests, attention=name).stories, name)


_HALF_ONLY = ("gathered", "cudnn", "flashinfer", "flash-attn-3", "vllm")
"""On a GPU they take 16-bit numbers alone; `tools.kernel_bench.speed` compares them with float64 in those."""


def fp8_products_are_exact(device: str) -> None:
    """Products of e4m3 numbers on the device are those of the same numbers widened, a scale for each channel or one."""
    cases: Sequence[tuple[weights.Per, int]] = (
        ("channel", 1),
        ("channel", 5),
        ("channel", 200),
        ("tensor", 1),
        ("tensor", 9),
    )
    for per, tokens in cases:
        random = torch.Generator().manual_seed(tokens)
        weight, scale = quantised_weight(torch.randn((96, 64), generator=random), per)
        x, x_scale = quantised_rows(torch.randn((tokens, 64), generator=random) * 30)
        expected = weights.product(x, x_scale, weight, scale, torch.float32)
        there = x.to(device), x_scale.to(device), weight.to(device), scale.to(device)
        found = weights.product(*there, torch.bfloat16)
        error = float((found.cpu().float() - expected).norm() / expected.norm())
        assert error <= FP8_CLOSE, f"{tokens} tokens, a scale for each {per}: off by {error:.2g}"
    rows = torch.randn((7, 96), generator=torch.Generator().manual_seed(3)) * 9
    ours = open_pointwise(default_pointwise(device), 1e-5).quantised(rows.to(device))
    for mine, theirs in zip(ours, quantised_rows(rows), strict=True):
        apart = (mine.cpu().float() - theirs.float()).abs() / theirs.float().abs().clamp_min(1e-6)
        # A quotient that lies between two numbers may be rounded to either: one of eight parts.
        assert float(apart.max()) <= 1 / 8, "activations are rounded to other numbers"
        assert float((apart > 1e-5).float().mean()) <= 0.02, "activations are rounded to other numbers"


def fp8_pages_are_read_as_they_are(device: str) -> None:
    """Keys and values written into e4m3 pages, and attended to there, against float64."""
    shape, scales = AttentionShape(4, 2, 32, 16, fp8_kv=True), KVScales(0.07, 0.3)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    attention = open_attention(default_attention(device), shape, device, dtype)
    kv = torch.zeros((40, 2, 2, 16, 32), device=device).to(E4M3)
    random_pages(kv, 1)
    order = (np.random.default_rng(0).permutation(39) + 1).tolist()
    parts = [
        ScheduledPart(0, 99, [0], order[:7]),
        ScheduledPart(1, 30, [0] * 25, order[7:11]),
        ScheduledPart(2, 0, [0] * 70, order[11:16]),
    ]
    rows = step_arrays(parts, 1, 16)
    tokens = len(rows.token)
    query = torch.randn((tokens, 4, 32), device=device).to(dtype)
    key, value = torch.randn((2, tokens, 2, 32), device=device).to(dtype)
    out = attention.attend(query, key, value, kv, attention.prepare(rows), scales=scales)
    lengths = rows.context.tolist(), np.diff(rows.query_start).tolist()
    expected = reference_attention(query, kv, torch.from_numpy(rows.tables).to(device), *lengths, kv_scales=scales)
    error = float((out.double() - expected).norm() / expected.norm())
    assert error <= FP8_CLOSE, f"attention is off by {error:.2g}"
    page, offset = (torch.from_numpy(part).to(device) for part in (rows.slot // 16, rows.slot % 16))
    for both, (given, scale) in enumerate(zip((key, value), scales, strict=True)):
        kept = weights.widened(weights.as_bytes(kv)[page, both, :, offset].view(E4M3), scale, torch.float32)
        apart = float((kept - given.float()).norm() / given.float().norm())
        assert apart <= 1 / 16, f"what was written is off by {apart:.2g}"


def offsets_beyond_32_bits(device: str) -> None:
    """Pages whose elements lie beyond 2^31 are read and written where they are, by decodes and by chunks."""
    if device != "cuda":
        raise Skipped("4 GiB of pages are for a GPU")
    shape, dtype = AttentionShape(32, 8, 128, 16), torch.bfloat16
    page = 2 * shape.kv_heads * shape.block_size * shape.head_dim
    blocks = 2**31 // page + 2000
    kv = torch.zeros((blocks, 2, shape.kv_heads, shape.block_size, shape.head_dim), dtype=dtype, device=device)
    kv[-1500:].normal_()
    attention = open_attention(default_attention(device), shape, device, dtype)
    high = np.random.default_rng(0).permutation(1400) + blocks - 1450
    parts = [
        ScheduledPart(0, 999, [0], high[:63].tolist()),
        ScheduledPart(1, 30, [0] * 200, high[100:115].tolist()),
        ScheduledPart(2, 4999, [0], high[200:513].tolist()),
    ]
    rows = step_arrays([parts[0], parts[2], parts[1]], 2, 16)
    tokens = len(rows.token)
    query = torch.randn((tokens, shape.heads, shape.head_dim), device=device).to(dtype)
    key, value = torch.randn((2, tokens, shape.kv_heads, shape.head_dim), device=device).to(dtype)
    out = attention.attend(query, key, value, kv, attention.prepare(rows))
    contexts, queries = rows.context.tolist(), np.diff(rows.query_start).tolist()
    expected = reference_attention(query, kv, torch.from_numpy(rows.tables).to(device), contexts, queries)
    error = float((out.double() - expected).norm() / expected.norm())
    assert error <= 2e-2, f"attention is off by {error:.2g}"
    written = kv[torch.from_numpy(rows.slot // 16).to(device), 0, :, torch.from_numpy(rows.slot % 16).to(device)]
    assert torch.equal(written, key), "keys were written elsewhere"


CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__: check
    for check in (
        pages_survive_the_host,
        kernels_between_give_the_same_logits,
        graphs_give_eager_logits,
        offsets_beyond_32_bits,
        fp8_products_are_exact,
        fp8_pages_are_read_as_they_are,
        preempted_requests_get_the_same_tokens,
        shared_prefixes_give_the_same_tokens,
        attentions_agree,
        policies_give_the_same_tokens,
    )
}
"""By name, the quickest first."""
