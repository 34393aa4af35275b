"""Traces that cannot be used: each ends in a message that says what, where, and what to do."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios
from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.formats import trace_formats
from simulator.errors import InputError
from tests.scenarios.traces.test_native import FULL_CSV
from tests.scenarios.traces.test_read import AZURE, FIXTURES, NATIVE, jsonl, write

ROW = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}
OK = "0,1,1\n"

# what is wrong: (content, options, parts of the message)
BAD: dict[str, tuple[str | bytes, TraceOptions, tuple[str, ...]]] = {
    "empty file": ("", TraceOptions(), ("the file is empty",)),
    "blank lines only": ("\n \r\n\n", TraceOptions(), ("the file is empty",)),
    "empty gzip": (gzip.compress(b""), TraceOptions(), ("the file is empty",)),
    "header only": (NATIVE, TraceOptions(), ("no usable request", "a header but no rows")),
    "unknown columns": (
        "when,prompt,answer\n1,2,3\n",
        TraceOptions(),
        (":1:", "unknown trace format", "columns seen: when, prompt, answer", "--format", "--time-unit"),
    ),
    "missing column": (
        "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n",
        TraceOptions(),
        ("unknown trace format", "nearest is azure, which lacks GeneratedTokens"),
    ),
    "missing native column": (
        "arrival_time_s,input_tokens,output_token\n0,1,1\n",
        TraceOptions(),
        ("nearest is native, which lacks output_tokens",),
    ),
    "no header": ("0.0,12,13\n", TraceOptions(), ("there is no header", "arrival_time_s,input_tokens,output_tokens")),
    "semicolons": ("arrival_time_s;input_tokens;output_tokens\n", TraceOptions(), ("not separated by commas",)),
    "tabs": ("arrival_time_s\tinput_tokens\toutput_tokens\n", TraceOptions(), ("not separated by commas",)),
    "column twice": (
        "arrival_time_s,input_tokens,input_tokens,output_tokens\n0,1,2,3\n",
        TraceOptions(),
        (":1:", "the column input_tokens occurs 2 times", "at places 2, 3"),
    ),
    "optional column twice": (
        "arrival_time_s,input_tokens,output_tokens,Priority,PRIORITY\n0,1,2,3,4\n",
        TraceOptions(),
        ("the column priority occurs 2 times", "at places 4, 5"),
    ),
    "header with an open quote": ('"arrival_time_s,input_tokens\n', TraceOptions(), ("the header cannot be read",)),
    "binary": (b"\xff\xd8\x00\x10,\x00\n\x00", TraceOptions(), ("not UTF-8 text",)),
    "utf-16": (NATIVE.encode("utf-16"), TraceOptions(), ("UTF-16", "plain text (UTF-8) and gzip are read")),
    "zip": (b"PK\x03\x04rest", TraceOptions(), ("a zip archive",)),
    "zstd": (b"\x28\xb5\x2f\xfdrest", TraceOptions(), ("zstd-compressed",)),
    "parquet": (b"PAR1rest", TraceOptions(), ("a Parquet file",)),
    "gzip cut off": (
        gzip.compress((NATIVE + OK * 5000).encode())[:-20],
        TraceOptions(),
        ("the gzip data ends too early", "the file is cut off"),
    ),
    "gzip damaged": (
        gzip.compress((NATIVE + OK * 50).encode(), mtime=0)[:-8] + b"\x00" * 8,
        TraceOptions(),
        ("damaged gzip data",),
    ),
    "gzip with rubbish inside": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", TraceOptions(), ("gzip",)),
    "json array": ('[{"timestamp": 0}]\n', TraceOptions(), ("a JSON array, not JSON Lines", "one object a line")),
    "pretty-printed json": (
        '{\n  "timestamp": 0,\n  "input_length": 5\n}\n',
        TraceOptions(),
        (":1:", "does not hold a whole JSON object", "one whole object on each line"),
    ),
    "unknown keys": (
        jsonl({"time": 0, "in_len": 5}),
        TraceOptions(),
        ("unknown trace format", "keys seen: time, in_len", "formats read"),
    ),
    "small whole stamps without hashes": (
        jsonl(*({"timestamp": t, "input_length": 5, "output_length": 5} for t in range(5))),
        TraceOptions(),
        ("may be ms (Mooncake) or s (GuideLLM)", "usual step of 1", "--time-unit"),
    ),
    "fractions with hashes": (
        jsonl(ROW, ROW | {"timestamp": 1.5}),
        TraceOptions(),
        ("whole milliseconds, but these have fractions", "--time-unit"),
    ),
    "hashes that fit nothing": (
        jsonl(*(ROW | {"hash_ids": list(range(n))} for n in (1, 2, 400, 999))),
        TraceOptions(),
        ("fit no block size", "ceil(input tokens / block size)"),
    ),
    "all rows skipped": (
        NATIVE + "0,1,0\n1,0,1\n2,x,1\n3,1,0\n",
        TraceOptions(),
        (
            "no usable request in 4 rows",
            "2 rows: output_tokens is 0 (lines 2, 5)",
            "1 row: input_tokens is 0 (line 3)",
            "1 row: input_tokens is not a number (line 4)",
        ),
    ),
    "everything before the window": (
        NATIVE + "0,1,1\n1,1,1\n",
        TraceOptions(start_s=100),
        ("no usable request in 2 rows", "left out 2 rows before start_s"),
    ),
    "request id twice": (
        "request_id,arrival_time_s,input_tokens,output_tokens\na,0,1,1\nb,1,1,1\na,2,1,1\n",
        TraceOptions(),
        (":4:", "the request_id 'a' occurs twice", "first on line 2"),
    ),
    "request id equal to a row's number": (
        "request_id,arrival_time_s,input_tokens,output_tokens\n1,0,1,1\n,1,1,1\n",
        TraceOptions(),
        (":3:", "the request_id '1' occurs twice", "a row without a name has its number"),
    ),
    "unit for date-times": (AZURE, TraceOptions(time_unit="ms"), ("time_unit cannot be given for the format azure",)),
    "unit for native": (NATIVE + OK, TraceOptions(time_unit="ms"), ("time_unit cannot be given", "in seconds")),
    "unit for native json": (
        jsonl({"arrival_time_s": 0, "input_tokens": 1, "output_tokens": 1}),
        TraceOptions(time_unit="ns"),
        ("time_unit cannot be given", "in seconds"),
    ),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_file(case: str, tmp_path: Path) -> None:
    content, options, parts = BAD[case]
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_trace(path, options)
    text = str(caught.value)
    assert text.startswith(str(path))
    for part in parts:
        assert part in text
    text.encode("ascii")  # no byte of a broken file reaches the terminal


# One bad row after a good one: when reading strictly, an error at its line; else the row alone is lost.
STAMP = "2023-11-16 18:15:46"
BAD_ROWS: dict[str, tuple[str, str, str]] = {
    "zero output": (AZURE, f"{STAMP},1,0", "GeneratedTokens is 0"),
    "zero input": (AZURE, f"{STAMP},0,1", "ContextTokens is 0"),
    "negative": (AZURE, f"{STAMP},-3,1", "ContextTokens is negative: '-3'"),
    "fraction": (AZURE, f"{STAMP},3.5,1", "ContextTokens is not a whole number: '3.5'"),
    "nan": (AZURE, f"{STAMP},NaN,1", "ContextTokens is NaN or infinite: 'NaN'"),
    "word": (AZURE, f"{STAMP},many,1", "ContextTokens is not a number: 'many'"),
    "underscore": (AZURE, f"{STAMP},1_000,1", "ContextTokens is not a number: '1_000'"),
    "signs": (AZURE, f"{STAMP},+-5,1", "ContextTokens is not a number: '+-5'"),
    "missing": (AZURE, f"{STAMP},,1", "ContextTokens is missing"),
    "huge": (AZURE, f"{STAMP},1e30,1", "ContextTokens does not fit 64 bits: '1e30'"),
    "large": (AZURE, f"{STAMP},99999999999,1", "ContextTokens is above 2147483647"),
    "too few fields": (AZURE, f"{STAMP},5", "not 3 fields"),
    "too many fields": (AZURE, f"{STAMP},5,6,7", "not 3 fields"),
    "open quote": (AZURE, f'"{STAMP},5,6', "the quotes do not match"),
    "no date": (AZURE, ",5,6", "TIMESTAMP is missing"),
    "number for a date": (AZURE, "12.5,5,6", "TIMESTAMP is not a date-time: '12.5'"),
    "no such day": (AZURE, "2023-02-30 00:00:00,5,6", "TIMESTAMP is not a date-time"),
    "no such hour": (AZURE, "2023-02-20 24:00:00,5,6", "TIMESTAMP is not a date-time"),
    "no such second": (AZURE, "2023-02-20 23:00:60,5,6", "TIMESTAMP is not a date-time"),
    "no such offset": (AZURE, "2023-02-20 23:00:00+25:00,5,6", "TIMESTAMP has an impossible offset"),
    "far year": (AZURE, "9999-02-20 23:00:00,5,6", "TIMESTAMP is not within 1970 to 2200"),
    "not a row": (jsonl(ROW), "[1, 2]", "not a JSON object"),
    "cut off": (jsonl(ROW), '{"timestamp": 30', "not a whole JSON object (cut off or malformed)"),
    "very deep": (jsonl(ROW), "[" * 100_000, "not a whole JSON object"),
    "boolean": (jsonl(ROW), jsonl(ROW | {"input_length": True}), "input_length is not a number: True"),
    "null": (jsonl(ROW), jsonl(ROW | {"output_length": None}), "output_length is missing"),
    "list": (jsonl(ROW), jsonl(ROW | {"output_length": [5]}), "output_length is not a number: [5]"),
    "no timestamp": (jsonl(ROW), jsonl({"input_length": 5, "output_length": 5}), "timestamp is missing"),
    "negative timestamp": (jsonl(ROW), jsonl(ROW | {"timestamp": -1}), "timestamp is negative: -1"),
    "huge timestamp": (jsonl(ROW), jsonl(ROW | {"timestamp": 1e300}), "timestamp is too large for a time"),
    "json nan": (
        jsonl(ROW),
        '{"timestamp": NaN, "input_length": 5, "output_length": 5}',
        "timestamp is NaN or infinite",
    ),
    "thousand digits": (jsonl(ROW), '{"timestamp": ' + "9" * 5000 + "}", "not a whole JSON object"),
    "hashes as text": (jsonl(ROW), jsonl(ROW | {"hash_ids": "a b"}), "hash_ids is not a list of whole numbers"),
    "hashes as floats": (jsonl(ROW), jsonl(ROW | {"hash_ids": [0.5, 1]}), "hash_ids is not a list of whole numbers"),
}


@pytest.mark.parametrize("case", sorted(BAD_ROWS))
def test_bad_row(case: str, tmp_path: Path) -> None:
    head, row, said = BAD_ROWS[case]
    good = f"{STAMP},7,8\n" if head == AZURE else ""
    path = write(tmp_path, head + good + row.rstrip("\n") + "\n" + good)
    line = 3 if good else 2
    with pytest.raises(InputError) as caught:
        read_trace(path, TraceOptions(strict=True))
    assert str(caught.value).startswith(f"{path}:{line}: {said}")
    assert "strict" in str(caught.value)
    workload = read_trace(path)
    assert len(workload) == (2 if good else 1)
    assert any(note.startswith("skipped 1 row: ") and f"(line {line})" in note for note in workload.notes)


def test_hashes_that_do_not_fit_one_row_are_dropped_there_alone(tmp_path: Path) -> None:
    path = write(tmp_path, jsonl(ROW, ROW, ROW | {"hash_ids": [0, 1, 2]}, ROW | {"hash_ids": []}))
    workload = read_trace(path)
    assert workload.content is not None
    assert [content is not None for content in workload.content] == [True, True, False, False]
    assert any(note.startswith("dropped the hashes of 2 rows") and "(lines 3, 4)" in note for note in workload.notes)
    with pytest.raises(InputError, match="3: block hashes do not fit the prompt's length"):
        read_trace(path, TraceOptions(strict=True))


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, NATIVE, "traces.csv")
    with pytest.raises(InputError, match=r"no such file\n.*did you mean .*traces\.csv\?"):
        read_trace(tmp_path / "trcaes.csv")
    with pytest.raises(InputError, match=r"and there is no folder"):
        read_trace(tmp_path / "nowhere" / "trace.csv")
    with pytest.raises(InputError, match="no file of a similar name"):
        read_trace(tmp_path / "zzz")
    with pytest.raises(InputError, match="not a path to a file"):
        read_trace(Path("a\0b"))


def test_a_missing_public_trace_names_its_source(tmp_path: Path) -> None:
    path = tmp_path / "AzureLLMInferenceTrace_conv.csv.gz"
    with pytest.raises(InputError, match=r"no such file\n.*similar name\n.*not shipped \(CC-BY-4.0\): curl -LO https"):
        read_trace(path)
    with pytest.raises(InputError, match=r"workload\.trace\.path: no such file.*\n.*Azure/AzurePublicDataset"):
        scenarios.load({"workload": {"trace": {"path": str(path)}}})
    write(tmp_path, AZURE, "AzureLLMInferenceTrace_conv.csv")
    with pytest.raises(InputError, match=r"did you mean .*_conv\.csv\?\n.*not shipped"):
        read_trace(path)


def test_folder(tmp_path: Path) -> None:
    write(tmp_path, NATIVE, "a.csv")
    with pytest.raises(InputError, match=r"this is a folder, not a trace file\n.*it holds a\.csv"):
        read_trace(tmp_path)
    write(tmp_path, "0,0,0,,0,0\n", "chunk-1-trace.csv")
    with pytest.raises(InputError, match=r"chunk-1-dataset\.json: a ServeGen client's lengths should be in this file"):
        read_trace(tmp_path)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, NATIVE + OK)
    monkeypatch.setattr(Path, "open", refuse)  # root may read everything, so that chmod alone shows nothing
    with pytest.raises(InputError, match="cannot read: Permission denied"):
        read_trace(path)


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scenarios.traces.format.LONGEST_LINE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="a line longer than 1 MiB"):
        read_trace(write(tmp_path, "x" * (3 << 20)))


OPTIONS: list[tuple[Callable[[], TraceOptions], str]] = [
    (lambda: TraceOptions(format="azur"), "unknown trace format 'azur'\n.*did you mean azure"),
    (lambda: TraceOptions(format="csv"), f"allowed: auto, {', '.join(trace_formats())}"),
    (lambda: TraceOptions(time_unit="min"), "time_unit: 'min' is not a unit of time"),  # type: ignore[arg-type]  # on purpose
    (lambda: TraceOptions(rate_scale=0), "rate_scale: 0 is not above 0"),
    (lambda: TraceOptions(rate_scale=float("nan")), "rate_scale: nan is not above 0"),
    (lambda: TraceOptions(duration_s=0), "duration_s: 0 is not above 0"),
    (lambda: TraceOptions(start_s=-1), "start_s: -1 is not 0 or above"),
    (lambda: TraceOptions(jitter_s=float("inf")), "jitter_s: inf"),
    (lambda: TraceOptions(limit=0), "limit: 0 is below 1"),
    (lambda: TraceOptions(max_tokens=0), "max_tokens: 0 is below 1"),
    (lambda: TraceOptions(output_scale=-1), "output_scale: -1 is not above 0"),
    (lambda: TraceOptions(seed=-1), "seed: -1 is below 0"),
]


@pytest.mark.parametrize(("make", "said"), OPTIONS)
def test_bad_options(make: Callable[[], TraceOptions], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


WHOLE = [path.read_bytes() for path in sorted(FIXTURES.iterdir())]
WHOLE += [FULL_CSV.encode(), jsonl({"arrival_time_s": 0, "prompt_token_ids": [1, 2], "output_tokens": 3}).encode()]
JUNK = [b"9" * 30, b"-", b"1e308", b"NaN", b"null", b'"', b"\\", b"[", b"{}", b",", b"\n", b"\xff", b"\x00", b"true"]


@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_but_never_a_crash(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = data.draw(st.sampled_from(WHOLE))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 20)))
    junk = data.draw(st.binary(max_size=12) | st.sampled_from(JUNK))
    damaged = whole[:start] + junk + whole[end:]
    if data.draw(st.booleans()):
        damaged = gzip.compress(damaged)[: data.draw(st.none() | st.integers(1, 200))]
    path = write(tmp_path_factory.mktemp("damaged"), damaged)
    options = TraceOptions(strict=data.draw(st.booleans()), input_scale=data.draw(st.sampled_from([1, 0.5, 0.3])))
    try:
        workload = read_trace(path, options)
    except InputError as error:
        str(error).encode("ascii")
    else:
        assert workload.input_tokens.min() >= 1
        assert np.all(workload.output_tokens <= workload.max_tokens)
        assert np.all(np.diff(workload.arrival_s) >= 0)
