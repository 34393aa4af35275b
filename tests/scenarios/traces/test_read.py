"""Good traces, with every value known: formats, order, windows, scales, names."""

import gzip
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from scenarios.traces import TraceOptions, read_trace
from simulator.workload import Workload
from tests.shared_data import shared

FIXTURES = Path(__file__).parents[2] / "data" / "traces"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
NATIVE = "arrival_time_s,input_tokens,output_tokens\n"

# file, arrivals, inputs, outputs, what a note says
GOOD = [
    (
        "azure2023_crlf_noeol_unsorted_zero.csv",
        [0.0, 4.37655, 4.87655],
        [300, 410, 97],
        [40, 95, 11],
        "skipped 1 row: GeneratedTokens is 0 (line 4)",
    ),
    (
        "azure2024_bom_tz_nofraction.csv",
        [0.0, 0.012345, 0.08],
        [71, 2100, 7700],
        [12, 6, 9],
        "1 row came after a later arrival and moved up",
    ),
    ("azure2025_lmm_images.csv", [0.0, 5.55], [700, 950], [490, 120], "columns not read: NumImages"),
    (
        "mooncake_ms_blank_line_noeol.jsonl",
        [0.0, 3.0, 3.0],
        [1300, 1025, 512],
        [50, 1, 20],
        "block hashes of 512 tokens each",
    ),
    ("guidellm_trace_seconds_no_hash.jsonl", [0.0, 0.5], [256, 512], [128, 64], "read as seconds"),
]


