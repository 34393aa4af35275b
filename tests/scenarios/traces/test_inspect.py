"""The figures of a trace: equal to published ones on the real traces, to hand-worked ones on small."""

import dataclasses
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.traces import TraceOptions
from scenarios.traces.detect import public_source_hint, public_traces, where_from
from scenarios.traces.inspect import PERCENTS, TraceFacts, facts_table, inspect_trace
from tests.scenarios.traces.facts_of import arrival_facts, correlations, length_facts
from tests.scenarios.traces.test_read import NATIVE, jsonl, write
from tests.shared_data import shared

CODE = "AzureLLMInferenceTrace_code.csv.gz"
CONV = "AzureLLMInferenceTrace_conv.csv.gz"
MOON = "mooncake_conversation_trace.jsonl.gz"
SERVEGEN = "servegen_mlarge_derived_1h.csv.gz"

# rows, duration, rate, CV, IDC 1/10/60 s, max gap, zero gaps %, Pearson, Spearman, in:out, max in+out, peak minute;
# each as it was published: the digits are the tolerance.
LOAD: dict[str, str] = {
    CODE: "8819 3435.9 2.566 13.151 13.19 71.64 163.96 217.17 0.0 0.001 -0.021 73.45 7841 632",
    CONV: "19366 3501.7 5.530 1.094 1.39 3.86 16.13 4.31 0.0 -0.112 0.073 5.47 14089 507",
    MOON: "12031 3537.0 3.401 3.034 7.90 2.10 2.89 3.00 90.2 0.072 0.072 35.13 126527 247",
    SERVEGEN: "17579 3598.4 4.885 1.634 7.33 19.93 53.03 5.14 4.9 0.415 0.293 12.17 12451 565",
}
# min, ten percentiles, max, mean, CV, Hill alpha, its threshold, token share of the top 5 % in %
INPUT: dict[str, str] = {
    CODE: "3 17 75 147 578 1469 2744.5 5187.6 7303.3 7436 7437 7437 2047.8 0.964 64.04 7315 18.1",
    CONV: "2 29 181 207 396 1020 1189 2734.5 4083 4142 6179.2 14050 1154.7 0.960 24.64 4083 18.5",
    MOON: "891 894 901 964 2306.5 6909 15367 27367 39550.5 85400.4 121301 126195 12035.1 1.313 2.21 39552 27.3",
    SERVEGEN: "13 61 77 257.8 575 636 844 1517 2274 3309.9 5864.1 12434 823.8 0.791 4.34 2274 17.9",
}
OUTPUT: dict[str, str] = {
    CODE: "6 6 6 7 9 13 24 55 90 251.5 825.3 1899 27.9 2.147 1.59 90 37.0",
    CONV: "7 16 41 54 85 129 395 424 451 601 954 1000 211.1 0.771 5.40 451 13.0",
    MOON: "1 3 10 24 156.5 350 472 597 698 1118.5 2000 2000 342.6 0.729 3.41 698 14.4",
    SERVEGEN: "1 1 1 3 10 30 68 147 262.1 663.2 1324.6 2902 67.7 2.004 1.62 263 39.9",
}


def load_figures(facts: TraceFacts) -> list[float | None]:
    load = facts.arrivals
    assert load.zero_gap_share is not None
    return [
        facts.requests,
        load.duration_s,
        load.rate,
        load.interarrival_cv,
        load.idc_1s,
        load.idc_10s,
        load.idc_60s,
        load.max_gap_s,
        100 * load.zero_gap_share,
        facts.pearson,
        facts.spearman,
        facts.input_output_ratio,
        facts.max_total_tokens,
        load.peak_minute,
    ]


def length_figures(facts: TraceFacts, which: str) -> list[float | None]:
    x = facts.input if which == "input" else facts.output
    assert x.tail_token_share is not None
    share = 100 * x.tail_token_share
    return [x.min, *x.percentiles, x.max, x.mean, x.cv, x.hill_alpha, x.hill_threshold, share]


def assert_equal_to_the_digit(computed: list[float | None], published: str) -> None:
    numbers = published.split()
    assert len(computed) == len(numbers)
    for value, text in zip(computed, numbers, strict=True):
        digits = len(text.partition(".")[2])
        assert value is not None
        assert abs(value - float(text)) <= 0.5 * 10.0**-digits + 1e-9, (value, text, published)


