import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.models import MODELS, Model, custom_model
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Roofline
from tests.simulator.hardware.test_models import DEEPSEEK_V3

H200 = GPUS["h200"]
LATENT = custom_model({**DEEPSEEK_V3, "layers": 8})  # its decode attention is bound by compute, unlike the others'

COSTS = {
    "dense": Roofline(MODELS["llama-3.1-8b"], H200),
    "dense, 4 GPUs": Roofline(MODELS["llama-3.1-70b"], GPUS["h100"], 4),
    "dense, more GPUs than KV heads": Roofline(MODELS["llama-3.1-70b"], GPUS["h100"], 16),
    "experts": Roofline(MODELS["mixtral-8x7b"], GPUS["a100-80gb"], 2),
    "many experts": Roofline(MODELS["qwen3-30b-a3b"], GPUS["rtx-pro-6000"]),
    "latent": Roofline(LATENT, GPUS["h20"], 2),
    "small": Roofline(MODELS["gpt2"], GPUS["l4"]),
}
costs = pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
some_cost = st.sampled_from(list(COSTS.values()))


def prompt(tokens: int, behind: int = 0) -> StepShape:
    """One prompt chunk of `tokens` behind `behind` computed ones."""
    return StepShape(0, 0, 1, tokens, behind + tokens, tokens * behind + tokens * (tokens + 1) // 2)


def decode(seqs: int, context_each: int) -> StepShape:
    return StepShape(seqs, seqs * context_each)


shapes = st.builds(
    lambda seqs, each, chunks, tokens, behind: StepShape(
        seqs,
        seqs * each,
        chunks,
        chunks * tokens,
        chunks * (behind + tokens),
        chunks * (tokens * behind + tokens * (tokens + 1) // 2),
    ),
    st.integers(0, 512),
    st.integers(1, 8192),
    st.integers(0, 8),
    st.integers(1, 4096),
    st.integers(0, 32768),
)


def bare(model: Model, gpu: Gpu, tensor_parallel: int = 1) -> Roofline:
    """Without any overhead: rates alone."""
    return Roofline(model, gpu, tensor_parallel, host_s=0.0, layer_overhead_s=0.0, allreduce_latency_s=0.0)


# ------------------------------------------------------------------------------------------------------- the contract


@given(some_cost, st.integers(1, 1024), st.integers(1, 20_000), st.integers(1, 2000))
def test_a_run_is_its_steps_to_the_bit(cost: Roofline, seqs: int, each: int, repeat: int) -> None:
    context = seqs * each
    run = cost.decode_run_s(StepShape(seqs, context), repeat)
    assert run == [cost.step_s(StepShape(seqs, context + i * seqs)) for i in range(repeat)]
    assert all(type(step) is float for step in (run[0], run[-1]))


def test_a_run_that_turns_from_memory_to_compute_is_its_steps() -> None:
    """Compute for a key is 1 % above memory; with the writing of new tokens, memory is while contexts are short."""
    cost = Roofline(LATENT, replace(H200, bf16_tflops=1776.0), 1)
    run = cost.decode_run_s(StepShape(4, 4), 3000)
    assert run == [cost.step_s(StepShape(4, 4 + 4 * i)) for i in range(3000)]
    growth = [after - before for before, after in pairwise(run)]
    assert growth[0] == pytest.approx(growth[80], rel=1e-6)
    assert growth[-1] == pytest.approx(growth[120], rel=1e-6)
    assert growth[-1] > 1.005 * growth[0]


@costs
def test_a_step_without_tokens_costs_nothing(cost: Roofline) -> None:
    assert cost.step_s(StepShape(0, 0)) == 0.0
    assert cost.step_s(StepShape(0, 0, 0, 0, 500, 0)) == 0.0


@costs
def test_a_copy_says_the_same(cost: Roofline) -> None:
    cost.decode_run_s(StepShape(3, 300), 2)
    copy = pickle.loads(pickle.dumps(cost))
    assert copy == cost
    assert hash(copy) == hash(cost)
    assert copy.decode_run_s(StepShape(3, 300), 100) == cost.decode_run_s(StepShape(3, 300), 100)
    assert copy.step_s(prompt(100)) == cost.step_s(prompt(100))


# ----------------------------------------------------------------------------------------------------------- the shape


@given(some_cost, shapes, st.integers(1, 300))
def test_more_of_anything_costs_no_less(cost: Roofline, shape: StepShape, more: int) -> None:
    before = cost.step_s(shape)
    each = shape.decode_context // shape.decode_seqs if shape.decode_seqs else 1
    wider = shape._replace(decode_seqs=shape.decode_seqs + more, decode_context=shape.decode_context + more * each)
    assert cost.step_s(wider) > before
    if shape.tokens:
        assert cost.step_s(shape._replace(decode_context=shape.decode_context + more)) >= before
        assert cost.step_s(shape._replace(prefill_context=shape.prefill_context + more)) >= before
        assert cost.step_s(shape._replace(prefill_pairs=shape.prefill_pairs + more)) >= before


@given(
    some_cost.filter(lambda cost: cost.tensor_parallel <= cost.gpu.link_gpus), shapes
)  # a network has rates of its own
def test_twice_the_rates_take_half_the_time(cost: Roofline, shape: StepShape) -> None:
    gpu = cost.gpu
    twice = replace(
        gpu, bf16_tflops=2 * gpu.bf16_tflops, bandwidth_gb_s=2 * gpu.bandwidth_gb_s, link_gb_s=2 * gpu.link_gb_s
    )
    slow = bare(cost.model, gpu, cost.tensor_parallel)
    fast = bare(cost.model, twice, cost.tensor_parallel)
    assert fast.step_s(shape) == pytest.approx(slow.step_s(shape) / 2, rel=1e-12)


@given(some_cost, shapes.filter(lambda shape: shape.tokens > 0))
def test_overheads_are_added_as_they_are(cost: Roofline, shape: StepShape) -> None:
    latency = cost.allreduce_latency_s
    if latency is None:
        latency = 5e-6 if cost.gpu.link_gb_s >= 100 else 20e-6
    reduces = 2 * cost.model.layers if cost.tensor_parallel > 1 else 0
    overhead = cost.host_s + cost.model.layers * cost.layer_overhead_s + reduces * latency
    without = bare(cost.model, cost.gpu, cost.tensor_parallel)
    assert cost.step_s(shape) == pytest.approx(without.step_s(shape) + overhead, rel=1e-12)


def test_decodes_wait_for_memory_and_prompts_for_compute() -> None:
    cost = COSTS["dense"]
    more_compute = replace(cost, gpu=replace(H200, bf16_tflops=2 * H200.bf16_tflops))
    more_memory = replace(cost, gpu=replace(H200, bandwidth_gb_s=2 * H200.bandwidth_gb_s))
    small, large = decode(8, 2000), prompt(8192)
    assert more_compute.step_s(small) == cost.step_s(small)
    assert more_memory.step_s(small) < 0.65 * cost.step_s(small)
    assert more_compute.step_s(large) < 0.6 * cost.step_s(large)
    assert more_memory.step_s(large) > 0.9 * cost.step_s(large)


def test_batch_at_which_matrices_turn_to_compute() -> None:
    """Weights are read once: the ridge lies where 2 x tokens / (2 bytes) = compute / bandwidth, here at 194 tokens."""
    cost = bare(MODELS["llama-3.1-8b"], H200)
    ridge = round(0.8 * 989.4e12 / (0.85 * 4800e9))

    def step_s(seqs: int) -> float:
        return cost.step_s(StepShape(seqs, 0))

    assert step_s(ridge) < 1.1 * step_s(1)  # norms and activation functions add 8 %
    assert step_s(2 * ridge) > 1.9 * step_s(ridge)


def test_a_prompt_in_chunks_visits_the_same_pairs_and_costs_more() -> None:
    cost = COSTS["dense"]
    chunks = [prompt(512, behind) for behind in range(0, 4096, 512)]
    assert sum(chunk.prefill_pairs for chunk in chunks) == prompt(4096).prefill_pairs
    assert cost.step_s(prompt(4096)) < sum(cost.step_s(chunk) for chunk in chunks) < 1.3 * cost.step_s(prompt(4096))


def test_experts_touched_grow_with_the_batch() -> None:
    """1 token reads 8 of 128 experts, 16 tokens some 82, 128 tokens practically all; then compute takes over."""
    model = MODELS["qwen3-30b-a3b"]
    cost = bare(model, H200)
    all_experts_s = 48 * 128 * 3 * 2048 * 768 * 2 / (4800e9 * 0.85)

    def experts_s(seqs: int) -> float:
        without = bare(replace(model, experts=0, active_experts=0, intermediate=0), H200)
        router_s = 48 * 2048 * 128 * 2 / (4800e9 * 0.85)
        elementwise_s = seqs * 48 * 8 * (3 * 768 + 2 * 2048) * 2 / (4800e9 * 0.85)
        return cost.step_s(StepShape(seqs, 0)) - without.step_s(StepShape(seqs, 0)) - router_s - elementwise_s

    assert experts_s(1) / all_experts_s == pytest.approx(8 / 128, rel=1e-6)
    assert experts_s(16) / all_experts_s == pytest.approx(1 - (15 / 16) ** 16, rel=1e-6)
    assert experts_s(128) / all_experts_s == pytest.approx(1, rel=1e-3)


def test_all_reduce_by_hand() -> None:
    """Two of tokens x hidden bf16 a layer, 2 (n - 1) / n of them over 60 % of 450 GB/s, and 5 microseconds each."""
    model, gpu = MODELS["llama-3.1-70b"], GPUS["h100"]
    free = replace(gpu, link_gb_s=1e30)
    cost = Roofline(model, gpu, 4)
    without = Roofline(model, free, 4, allreduce_latency_s=0.0)
    shape = decode(64, 1000)
    expected = 160 * (5e-6 + 64 * 8192 * 2 * 1.5 / (0.6 * 450e9))
    assert cost.step_s(shape) - without.step_s(shape) == pytest.approx(expected, rel=1e-9)


def test_all_reduce_over_pcie_starts_slower() -> None:
    cost = Roofline(MODELS["llama-3.1-8b"], GPUS["l40s"], 2)
    quick = replace(cost, allreduce_latency_s=5e-6)
    assert cost.step_s(decode(1, 1)) - quick.step_s(decode(1, 1)) == pytest.approx(64 * 15e-6)


def test_only_sampled_rows_pay_for_the_vocabulary() -> None:
    cost = COSTS["dense"]
    one, four = prompt(4096), prompt(4096)._replace(prefill_seqs=4)
    logits = 128256 * 10 / (4800e9 * 0.85)
    assert cost.step_s(four) - cost.step_s(one) == pytest.approx(3 * logits, rel=1e-6)


def test_host_time_of_a_synchronous_engine() -> None:
    cost = replace(COSTS["dense"], host_s=1.5e-3, host_per_seq_s=40e-6)
    more = cost.step_s(decode(100, 500)) - COSTS["dense"].step_s(decode(100, 500))
    assert more == pytest.approx(1.2e-3 + 100 * 40e-6)


# ---------------------------------------------------------------------------------------------------- is it plausible?


@pytest.mark.parametrize(
    ("model", "gpu", "ranks", "shape", "low_ms", "high_ms"),
    [
        # Reading 15 GB of weights at 4.8 TB/s takes 3.1 ms, at what kernels reach of it 3.7; kernels start 0.9 later.
        ("llama-3.1-8b", "h200", 1, decode(1, 500), 4.0, 5.2),
        # 2 x 7.0 billion x 2048 operations at 989 TFLOP/s take 29 ms, at the 80 % that GEMMs reach 36.
        ("llama-3.1-8b", "h200", 1, prompt(2048), 40, 60),
        # Sums of the kernel times of LLMServingSim's public profiles (vLLM 0.19, without host time), within 12 %.
        ("llama-3.1-8b", "rtx-pro-6000", 1, decode(8, 2048), 12.63, 12.63 * 1.12),
        ("llama-3.1-8b", "rtx-pro-6000", 1, decode(64, 2048), 24.46, 24.46 * 1.12),
        ("llama-3.1-8b", "rtx-pro-6000", 1, prompt(2048), 82.92, 82.92 * 1.12),
        ("llama-3.1-8b", "rtx-4090", 1, decode(64, 2048), 38.48, 38.48 * 1.12),
        # Qwen3-32B on 2 H100 served 8 clients of 1024 + 1024 tokens at 15.9 ms a token (aiconfigurator's silicon data,
        # vLLM 0.12), prompts of others in between.
        ("qwen3-32b", "h100", 2, decode(8, 1536), 13, 16),
    ],
)
def test_sanity(model: str, gpu: str, ranks: int, shape: StepShape, low_ms: float, high_ms: float) -> None:
    assert low_ms < Roofline(MODELS[model], GPUS[gpu], ranks).step_s(shape) * 1e3 < high_ms


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_parallel": 3}, "does not divide its 32 attention heads"),
        ({"tensor_parallel": 0}, "does not divide"),
        ({"gemm_efficiency": 0.0}, "gemm_efficiency must be above 0"),
        ({"attention_efficiency": 1.1}, "attention_efficiency must be above 0 and at most 1"),
        ({"bandwidth_efficiency": float("nan")}, "bandwidth_efficiency must be above 0"),
        ({"link_efficiency": -0.5}, "link_efficiency must be above 0"),
        ({"host_s": -1.0}, "host_s must be 0 or more"),
        ({"host_per_seq_s": -1.0}, "host_per_seq_s must be 0 or more"),
        ({"layer_overhead_s": float("inf")}, "layer_overhead_s must be 0 or more"),
        ({"allreduce_latency_s": float("nan")}, "allreduce_latency_s must be 0 or more"),
    ],
)
def test_values_out_of_range(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Roofline(MODELS["llama-3.1-8b"], H200, **arguments)  # type: ignore[arg-type] # wrong on purpose


def test_fp8_is_priced_at_the_peak_of_fp8() -> None:
    """A long prompt of a model with fp8 weights: twice the compute where the GPU has it, else bf16's, with a remark."""
    half = replace(MODELS["llama-3.1-8b"], dtype_bytes=1)
    prompt = StepShape(0, 0, 1, 8192, 8192, 8192 * 8193 // 2, 0, 0, 8192)
    plain, fast = (Roofline(model, GPUS["h100"]).step_s(prompt) for model in (MODELS["llama-3.1-8b"], half))
    assert 0.5 < fast / plain < 0.75
    a100 = GPUS["a100-80gb"]
    assert Roofline(half, a100).step_s(prompt) > 0.95 * Roofline(MODELS["llama-3.1-8b"], a100).step_s(prompt)
    assert "no fp8 peak on record" in Roofline(half, a100).remarks(None)[0]  # type: ignore[arg-type] # not looked at
    assert not Roofline(half, GPUS["h100"]).remarks(None)  # type: ignore[arg-type] # not looked at


def test_weights_of_any_width_are_read_in_their_bytes() -> None:
    """Decodes wait for the weights; int4 with its scales is multiplied in bf16, nvfp4 in fp4 where it is asked for."""
    whole = MODELS["llama-3.1-70b"]
    small = replace(whole, dtype_bytes=0.53)
    one = StepShape(1, 100)
    cost = [Roofline(model, GPUS["b200"], 1, layer_overhead_s=0, host_s=0).step_s(one) for model in (whole, small)]
    layers, head = whole.layer_parameters(), whole.table_parameters()
    assert cost[1] / cost[0] == pytest.approx((0.53 * layers + 2 * head) / (2 * layers + 2 * head), rel=0.01)
    prompt = StepShape(0, 0, 1, 8192, 8192, 8192 * 8193 // 2, 0, 0, 8192)
    four = replace(small, matmul_dtype="fp4")
    bf16, fp4 = (Roofline(model, GPUS["b200"]).step_s(prompt) for model in (small, four))
    assert fp4 < 0.5 * bf16