def write(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def jsonl(*rows: Mapping[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(*stamps: float) -> str:
    return jsonl(*({"timestamp": t, "input_length": 10, "output_length": 2, "hash_ids": [0]} for t in stamps))


def notes(workload: Workload) -> str:
    return "\n".join(workload.notes)


@pytest.mark.parametrize(("name", "arrivals", "inputs", "outputs", "note"), GOOD)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_fixture_values(
    name: str, arrivals: list[float], inputs: list[int], outputs: list[int], note: str, packed: bool, tmp_path: Path
) -> None:
    data = (FIXTURES / name).read_bytes()
    # The name says nothing: neither the suffix nor the ".gz" is looked at.
    workload = read_trace(write(tmp_path, gzip.compress(data) if packed else data, "trace"))
    assert workload.arrival_s.tolist() == arrivals
    assert workload.input_tokens.tolist() == inputs
    assert workload.output_tokens.tolist() == outputs
    assert workload.max_tokens.tolist() == [max(outputs)] * len(outputs)
    assert note in notes(workload)


def test_seven_digits_are_kept(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:15:46.6805901,1,1\n2023-11-16 18:15:46.6805902,1,1\n"
    assert read_trace(write(tmp_path, text)).arrival_s.tolist() == [0.0, 1e-7]


def test_mixed_widths_and_offsets_are_one_clock(tmp_path: Path) -> None:
    text = AZURE + (
        "2024-05-10 23:59:59.5+00:00,1,1\n"
        "2024-05-11T00:00:00Z,2,1\n"
        "2024-05-11 02:00:01.25+02:00,3,1\n"
        "2024-05-10 20:00:02.125-04:00,4,1\n"
        "2024-05-11 00:00:03,5,1\n"
    )
    workload = read_trace(write(tmp_path, text))
    assert workload.arrival_s.tolist() == [0.0, 0.5, 1.75, 2.625, 3.5]
    assert "1 date-time without an offset read as UTC" in notes(workload)
    assert "time 0 is 2024-05-10 23:59:59.500000000 UTC" in workload.notes


def test_columns_may_be_reordered_quoted_and_float(tmp_path: Path) -> None:
    text = '"Note","generatedtokens"," ContextTokens ",TIMESTAMP\n"a, b","44.0", 374 ,"2023-11-16 18:15:46"\n'
    workload = read_trace(write(tmp_path, text))
    assert (workload.input_tokens.tolist(), workload.output_tokens.tolist()) == ([374], [44])
    assert "columns not read: Note" in workload.notes


def test_an_exact_name_wins_over_one_in_other_case(tmp_path: Path) -> None:
    text = "arrival_time_s,INPUT_TOKENS,input_tokens,output_tokens\n0,99,1,2\n"
    assert read_trace(write(tmp_path, text)).input_tokens.tolist() == [1]


def test_ties_and_duplicates_stay_in_file_order(tmp_path: Path) -> None:
    text = NATIVE + "2,1,1\n1,2,1\n2,3,1\n1,4,1\n1,4,1\n"
    workload = read_trace(write(tmp_path, text))
    assert workload.input_tokens.tolist() == [2, 4, 4, 1, 3]
    assert workload.arrival_s.tolist() == [1, 1, 1, 2, 2]
    assert "3 rows came after a later arrival" in notes(workload)


def test_requests_are_named_by_their_row_in_the_file(tmp_path: Path) -> None:
    text = NATIVE + "5,1,1\n6,2,0\n\n4,3,1\n7,4,1\n"
    workload = read_trace(write(tmp_path, text))
    assert [workload.request_id(row) for row in range(3)] == ["2", "0", "3"]
    assert read_trace(write(tmp_path, NATIVE + "5,1,1\n6,2,1\n")).request_ids is None


def test_rate_scale_above_one_is_faster(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "10,1,1\n14,1,1\n16,1,1\n")
    assert read_trace(path, TraceOptions(rate_scale=2.0)).arrival_s.tolist() == [5, 7, 8]
    assert read_trace(path, TraceOptions(rate_scale=0.5)).arrival_s.tolist() == [20, 28, 32]


def test_native_times_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "0.3,1,1\n0.7,1,1\n")
    assert read_trace(path).arrival_s.tolist() == [0.3, 0.7]
    assert "time 0" not in notes(read_trace(path))


def test_native_times_that_are_dates_begin_at_0(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "1.7e9,1,1\n1700000001.5,1,1\n")
    assert read_trace(path).arrival_s.tolist() == [0, 1.5]
    assert "time 0 is arrival_time_s 1700000000.0" in read_trace(path).notes


def test_window_of_a_native_trace_counts_from_0(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "".join(f"{100 + t},{t + 1},1\n" for t in range(10)))
    workload = read_trace(path, TraceOptions(start_s=103, duration_s=4))
    assert workload.input_tokens.tolist() == [4, 5, 6, 7]
    assert workload.arrival_s.tolist() == [0, 1, 2, 3]
    assert [workload.request_id(row) for row in range(4)] == ["3", "4", "5", "6"]
    assert "left out 3 rows before start_s" in workload.notes
    assert "left out 3 rows at or after the end of duration_s" in workload.notes


def test_window_applies_before_the_rate_is_scaled(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(*range(0, 10_000, 1000)), "t.jsonl")
    workload = read_trace(path, TraceOptions(duration_s=4, rate_scale=2))
    assert workload.arrival_s.tolist() == [0, 0.5, 1, 1.5]


def test_limit_stops_reading(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "0,1,0\n1,2,1\n2,3,1\nbroken\n")
    workload = read_trace(path, TraceOptions(limit=2))
    assert workload.input_tokens.tolist() == [2, 3]
    assert "stopped reading at line 4: the limit of 2 requests" in workload.notes
    assert "broken" not in notes(workload)


def test_a_long_stretch_after_the_window_stops_reading(tmp_path: Path) -> None:
    rows = "".join(f"{t},1,1\n" for t in range(12_000))
    workload = read_trace(write(tmp_path, NATIVE + rows + "broken\n"), TraceOptions(duration_s=10))
    assert len(workload) == 10
    assert "stopped reading at line 10,011: 10,000 rows in a row lie after the window" in workload.notes


def test_late_rows_within_the_window_are_found_behind_its_end(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path, NATIVE + "0,1,1\n9,2,1\n4,3,1\n11,4,1\n"), TraceOptions(duration_s=5))
    assert workload.input_tokens.tolist() == [1, 3]


def test_jitter_is_uniform_seeded_and_resorts(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(*[0] * 2000, *[3000] * 2000), "t.jsonl")
    plain = read_trace(path)
    assert "come at the same time as the one before, the others usually 3 s; jitter_s: 3" in notes(plain)
    first = read_trace(path, TraceOptions(jitter_s=3, seed=5))
    again = read_trace(path, TraceOptions(jitter_s=3, seed=5))
    other = read_trace(path, TraceOptions(jitter_s=3, seed=6))
    assert first.arrival_s.tolist() == again.arrival_s.tolist()
    assert first.arrival_s.tolist() != other.arrival_s.tolist()
    assert np.all(np.diff(first.arrival_s) >= 0)
    place = np.array([int(first.request_id(row)) for row in range(len(first))])
    moved = first.arrival_s - plain.arrival_s[place]
    assert 0 <= moved.min() < 0.01
    assert 2.99 < moved.max() < 3
    assert abs(moved.mean() - 1.5) < 4 * (3 / np.sqrt(12)) / np.sqrt(4000)
    assert "seed 5" in notes(first)


def test_jitter_is_in_seconds_of_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(*[0] * 50, *[3000] * 50), "t.jsonl")
    once = read_trace(path, TraceOptions(jitter_s=3)).arrival_s
    twice = read_trace(path, TraceOptions(jitter_s=3, rate_scale=2)).arrival_s
    assert twice.tolist() == (once / 2).tolist()


def test_lengths_scale_and_stay_at_least_one(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "0,1,1\n1,10,3\n")
    workload = read_trace(path, TraceOptions(input_scale=0.25, output_scale=1.5))
    assert workload.input_tokens.tolist() == [1, 2]
    assert workload.output_tokens.tolist() == [2, 4]
    assert workload.max_tokens.tolist() == [4, 4]


def test_caps_clip_and_are_counted(tmp_path: Path) -> None:
    text = "arrival_time_s,input_tokens,output_tokens,max_tokens\n0,1,50,20\n1,1,5,20\n2,1,50,\n3,1,7,\n"
    path = write(tmp_path, text)
    workload = read_trace(path)
    assert workload.output_tokens.tolist() == [20, 5, 50, 7]
    assert workload.max_tokens.tolist() == [20, 20, 50, 50]
    assert "clipped 1 output to max_tokens" in workload.notes
    workload = read_trace(path, TraceOptions(max_tokens=30))
    assert workload.output_tokens.tolist() == [20, 5, 30, 7]
    assert workload.max_tokens.tolist() == [20, 20, 30, 30]
    assert "clipped 2 outputs to max_tokens" in workload.notes


def test_skipped_rows_are_counted_by_reason_with_their_lines(tmp_path: Path) -> None:
    bad = ["x,1,1", "0,-4,1", "0,1.5,1", "0,nan,1", "0,,1", "0,1", "0,-4,1", "-1,1,1", "inf,1,1", "0,3000000000,1"]
    workload = read_trace(write(tmp_path, NATIVE + "0,7,8\n" + "\n".join(bad) + "\n1,8,9\n" + "0,1,0\n" * 7))
    assert workload.input_tokens.tolist() == [7, 8]
    text = notes(workload)
    for part in (
        "skipped 1 row: arrival_time_s is not a number (line 3)",
        "skipped 2 rows: input_tokens is negative (lines 4, 9)",
        "skipped 1 row: input_tokens is not a whole number (line 5)",
        "skipped 1 row: input_tokens is NaN or infinite (line 6)",
        "skipped 1 row: input_tokens is missing (line 7)",
        "skipped 1 row: not 3 fields (line 8)",
        "skipped 1 row: arrival_time_s is negative (line 10)",
        "skipped 1 row: arrival_time_s is NaN or infinite (line 11)",
        "skipped 1 row: input_tokens is above 2147483647 (line 12)",
        "skipped 7 rows: output_tokens is 0 (lines 14, 15, 16, 17, 18, ...)",
    ):
        assert part in text


def test_a_cut_off_last_line_is_skipped_and_said(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(0, 3000) + '{"timestamp": 6000, "input_len', "t.jsonl")
    workload = read_trace(path)
    assert len(workload) == 2
    assert "skipped 1 row: not a whole JSON object (cut off or malformed) (line 3)" in workload.notes


def test_bytes_that_are_no_text_cost_only_their_row(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE.encode() + b"2023-11-16 18:15:46,1,1\n2023-11-16 18:15:47,\xff\xfe,1\n")
    workload = read_trace(path)
    assert len(workload) == 1
    assert "ContextTokens is not a number (line 3)" in notes(workload)


def test_no_pandas() -> None:
    code = "import sys, scenarios.traces; print([m for m in ('pandas', 'scipy', 'matplotlib') if m in sys.modules])"
    root = Path(__file__).parents[3]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("AzureLLMInferenceTrace_code.csv.gz", 8819),
        ("AzureLLMInferenceTrace_conv.csv.gz", 19366),
        ("mooncake_conversation_trace.jsonl.gz", 12031),
        ("servegen_mlarge_derived_1h.csv.gz", 17579),
    ],
)
def test_real_traces_lose_no_row(name: str, rows: int) -> None:
    path = shared(f"traces/{name}")
    workload = read_trace(path)
    assert len(workload) == rows
    assert workload.request_ids is None or len(set(workload.request_ids)) == rows
    assert 0 <= workload.arrival_s[0] < 0.01
    assert f"{rows:,} requests out of {rows:,} rows" in workload.notes[0]
    assert not [note for note in workload.notes if "skipped" in note or "moved" in note or "dropped" in note]


def test_real_azure_chat_values() -> None:
    workload = read_trace(shared("traces/AzureLLMInferenceTrace_conv.csv.gz"))
    assert workload.arrival_s[:2].tolist() == [0.0, 4.314579]
    assert (workload.input_tokens[0], workload.output_tokens[0]) == (374, 44)
    assert (workload.input_tokens[-1], workload.output_tokens[-1]) == (197, 183)
    assert set(workload.max_tokens.tolist()) == {1000}
    assert "time 0 is 2023-11-16 18:15:46.680590000 UTC" in workload.notes


def test_real_mooncake_content_and_jitter() -> None:
    path = shared("traces/mooncake_conversation_trace.jsonl.gz")
    workload = read_trace(path)
    assert workload.content is not None
    first = workload.content[0]
    assert first is not None
    assert (first.block_hashes, first.hash_block_size) == (tuple(range(14)), 512)
    assert all(c is not None and c.block_hashes[0] == 0 for c in workload.content)
    jittered = read_trace(path, TraceOptions(jitter_s=3.0))
    gaps = np.diff(jittered.arrival_s)
    # The ticks of 3 s alone make 3.03; spread within the tick the trace is near Poisson.
    assert abs(gaps.std() / gaps.mean() - 1.009) < 0.03
