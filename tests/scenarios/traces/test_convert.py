"""`convert_trace`: whatever a trace holds, its native copy reads as the same workload."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.traces import TraceOptions, read_trace
from scenarios.traces import read as row_store
from scenarios.traces.convert import convert_trace, write_native
from simulator.errors import InputError
from simulator.workload import Workload
from tests.command import batchlab
from tests.scenarios.traces.test_fixtures import FIXTURE, followed
from tests.scenarios.traces.test_native import FULL_CSV, workloads
from tests.scenarios.traces.test_read import FIXTURES, GOOD, NATIVE, jsonl, mooncake, notes, write
from tests.shared_data import shared

NAMES = [*FIXTURE, *(name for name, *_ in GOOD)]
REAL = [
    "AzureLLMInferenceTrace_code.csv.gz",
    "AzureLLMInferenceTrace_conv.csv.gz",
    "mooncake_conversation_trace.jsonl.gz",
    "servegen_mlarge_derived_1h.csv.gz",
]


def assert_same(one: Workload, other: Workload) -> None:
    assert list(one.requests()) == list(other.requests())
    assert followed(one) == followed(other)


def there_and_back(path: Path, out: Path, options: TraceOptions | None = None) -> Workload:
    """The workload of a trace, after checking that of its native copy; only the copy is left in the folder."""
    workload = read_trace(path, options)
    convert_trace(path, out, options)
    assert_same(read_trace(out, TraceOptions(strict=True)), workload)
    assert [entry.name for entry in out.parent.iterdir() if entry != path] == [out.name]
    return workload


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl.gz"])
def test_every_fixture(name: str, suffix: str, tmp_path: Path) -> None:
    there_and_back(FIXTURES / name, tmp_path / f"copy{suffix}")


@pytest.mark.parametrize("name", REAL)
def test_real_traces(name: str, tmp_path: Path) -> None:
    there_and_back(shared(f"traces/{name}"), tmp_path / "copy.csv.gz", TraceOptions(limit=6000))


def test_all_native_columns(tmp_path: Path) -> None:
    there_and_back(write(tmp_path, FULL_CSV), tmp_path / "copy.csv")
    ids = {"arrival_time_s": 1, "prompt_token_ids": [1, 2], "output_token_ids": [3], "prefix_group": "g"}
    path = write(tmp_path, jsonl({**ids, "prefix_tokens": 1}, {"arrival_time_s": 0, "prompt_token_ids": [4]} | ids))
    (tmp_path / "copy.csv").unlink()
    there_and_back(path, tmp_path / "copy.jsonl")
    with pytest.raises(InputError, match="CSV cannot hold prompt_token_ids"):
        convert_trace(path, tmp_path / "copy.csv")
    assert not (tmp_path / "copy.csv").exists()


@given(workload=workloads(with_ids=True), data=st.data())
def test_any_native_trace(workload: Workload, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("convert")
    write_native(workload, folder / "given.jsonl")
    lines = (folder / "given.jsonl").read_text().splitlines()
    path = write(folder, "\n".join(data.draw(st.permutations(lines))), "shuffled.jsonl")
    convert_trace(path, folder / "copy.jsonl")
    assert_same(read_trace(folder / "copy.jsonl"), read_trace(path))


def test_rows_out_of_order_are_sorted_outside_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "CHUNK_ROWS", 7)
    rng = np.random.default_rng(4)
    stamps = rng.integers(0, 40, 500) * 1000  # many ties: they keep the order of the file
    workload = there_and_back(write(tmp_path, mooncake(*stamps.tolist()), "t"), tmp_path / "copy.csv")
    assert "came after a later arrival and moved up" in notes(workload)
    assert workload.request_ids is not None
    ordered = np.argsort(stamps, kind="stable")
    written = [float(line.split(",")[0]) for line in (tmp_path / "copy.csv").read_text().splitlines()[1:]]
    assert written == (stamps[ordered] / 1000).tolist()
    assert workload.request_ids == [str(row) for row in ordered.tolist()]


@pytest.mark.parametrize(
    "options",
    [
        TraceOptions(start_s=3, duration_s=5),
        TraceOptions(limit=4),
        TraceOptions(sample=0.5, seed=3),
        TraceOptions(start_s=2, rate_scale=2, input_scale=0.5, jitter_s=1, loop=3),
    ],
)
def test_parts(options: TraceOptions, tmp_path: Path) -> None:
    text = NATIVE + "".join(f"{t},{t + 1},{t + 2}\n" for t in range(12))
    there_and_back(write(tmp_path, text), tmp_path / "copy.csv", options)


def test_images_of_scaled_prompts_are_dropped_and_that_is_said(tmp_path: Path) -> None:
    workload = there_and_back(write(tmp_path, FULL_CSV), tmp_path / "copy.csv", TraceOptions(input_scale=0.3))
    assert workload.images is None
    assert "dropped all images: they do not grow with the prompts (input_scale 0.3)" in workload.notes


@pytest.mark.parametrize("options", [TraceOptions(start_s=11), TraceOptions(limit=2), TraceOptions(start_s=12)])
def test_requests_wait_for_the_answers_of_the_part_alone(options: TraceOptions, tmp_path: Path) -> None:
    there_and_back(write(tmp_path, FULL_CSV), tmp_path / "copy.csv", options)


def test_requests_do_not_wait_for_rows_that_are_set_aside(tmp_path: Path) -> None:
    there_and_back(write(tmp_path, FULL_CSV.replace("11.75,20,3", "11.75,20,x")), tmp_path / "copy.csv")


def test_equal_traces_make_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        convert_trace(FIXTURES / "mooncake_ms_blank_line_noeol.jsonl", tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_what_is_not_there_is_not_made_up(tmp_path: Path) -> None:
    convert_trace(FIXTURES / "vidur_arrivals.csv", tmp_path / "copy.csv")
    assert (tmp_path / "copy.csv").read_text() == NATIVE + "0.0,370,45\n4.25,390,110\n"


def test_a_name_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    header = "request_id,arrival_time_s,input_tokens,output_tokens\n"
    path = write(tmp_path, header + "a,0,1,1\nb,1,1,1\na,2,1,1\n")
    with pytest.raises(InputError, match=r":4: the request_id 'a' occurs twice\n.*first on line 2"):
        convert_trace(path, tmp_path / "copy.csv")
    path = write(tmp_path, header + "1,0,1,1\n,1,1,1\n")
    with pytest.raises(InputError, match=r":3: the request_id '1' occurs twice"):
        convert_trace(path, tmp_path / "copy.csv")


def test_nothing_usable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no usable request in 1 row"):
        convert_trace(write(tmp_path, NATIVE + "0,1,0\n"), tmp_path / "copy.csv")
    with pytest.raises(InputError, match="cannot write: No such file or directory"):
        convert_trace(write(tmp_path, NATIVE + "0,1,1\n"), tmp_path / "nowhere" / "copy.csv")


def test_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "new" / "copy.csv.gz"
    done = batchlab("trace", "convert", str(FIXTURES / "weka_flat_seconds.jsonl"), str(out), cwd=tmp_path)
    assert done.code == 0
    assert done.out == f"trace: {out} (weka (JSON Lines): 2 requests out of 2 rows in 12.5 s, 0.080 requests/s)\n"
    assert "note: 1 request follows an earlier answer" in done.err
    before = out.read_bytes()
    assert gzip.decompress(before).startswith(NATIVE.strip().encode())
    again = batchlab("trace", "convert", str(FIXTURES / "weka_flat_seconds.jsonl"), str(out), cwd=tmp_path)
    assert (again.code, out.read_bytes()) == (0, before)  # the same file again is no loss
    other = ("trace", "convert", str(FIXTURES / "vidur_arrivals.csv"), str(out), "--quiet")
    refused = batchlab(*other, cwd=tmp_path)
    assert refused.code == 2
    assert "copy.csv.gz would change; nothing was written" in refused.err
    assert out.read_bytes() == before
    assert batchlab(*other, "--overwrite", cwd=tmp_path).code == 0
    assert out.read_bytes() != before
    assert [path.name for path in out.parent.iterdir()] == [out.name]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--sample", "0"), "sample: 0.0 is not above 0"),
        (("--zero-output", "two"), "zero_output: 'two' is unknown"),
        (("--time-unit", "min"), "time_unit: 'min' is not a unit"),
        (("--strict",), ":5: Response tokens is 0"),
        (("--start", "1e9"), "no usable request in 4 rows"),
    ],
)
def test_bad_flags(flags: tuple[str, ...], said: str, tmp_path: Path) -> None:
    file = str(FIXTURES / "burstgpt_v1_failed_row.csv")
    done = batchlab("trace", "convert", file, str(tmp_path / "copy.csv"), *flags, cwd=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.err
    assert not list(tmp_path.iterdir())


def test_a_bad_name_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = batchlab("trace", "convert", str(tmp_path / "missing.csv"), str(tmp_path / "copy.txt"), cwd=tmp_path)
    assert done.code == 2
    assert f"{tmp_path / 'copy.txt'}: cannot tell the kind of trace from the name 'copy.txt'" in done.err
