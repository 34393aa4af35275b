"""Random bytes and random fields in every format: a trace is read or refused, the same way by every reader."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.convert import convert_trace
from scenarios.traces.inspect import inspect_trace
from simulator.errors import InputError
from tests.examples import PROFILE, examples
from tests.scenarios.traces.test_convert import assert_same
from tests.scenarios.traces.test_malformed import AGENT, BATCH, BLIS, TURN
from tests.scenarios.traces.test_native import FULL_CSV
from tests.scenarios.traces.test_read import FIXTURES, jsonl, write

EXAMPLES = examples(10_000 if PROFILE == "more" else 200)

TEXTS = [path.read_bytes() for path in sorted(FIXTURES.iterdir())]
TEXTS += [
    FULL_CSV.encode(),
    (BLIS + "0,t,c,s,0,g,4,10,5,9,5,7,ok\n1,t,c,s,1,,0,10,5,0,9,0,\n").encode(),
    b"timestamp,input_length,output_length\n0.5,5,6\n1.5,5,6\n",
    b"request_id,status,arrival_s,input_tokens,output_tokens\na,finished,1,5,6\nb,rejected,2,5,0\n",
    jsonl(TURN, TURN | {"delay": 5}, TURN | {"text_input": "x", "input_length": None}).encode(),
    jsonl(AGENT, BATCH).encode(),
    jsonl(
        {"id": "c", "requests": [{"t": 0, "in": 5, "out": 2, "hash_ids": [1]}, {"t": 1, "in": 9, "out": 2}]}
    ).encode(),
    jsonl({"arrival_time_s": 0, "prompt_token_ids": [1, 2], "output_tokens": 3}).encode(),
]
JUNK = [b"9" * 30, b"-", b"1e308", b"NaN", b"null", b'"', b"\\", b"[", b"{}", b",", b"\n", b"\xff", b"\x00", b"true"]
VALUES: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-1, 9)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["0", "-1", "1e400", " 7 ", "7.0", "nan", "", '"', "a,b", "\r", "\udcff", "\ud800", "x" * 500])
    | st.lists(st.integers(-2, 9), max_size=4)
    | st.dictionaries(st.sampled_from(["t", "in", "from", "value", "content", "input_toks"]), st.integers(), max_size=2)
)
OPTIONS = st.builds(
    TraceOptions,
    strict=st.booleans(),
    input_scale=st.sampled_from([1.0, 0.3]),
    output_scale=st.sampled_from([1.0, 2.5]),
    start_s=st.sampled_from([0.0, 0.5]),
    duration_s=st.none() | st.just(5.0),
    limit=st.none() | st.integers(1, 2),
    sample=st.sampled_from([1.0, 0.5]),
    loop=st.sampled_from([1, 2]),
    jitter_s=st.sampled_from([0.0, 1.0]),
    zero_output=st.sampled_from(["skip", "one"]),
)


def check(path: Path, options: TraceOptions) -> None:
    """Read, inspect and convert a file: all three succeed, or all three refuse it with an error in ASCII."""
    try:
        workload = read_trace(path, options)
    except InputError as error:
        str(error).encode("ascii")
        for other in (inspect_trace, lambda file, how: convert_trace(file, path.with_name("copy.jsonl"), how)):
            with pytest.raises(InputError):
                other(path, options)
        return
    assert workload.input_tokens.min() >= 1
    assert np.all(workload.output_tokens <= workload.max_tokens)
    assert np.all(np.diff(workload.arrival_s) >= 0)
    assert np.all(np.isfinite(workload.arrival_s))
    if workload.after_row is not None:
        assert np.all(workload.after_row < np.arange(len(workload)))
        assert workload.delay_s is not None
        assert np.all(workload.delay_s >= 0)
    facts = inspect_trace(path, options)
    assert facts.requests == len(workload)
    assert facts.input.max == workload.input_tokens.max()
    said = ""
    try:
        convert_trace(path, path.with_name("copy.jsonl"), options)
    except InputError as error:
        said = str(error)
    if said:
        assert "cannot be written" in said  # a blank name, or one with a line end in it
    else:
        assert_same(read_trace(path.with_name("copy.jsonl")), workload)


@EXAMPLES
@given(data=st.data())
def test_bytes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = data.draw(st.sampled_from(TEXTS))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 20)))
    damaged = whole[:start] + data.draw(st.binary(max_size=12) | st.sampled_from(JUNK)) + whole[end:]
    if data.draw(st.booleans()):
        damaged = gzip.compress(damaged, mtime=0)[: data.draw(st.none() | st.integers(1, 200))]
    check(write(folder(tmp_path_factory), damaged), data.draw(OPTIONS))


@EXAMPLES
@given(data=st.data())
def test_fields(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = data.draw(st.sampled_from(TEXTS)).decode("utf-8-sig").splitlines()
    lines += lines[1:] * data.draw(st.integers(0, 1))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        lines[place] = changed(lines[place], data)
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    check(write(folder(tmp_path_factory), text), data.draw(OPTIONS))


def changed(line: str, data: st.DataObject) -> str:
    """The line with one value of it, at any depth, replaced or taken away."""
    try:
        whole = json.loads(line)
    except ValueError:
        fields = line.split(",")
        value = data.draw(VALUES)
        fields[data.draw(st.integers(0, len(fields) - 1))] = value if isinstance(value, str) else json.dumps(value)
        return ",".join(fields)
    inner: Any = whole
    while isinstance(inner, (dict, list)) and inner:
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        if isinstance(inner[key], (dict, list)) and inner[key] and data.draw(st.booleans()):
            inner = inner[key]
        elif data.draw(st.integers(0, 4)):
            inner[key] = data.draw(VALUES)
            break
        else:
            del inner[key]
            break
    return json.dumps(whole)


def folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("fuzz")