@pytest.mark.parametrize("name", [CODE, CONV, MOON, SERVEGEN])
def test_real_traces_have_their_published_figures(name: str) -> None:
    facts = inspect_trace(shared(f"traces/{name}"))
    assert_equal_to_the_digit(load_figures(facts), LOAD[name])
    assert_equal_to_the_digit(length_figures(facts, "input"), INPUT[name])
    assert_equal_to_the_digit(length_figures(facts, "output"), OUTPUT[name])
    assert facts.skipped == ()
    assert (facts.prefix is not None) == (name == MOON)


def test_real_mooncake_prefixes() -> None:
    prefix = inspect_trace(shared(f"traces/{MOON}")).prefix
    assert prefix is not None
    assert (prefix.requests, prefix.blocks, prefix.distinct_blocks) == (12031, 288_500, 182_790)
    assert prefix.block_hit_ratio == (288_500 - 182_790) / 288_500  # every hit is a hit of a prefix
    assert round(100 * prefix.distinct_reused_share, 1) == 24.2
    assert round(100 * prefix.block_hit_ratio, 1) == 36.6
    assert round(100 * prefix.token_hit_ratio, 1) == 37.4
    assert [round(share, 2) for share in prefix.hit_share_quartiles] == [0.07, 0.36, 0.71]
    assert (prefix.requests_without_hit, prefix.top_block_requests) == (1, 12031)


def test_real_mooncake_jittered_is_near_poisson() -> None:
    load = inspect_trace(shared(f"traces/{MOON}"), TraceOptions(jitter_s=3)).arrivals
    assert load.idc_1s is not None
    assert load.idc_10s is not None
    assert load.idc_60s is not None
    assert abs(load.idc_1s - 1.05) < 0.1
    assert abs(load.idc_10s - 1.5) < 0.3
    assert abs(load.idc_60s - 2.86) < 0.5
    assert load.zero_gap_share == 0


def test_prefix_facts_by_hand(tmp_path: Path) -> None:
    rows: list[tuple[int, list[int]]] = [(1000, [1, 2]), (1500, [1, 2, 3]), (1100, [9, 2, 4]), (600, [1, 5])]
    text = jsonl(
        *({"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": ids} for n, ids in rows),
        {"timestamp": 0, "input_length": 7, "output_length": 1},
    )
    prefix = inspect_trace(write(tmp_path, text)).prefix
    assert prefix is not None
    # Hits: none; 1, 2 (1024 tokens); none (2 is known, but not behind 9); 1 (512 tokens).
    assert (prefix.requests, prefix.blocks, prefix.distinct_blocks) == (4, 10, 6)
    assert prefix.block_hit_ratio == 3 / 10
    assert prefix.token_hit_ratio == (1024 + 512) / 4200
    assert prefix.distinct_reused_share == 2 / 6
    assert (prefix.requests_without_hit, prefix.top_block_requests) == (2, 3)


def test_load_by_hand() -> None:
    facts = arrival_facts(np.array([0.0, 0.0, 0.5, 1.25, 3.0]))
    assert (facts.duration_s, facts.rate, facts.max_gap_s, facts.zero_gap_share) == (3.0, 4 / 3, 1.75, 0.25)
    # Whole windows of 1 s hold 3, 1 and 0: mean 4/3, variance 14/9; the request at 3.0 is in none of them.
    assert facts.idc_1s == pytest.approx((14 / 9) / (4 / 3))
    assert (facts.idc_10s, facts.idc_60s, facts.peak_minute) == (None, None, 5)


