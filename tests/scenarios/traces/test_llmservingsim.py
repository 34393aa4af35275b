"""LLMServingSim's workloads: arrivals in nanoseconds, block ids of 16 tokens or token ids."""

import gzip
from pathlib import Path

import pytest

import scenarios
from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.inspect import inspect_trace
from simulator.errors import InputError
from tests.scenarios.traces.test_read import jsonl, notes, write
from tests.shared_data import shared

HEADER = "arrival_time_ns,input_toks,output_toks,prefix_block_ids16\n"
ROWS = "40000000,33,5,0 1\n340000000,40,6,0 2\n340000001,15,7,\n"


def test_csv_with_block_ids(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + ROWS)
    workload = read_trace(path)
    assert inspect_trace(path).format == "llmservingsim"
    assert workload.arrival_s.tolist() == pytest.approx([0, 0.3, 0.300000001], abs=1e-12)
    assert workload.input_tokens.tolist() == [33, 40, 15]
    assert workload.output_tokens.tolist() == [5, 6, 7]
    first, second, third = workload.content or ()
    assert first is not None
    assert second is not None
    assert (first.block_hashes, first.hash_block_size) == ((0, 1), 16)
    assert second.block_hashes == (0, 2)
    assert third is None  # a prompt without a full block
    assert "time 0 is timestamp 40000000 ns" in notes(workload)


def test_gzip_other_order_and_no_block_ids(tmp_path: Path) -> None:
    path = tmp_path / "w.csv.gz"
    path.write_bytes(gzip.compress(b"output_toks,arrival_time_ns,input_toks,more\n5,0,33,x\n"))
    workload = read_trace(path)
    assert workload.input_tokens.tolist() == [33]
    assert workload.content is None
    assert "columns not read: more" in notes(workload)


def test_equal_blocks_are_found_in_the_prefix_cache(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "0,48,2,7 8 9\n2000000000,48,2,7 8 10\n4000000000,48,2,11 8 9\n")
    result = scenarios.run(
        {
            "hardware": {"num_gpu_blocks": 100},
            "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 0, "per_context_token_s": 0},
            "workload": {"trace": {"path": str(path)}},
            "engine": {"enable_prefix_caching": True},
        }
    )
    # The second shares two blocks with the first; the third has other tokens in front of what looks the same.
    assert result.records.requests.cached_tokens.tolist() == [0, 32, 0]


def test_json_lines_with_token_ids(tmp_path: Path) -> None:
    row: dict[str, object] = {"arrival_time_ns": 5, "input_toks": 3, "output_toks": 2}
    ids = {"input_tok_ids": [4, 5, 6], "output_tok_ids": [7, 8]}
    path = write(tmp_path, jsonl({**row, **ids}, {**row, "input_tok_ids": [4]}))
    workload = read_trace(path)
    first, second = workload.content or ()
    assert first is not None
    assert first.prompt_token_ids == (4, 5, 6)
    assert first.output_token_ids == (7, 8)
    assert second is None  # as many ids as tokens, or none


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("40,33,5\n", "not 4 fields"),
        ("40,0,5,\n", "input_toks is 0"),
        ("-1,3,5,\n", "arrival_time_ns is negative"),
        ("1,33,5,a b\n", "prefix_block_ids16 is not a list of whole numbers"),
    ],
)
def test_bad_rows_are_named(row: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + row)
    with pytest.raises(InputError, match=said) as caught:
        read_trace(path, TraceOptions(strict=True))
    assert str(caught.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize("text", [HEADER + ROWS, jsonl({"arrival_time_ns": 5, "input_toks": 3, "output_toks": 2})])
def test_another_unit_is_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    assert len(read_trace(path, TraceOptions(time_unit="ns")))
    with pytest.raises(InputError, match="time_unit cannot be given for the format llmservingsim: arrival_time_ns"):
        read_trace(path, TraceOptions(time_unit="ms"))


@pytest.mark.shared
def test_the_real_workloads() -> None:
    workload = read_trace(shared("measured/workloads/sharegpt-llama-3.1-8b-300-sps10.csv.gz"))
    assert len(workload) == 300
    blocks = [content.block_hashes if content else () for content in workload.content or ()]
    assert all(len(ids) == n // 16 for ids, n in zip(blocks, workload.input_tokens.tolist(), strict=True))
    every = [block for ids in blocks for block in ids]
    assert 1 - len(set(every)) / len(every) == pytest.approx(0.077, abs=0.01)
