"""What a file is, from what is in it: recognised and refused, units, ambiguities."""

from pathlib import Path

import pytest

from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.formats import trace_formats
from scenarios.traces.inspect import inspect_trace
from simulator.errors import InputError
from tests.scenarios.traces.test_read import FIXTURES, NATIVE, jsonl, notes, write


def test_every_fixture_is_known_and_only_tables_without_lengths_are_refused() -> None:
    for path in sorted(FIXTURES.iterdir()):
        if path.name == "servegen_chunk-1-trace.csv":  # a generator's table, whose lengths stand in another file
            with pytest.raises(
                InputError, match=r"chunk-1-dataset\.json: a ServeGen client's lengths should be in this file"
            ):
                read_trace(path)
        else:
            assert inspect_trace(path).format in trace_formats()


def bare(*stamps: float) -> str:
    return jsonl(*({"timestamp": t, "input_length": 10, "output_length": 2} for t in stamps))


@pytest.mark.parametrize(
    ("stamps", "arrivals", "format_"),
    [
        ((0, 0, 0, 3000, 3000, 6000), [0, 0, 0, 3, 3, 6], "mooncake"),
        ((5, 55, 105), [0, 0.05, 0.1], "mooncake"),
        ((7.5, 8, 9), [0, 0.5, 1.5], "guidellm"),
        ((7, 7), [0, 0], "mooncake"),
    ],
)
def test_unit_of_stamps_without_hashes(
    stamps: tuple[float, ...], arrivals: list[float], format_: str, tmp_path: Path
) -> None:
    path = write(tmp_path, bare(*stamps))
    assert read_trace(path).arrival_s.tolist() == arrivals
    assert inspect_trace(path).format == format_


def test_unit_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path, bare(0, 1, 2))
    assert read_trace(path, TraceOptions(time_unit="s")).arrival_s.tolist() == [0, 1, 2]
    assert read_trace(path, TraceOptions(time_unit="us")).arrival_s.tolist() == [0, 1e-6, 2e-6]
    assert read_trace(path, TraceOptions(format="mooncake")).arrival_s.tolist() == [0, 1e-3, 2e-3]
    assert read_trace(path, TraceOptions(format="guidellm")).arrival_s.tolist() == [0, 1, 2]


def test_hashes_make_milliseconds_with_a_doubt_where_steps_are_small(tmp_path: Path) -> None:
    text = jsonl(*({"timestamp": t, "input_length": 9, "output_length": 2, "hash_ids": [1]} for t in (0, 1, 2, 3)))
    workload = read_trace(write(tmp_path, text))
    assert workload.arrival_s.tolist() == [0, 1e-3, 2e-3, 3e-3]
    assert "if they are seconds, give time_unit: s" in notes(workload)


def test_given_format_must_fit(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "0,1,1\n")
    assert len(read_trace(path, TraceOptions(format="native"))) == 1
    with pytest.raises(InputError, match="not a trace of the format azure: no TIMESTAMP, ContextTokens"):
        read_trace(path, TraceOptions(format="azure"))
    with pytest.raises(InputError, match="format mooncake is JSON Lines"):
        read_trace(path, TraceOptions(format="mooncake"))
    with pytest.raises(InputError, match="format azure is CSV"):
        read_trace(write(tmp_path, bare(0)), TraceOptions(format="azure"))


def test_two_formats_in_one_header_need_a_choice(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens,arrival_time_s,input_tokens,output_tokens\n"
    path = write(tmp_path, header + "2023-11-16 18:15:46,10,11,0,20,21\n")
    with pytest.raises(InputError, match="ambiguous: the columns fit azure and native") as caught:
        read_trace(path)
    assert "give format (--format): azure, native" in str(caught.value)
    assert read_trace(path, TraceOptions(format="native")).input_tokens.tolist() == [20]
    assert read_trace(path, TraceOptions(format="azure")).input_tokens.tolist() == [10]


def test_json_keys_that_fit_two_formats_need_a_choice(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1, "output_length": 2, "hash_ids": [1]}
    path = write(tmp_path, jsonl(row | {"arrival_time_s": 0, "input_tokens": 5, "output_tokens": 6}))
    with pytest.raises(InputError, match="ambiguous: the keys fit mooncake and native"):
        read_trace(path)