@given(st.lists(st.floats(0, 300), min_size=2, max_size=60))
def test_dispersion_is_that_of_a_histogram(times: list[float]) -> None:
    arrivals = np.sort(np.array(times))
    arrivals -= arrivals[0]
    facts = arrival_facts(arrivals)
    windows = int(arrivals[-1] // 10)
    if windows >= 2:
        counts = np.bincount((arrivals // 10).astype(np.int64), minlength=windows)[:windows]
        assert facts.idc_10s == pytest.approx(counts.var() / counts.mean(), abs=1e-9)
    else:
        assert facts.idc_10s is None


def test_tail_of_a_pareto_distribution() -> None:
    alpha = 1.7
    lengths = np.floor(1e6 * (1 - np.random.default_rng(1).random(200_000)) ** (-1 / alpha)).astype(np.int64)
    facts = length_facts(lengths)
    assert facts.hill_alpha == pytest.approx(alpha, rel=0.04)  # 4 standard errors of alpha / sqrt(10,000)


def test_spearman_shares_ranks_among_equals() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 2, 1, 3, 4.
    _, spearman = correlations(np.array([1, 5, 5, 900]), np.array([20, 10, 30, 40]))
    assert spearman == pytest.approx(3.0 / np.sqrt(4.5 * 5))
    assert correlations(np.array([1, 2]), np.array([3, 3])) == (None, None)


@pytest.mark.parametrize("rows", ["0,5,6\n", "0,5,6\n0,5,6\n", "0,5,6\n5e-324,5,6\n"])
def test_too_little_to_tell(rows: str, tmp_path: Path) -> None:
    facts = inspect_trace(write(tmp_path, NATIVE + rows))
    assert (facts.arrivals.rate, facts.arrivals.interarrival_cv, facts.arrivals.idc_1s) == (None, None, None)
    assert (facts.input.hill_alpha, facts.pearson, facts.prefix) == (None, None, None)
    json.dumps(dataclasses.asdict(facts), allow_nan=False)
    assert " - requests/s" in facts_table(facts)


def test_skipped_rows_by_reason(tmp_path: Path) -> None:
    facts = inspect_trace(write(tmp_path, NATIVE + "0,1,1\n0,1,0\n0,x,1\n0,1,0\n"))
    assert (facts.rows, facts.requests) == (4, 1)
    assert facts.skipped == (("output_tokens is 0", 2), ("input_tokens is not a number", 1))
    assert "  skipped 2 rows: output_tokens is 0 (lines 3, 5)\n" in facts_table(facts)


def test_table_is_what_a_person_reads(tmp_path: Path) -> None:
    rows = (
        {"timestamp": 1000 * t, "input_length": 513 + t, "output_length": 1 + t, "hash_ids": [0, t + 1]}
        for t in range(99)
    )
    text = jsonl(*rows)
    table = facts_table(inspect_trace(write(tmp_path, text, "mine.jsonl")))
    assert table.startswith("mine.jsonl: mooncake, 99 requests out of 99 rows\n")
    for line in (
        "  rate                      1.000 requests/s",
        "  busiest minute            60 requests",
        "  p50                                    562.0          50.0",
        "  blocks                    198, 100 of them distinct",
        "  requests without a hit    1",
    ):
        assert line in table.splitlines()
    assert sum(line.startswith("  p") and line[3].isdigit() for line in table.splitlines()) == len(PERCENTS)
    assert max(map(len, table.splitlines())) <= 120


def test_sources_name_every_trace_with_licence_and_checksum() -> None:
    text = where_from()
    sources = [source for _, source in public_traces()]
    for source in sources:
        assert f"\n{source.file}\n" in text
        assert source.address in text
        assert source.licence in text
    assert text.count("sha256") == sum(source.sha256 is not None for source in sources) == 3


@pytest.mark.parametrize(
    ("name", "file"),
    [(CODE, CODE.removesuffix(".gz")), (CONV, CONV.removesuffix(".gz")), (MOON, "conversation_trace.jsonl")],
)
def test_checksums_are_those_of_the_real_files(name: str, file: str) -> None:
    (source,) = (source for _, source in public_traces() if source.file == file)
    data = gzip.decompress(shared(f"traces/{name}").read_bytes())
    assert hashlib.sha256(data).hexdigest() == source.sha256


@pytest.mark.parametrize("name", [CONV, CODE.removesuffix(".gz"), "azurellminferencetrace_conv.csv", MOON])
def test_a_file_called_like_a_public_trace_has_a_hint(name: str) -> None:
    hint = public_source_hint(name) or ""
    assert "curl -LO https://" in hint
    assert ("CC-BY-4.0" if "zure" in name else "Apache-2.0") in hint
    assert public_source_hint("my-trace.csv") is None
