"""Running a claim's scenario in many ways, and what is measured of a run beside its summary."""

from functools import cache

import numpy as np

import scenarios
from scenarios.assembly.engines import with_policy
from scenarios.runs.result import Result
from simulator.metrics.latency import itl
from simulator.metrics.window import measured_window
from simulator.results.records import Records


@cache
def run(name: str, policy: str, *overrides: str) -> Result:
    """The scenario under one policy, with overrides as of `--set`; what the policy does not take is left out."""
    chosen, _ = with_policy(scenarios.load(name, overrides), policy)
    return scenarios.run(chosen)


def slots_key(count: int) -> str:
    """The override for so many slots."""
    return f"engine.max_num_seqs={count}"


def figure(result: Result, name: str) -> float:
    """A number of the summary, which must be defined."""
    value = result.summary[name]
    assert isinstance(value, (int, float)), f"{name} is {value}"
    return float(value)


def busy_until_s(records: Records) -> float:
    """When the last request was admitted: until then there was always work for every slot, if all came at once."""
    return float(np.nanmax(records.requests.scheduled_s))


def steady_throughput(result: Result) -> float:
    """Output tokens per second while requests wait: without the end, in which slots stay empty."""
    records = result.records
    end_s = busy_until_s(records)
    rows, requests = records.rows, records.requests
    inside = rows.end_s <= end_s
    tokens = int(np.dot(rows.decoding[inside], rows.repeat[inside])) + int((requests.first_token_s <= end_s).sum())
    return tokens / (end_s - float(requests.arrival_s.min()))


def useful_slots(result: Result) -> float:
    """Slots of requests that are not finished / max_num_seqs, mean over time while requests wait."""
    records = result.records
    rows, end_s = records.rows, busy_until_s(records)
    inside = rows.end_s <= end_s
    working = (rows.running - rows.held)[inside]
    seconds = (rows.end_s - rows.start_s)[inside]
    return float(np.dot(working, seconds) / (end_s * records.max_num_seqs))


def memory_efficiency(result: Result) -> float:
    """KV tokens of requests that still answer / tokens in the blocks that are taken, both over time.

    A request's KV grows evenly from its prompt at the first token to prompt + answer at the last.
    """
    records = result.records
    requests = records.requests
    prompt = requests.input_tokens * (requests.last_token_s - requests.scheduled_s)
    answer = requests.output_tokens / 2 * (requests.last_token_s - requests.first_token_s)
    ends = records.step_end_s
    starts = np.concatenate(([float(records.rows.start_s[0])], ends[:-1]))
    taken = float(np.dot(records.step_used_blocks, ends - starts)) * records.block_size
    return float((prompt + answer).sum()) / taken


def model_flops_utilisation(result: Result) -> float:
    """2 x parameters x useful tokens / (time x the datasheet's FLOP/s), while requests wait; attention not counted."""
    scenario, records = result.scenario, result.records
    rows, end_s = records.rows, busy_until_s(records)
    inside = rows.end_s <= end_s
    tokens = float(np.dot((rows.tokens - rows.padded_tokens)[inside], rows.repeat[inside]))
    peak = scenario.resolve_gpu().bf16_tflops * 1e12 * scenario.hardware.tensor_parallel
    return 2 * scenario.resolve_model().active_parameters * tokens / (end_s * peak)


def bandwidth_utilisation(result: Result) -> float:
    """Bytes of weights read and of KV read / (time x the datasheet's bandwidth), while requests wait."""
    scenario, records = result.scenario, result.records
    model, ranks = scenario.resolve_model(), scenario.hardware.tensor_parallel
    rows, end_s = records.rows, busy_until_s(records)
    inside = rows.end_s <= end_s
    steps, tokens = rows.repeat[inside], rows.tokens[inside]
    # a row's context grows by its tokens with every step
    context = float(np.dot(rows.context_tokens[inside], steps) + np.dot(tokens, steps * (steps - 1) // 2))
    read = float(steps.sum()) * model.weight_bytes(ranks) + context * model.kv_bytes_per_token(ranks)
    return read / (end_s * scenario.resolve_gpu().bandwidth_gb_s * 1e9)


def largest_batch(result: Result) -> int:
    """The most requests that computed in one step."""
    rows = result.records.rows
    return int((rows.decoding + rows.prefilling).max())


def longest_gap_ms(result: Result) -> float:
    """The longest time between two tokens of one answer."""
    found = itl(result.records, (100,), measured_window(result.records, 0.0, 0.0))
    assert found is not None, "no answer of two tokens"
    return found.percentiles[0] * 1e3


def percent(share: float, digits: int = 0) -> str:
    """A share as the page writes it."""
    return f"{share * 100:.{digits}f} %"


def times(ratio: float) -> str:
    """A ratio as the page writes it: two figures, so that a table can be read."""
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"
