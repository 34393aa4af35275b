"""The native format: all its columns, both its kinds, and that what is written reads back equal."""

import gzip
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.convert import write_native
from scenarios.traces.formats.native import OPTIONAL, REQUIRED
from simulator.errors import InputError
from simulator.request import Image, PromptContent, Request
from simulator.workload import Workload
from tests.scenarios.traces.test_read import NATIVE, jsonl, notes, write

FULL_CSV = (
    "arrival_time_s,input_tokens,output_tokens,request_id,priority,class,session_id,prefix_group,prefix_tokens,"
    "block_hashes,hash_block_size,max_tokens,predicted_output_tokens,deadline_s,after_request_id,delay_s,"
    "patience_s,data_parallel_rank,lora,images,accepted_drafts,after_request_ids,task_id\n"
    "10.5,40,7,first,-2,chat,s1,system,16,11 12 -13,16,64,9,1.5,,,2.5,,sql,5 map:20@8,3 0 1,,\n"
    "11.75,20,3,,,,,,,5;6,,,0,,first,0.25,,3,,,,,task\n"
    "12,20,3,third,1,batch,,,,,,,,0,,,,0,,,2,1 first,task\n"
)
FULL_REQUESTS = [
    Request(
        0, "first", 10.5, 40, 7, 64, -2, "chat", "s1", 9, 1.5, PromptContent((11, 12, -13), 16, "system", 16),
        None, "sql", (Image("0.0", 0, 5), Image("map", 8, 20)), (3, 0, 1),
    ),
    Request(1, "1", 11.75, 20, 3, 7, 0, "default", None, 0, None, PromptContent((5, 6), 16), 3),
    Request(2, "third", 12.0, 20, 3, 7, 1, "batch", None, None, 0.0, None, 0, None, (), (2,)),
]  # fmt: skip


def test_all_csv_columns(tmp_path: Path) -> None:
    assert set(FULL_CSV.split("\n")[0].split(",")) == {*REQUIRED, *OPTIONAL}
    workload = read_trace(write(tmp_path, FULL_CSV))
    assert list(workload.requests()) == FULL_REQUESTS
    assert workload.class_names == ("chat", "default", "batch")
    assert workload.after_row is not None
    assert workload.delay_s is not None
    assert workload.after_row.tolist() == [-1, 0, 1]
    assert workload.delay_s.tolist() == [0, 0.25, 0]
    assert workload.also_after == [(), (), (0,)]
    assert workload.task_ids == [None, "task", "task"]
    assert workload.patience_s is not None
    np.testing.assert_array_equal(workload.patience_s, [2.5, np.nan, np.nan])


def test_all_json_keys(tmp_path: Path) -> None:
    text = jsonl(
        {
            "arrival_time_s": 10.5,
            "input_tokens": 3,
            "output_tokens": 2,
            "request_id": 17,
            "priority": 1,
            "class": "chat",
            "session_id": "s",
            "prefix_group": "g",
            "prefix_tokens": 2,
            "block_hashes": [1, 2],
            "hash_block_size": 2,
            "max_tokens": 9,
            "predicted_output_tokens": 4,
            "deadline_s": 2.5,
            "prompt_token_ids": [5, 6, 7],
            "output_token_ids": [8, 9],
            "something": "else",
        },
        {"arrival_time_s": 11, "prompt_token_ids": [5, 6, 7, 8], "output_token_ids": [1]},
        {"arrival_time_s": "12.0", "input_tokens": 5.0, "output_tokens": "6", "class": None},
    )
    content = PromptContent((1, 2), 2, "g", 2, (5, 6, 7), (8, 9))
    assert list(read_trace(write(tmp_path, text)).requests()) == [
        Request(0, "17", 10.5, 3, 2, 9, 1, "chat", "s", 4, 2.5, content),
        Request(1, "1", 11.0, 4, 1, 6, content=PromptContent(prompt_token_ids=(5, 6, 7, 8), output_token_ids=(1,))),
        Request(2, "2", 12.0, 5, 6, 6),
    ]


def test_json_may_begin_with_token_ids_alone(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"arrival_time_s": 0, "prompt_token_ids": [1, 2], "output_tokens": 3},
        {"arrival_time_s": 0, "input_tokens": 2, "output_token_ids": [1, 2, 3]},
        {"arrival_time_s": 0, "prompt_token_ids": [1, 2], "output_token_ids": [1, 2, 3]},
    ]
    for row in rows:
        workload = read_trace(write(tmp_path, jsonl(row)))
        assert (workload.input_tokens.tolist(), workload.output_tokens.tolist()) == ([2], [3])


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("priority", "1.5", "priority is not a whole number: '1.5'"),
        ("priority", "9999999999", "priority is out of range"),
        ("max_tokens", "0", "max_tokens is 0"),
        ("deadline_s", "-1", "deadline_s is negative"),
        ("predicted_output_tokens", "-1", "predicted_output_tokens is negative"),
        ("block_hashes", "1 x", "block_hashes is not a list of whole numbers"),
        ("hash_block_size", "16", "hash_block_size without block_hashes"),
        ("prefix_group", "g", "prefix_group without prefix_tokens"),
        ("prefix_tokens", "4", "prefix_tokens without a prefix_group"),
        ("prefix_group,prefix_tokens", "g,99", "prefix_tokens is above input_tokens: '99 of 10'"),
        ("request_id", "\udcff", "request_id is not valid UTF-8"),
        ("delay_s", "1", "delay_s without an after_request_id"),
        ("after_request_id,delay_s", "0,-1", "delay_s is negative"),
    ],
)
def test_bad_optional_values(column: str, values: str, said: str, tmp_path: Path) -> None:
    header = f"arrival_time_s,input_tokens,output_tokens,{column}\n"
    good = "0,10,1" + "," * values.count(",") + ",\n"
    path = write(tmp_path, (header + good + f"1,10,1,{values}\n").encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError) as caught:
        read_trace(path, TraceOptions(strict=True))
    assert str(caught.value).startswith(f"{path}:3: {said}")
    workload = read_trace(path)
    assert len(workload) == 1
    assert "skipped 1 row" in notes(workload)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt_token_ids": [1]}, "prompt_token_ids is not input_tokens long: '1 for 2'"),
        ({"prompt_token_ids": "1 x"}, "prompt_token_ids is not a list of whole numbers"),
        ({"prompt_token_ids": [1, "x"]}, "prompt_token_ids is not a list of whole numbers"),
        ({"output_token_ids": [], "output_tokens": None}, "output_tokens is 0"),
        ({"class": 1.5}, "class is neither text nor a whole number: 1.5"),
        ({"request_id": "\ud800"}, "request_id is not valid UTF-8"),
        ({"arrival_time_s": 1e13}, "arrival_time_s is too large for a time"),
    ],
)
def test_bad_json_values(row: dict[str, object], said: str, tmp_path: Path) -> None:
    path = write(tmp_path, jsonl({"arrival_time_s": 0, "input_tokens": 2, "output_tokens": 2} | row))
    with pytest.raises(InputError) as caught:
        read_trace(path, TraceOptions(strict=True))
    assert str(caught.value).startswith(f"{path}:1: {said}")


def test_block_size_is_inferred_and_more_hashes_than_blocks_are_dropped(tmp_path: Path) -> None:
    header = "arrival_time_s,input_tokens,output_tokens,block_hashes,hash_block_size\n"
    workload = read_trace(write(tmp_path, header + "0,100,1,1 2 3,\n0,33,1,1,\n0,90,1,1 2,64\n0,90,1,1 2 3,64\n"))
    assert workload.content == [
        PromptContent((1, 2, 3), 34),  # ceil(100 / 34) = 3, ceil(33 / 34) = 1: the smallest size that fits both
        PromptContent((1,), 34),
        PromptContent((1, 2), 64),
        None,
    ]
    assert "block hashes of 34 tokens each" in workload.notes
    assert "dropped the hashes of 1 row: block hashes do not fit" in notes(workload)


def test_scaling_prompts_scales_their_blocks_or_drops_them(tmp_path: Path) -> None:
    header = "arrival_time_s,input_tokens,output_tokens,block_hashes,hash_block_size,prefix_group,prefix_tokens\n"
    path = write(tmp_path, header + "0,33,1,1 2 3,16,g,20\n0,32,1,1 2,16,,\n")
    half = read_trace(path, TraceOptions(input_scale=0.5))
    # 33 tokens become 16: the third block, which held one token, is gone.
    assert half.content == [PromptContent((1, 2), 8, "g", 10), PromptContent((1, 2), 8)]
    third = read_trace(path, TraceOptions(input_scale=1 / 3))
    assert third.content == [PromptContent(prefix_group="g", prefix_tokens=7), None]
    assert "gives blocks that are not a whole number of tokens" in notes(third)


def test_scaling_drops_token_ids(tmp_path: Path) -> None:
    row: dict[str, object] = {"arrival_time_s": 0, "prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}
    path = write(tmp_path, jsonl(row))
    assert read_trace(path, TraceOptions(output_scale=2)).content == [PromptContent(prompt_token_ids=(1, 2))]
    assert read_trace(path, TraceOptions(input_scale=2, output_scale=2)).content is None


def test_predictions_scale_with_outputs(tmp_path: Path) -> None:
    header = "arrival_time_s,input_tokens,output_tokens,predicted_output_tokens\n"
    workload = read_trace(write(tmp_path, header + "0,1,4,6\n0,1,4,\n0,1,4,0\n"), TraceOptions(output_scale=0.5))
    assert workload.predicted_output_tokens is not None
    assert workload.predicted_output_tokens.tolist() == [3, -1, 0]


T = TypeVar("T")

# Names in a file: one line of UTF-8 text, not blank. Everything else is free, quotes and commas above all.
names = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=8).filter(str.strip)
counts = st.integers(1, 2**31 - 1)


@st.composite
def contents(draw: st.DrawFn, input_tokens: int, output_tokens: int, with_ids: bool) -> PromptContent | None:
    """What a prompt of so many tokens may hold; None where that is nothing."""
    hashes: tuple[int, ...] = ()
    size = draw(st.integers(max(1, -(-input_tokens // 4)), 2**31 - 1)) if draw(st.booleans()) else 0
    if size:
        blocks = draw(st.integers(1, -(-input_tokens // size)))
        hashes = tuple(draw(st.lists(st.integers(-(2**63), 2**64), min_size=blocks, max_size=blocks)))
    group = draw(st.none() | names)
    prefix = 0 if group is None else draw(st.integers(0, input_tokens))
    prompt: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()
    if with_ids and draw(st.booleans()):
        prompt = tuple(draw(st.lists(st.integers(0, 9), min_size=input_tokens, max_size=input_tokens)))
    if with_ids and draw(st.booleans()):
        answer = tuple(draw(st.lists(st.integers(0, 9), min_size=output_tokens, max_size=output_tokens)))
    content = PromptContent(hashes, size, group, prefix, prompt, answer)
    return None if content == PromptContent() else content


@st.composite
def workloads(draw: st.DrawFn, with_ids: bool) -> Workload:
    """Any workload whose first request arrives at 0."""
    n = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[T]) -> list[T]:
        return draw(st.lists(values, min_size=n, max_size=n))

    tokens = st.integers(1, 12) if with_ids else counts
    inputs, outputs = column(tokens), column(tokens)
    arrivals = sorted(column(st.floats(0, 1e9)))
    arrivals[0] = 0.0
    class_names = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
    prompts = [draw(contents(i, o, with_ids)) for i, o in zip(inputs, outputs, strict=True)]
    deadlines = column(st.just(float("nan")) | st.floats(0, 1e9))
    has = column(st.booleans()) if n > 4 else draw(st.lists(st.booleans(), min_size=5, max_size=5))
    return Workload(
        arrival_s=np.array(arrivals),
        input_tokens=np.array(inputs),
        output_tokens=np.array(outputs),
        max_tokens=np.array([draw(st.integers(o, 2**31 - 1)) for o in outputs]),
        priority=np.array(column(st.integers(-5, 5))),
        class_index=np.array(column(st.integers(0, len(class_names) - 1))),
        class_names=class_names,
        request_ids=draw(st.lists(names, min_size=n, max_size=n, unique=True)) if has[0] else None,
        session_ids=column(st.none() | names) if has[1] else None,
        predicted_output_tokens=np.array(column(st.integers(-1, 2**31 - 1))) if has[2] else None,
        deadline_s=np.array(deadlines) if has[3] else None,
        data_parallel_rank=np.array(column(st.integers(-1, 9))) if has[3] else None,
        content=prompts if has[4] else None,
    )


@given(workload=workloads(with_ids=False), suffix=st.sampled_from([".csv", ".csv.gz", ".jsonl", ".jsonl.gz"]))
def test_what_is_written_reads_back_equal(
    workload: Workload, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("native") / f"trace{suffix}"
    write_native(workload, path)
    assert list(read_trace(path, TraceOptions(strict=True)).requests()) == list(workload.requests())


@given(workload=workloads(with_ids=True))
def test_token_ids_read_back_equal_from_json(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("native") / "trace.jsonl"
    write_native(workload, path)
    assert list(read_trace(path, TraceOptions(strict=True)).requests()) == list(workload.requests())


def small(**changes: object) -> Workload:
    columns: dict[str, object] = {
        "arrival_s": np.array([0.0]),
        "input_tokens": np.array([1]),
        "output_tokens": np.array([2]),
        "max_tokens": np.array([3]),
        "priority": np.array([0]),
        "class_index": np.array([0]),
    }
    return Workload(**(columns | changes))  # type: ignore[arg-type]  # the test's own columns


def test_plain_workload_is_plain_csv(tmp_path: Path) -> None:
    write_native(small(), tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "arrival_time_s,input_tokens,output_tokens,max_tokens\n0.0,1,2,3\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_gzip_holds_no_date_and_no_name(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_native(small(), tmp_path / name)
    data = (tmp_path / "a.csv.gz").read_bytes()
    assert data == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress(data).startswith(NATIVE.rstrip().encode())


@pytest.mark.parametrize(
    ("workload", "name", "said"),
    [
        (small(), "trace.txt", r"cannot tell the kind of trace.*'trace\.txt'"),
        (small(), "trace", "cannot tell the kind of trace"),
        (small(request_ids=["a\nb"]), "t.csv", r"the request_id 'a\\nb' cannot be written"),
        (small(session_ids=[" "]), "t.csv", "the session_id ' ' cannot be written"),
        (small(class_names=("\ud800",)), "t.jsonl", "the class .* cannot be written"),
        (small(content=[PromptContent(prompt_token_ids=(1,))]), "t.csv", "CSV cannot hold prompt_token_ids"),
        (small(), "missing/t.csv", "cannot write: No such file or directory"),
    ],
)
def test_what_cannot_be_written(workload: Workload, name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        write_native(workload, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_old_file_stays_whole_when_writing_fails(tmp_path: Path) -> None:
    path = write(tmp_path, "old")
    with pytest.raises(InputError):
        write_native(small(content=[PromptContent(prompt_token_ids=(1,))]), path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl.gz"])
def test_the_patience_of_clients_reads_back_equal(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    twice = {name: np.repeat(column, 2) for name, column in small().columns().items()}
    write_native(small(**twice, patience_s=np.array([np.nan, 0.1])), path)
    patience = read_trace(path, TraceOptions(strict=True)).patience_s
    assert patience is not None
    np.testing.assert_array_equal(patience, [np.nan, 0.1])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl.gz"])
def test_accepted_drafts_read_back_equal(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    twice = {name: np.repeat(column, 2) for name, column in small().columns().items()}
    write_native(small(**twice, accepted_drafts=[(2, 0, 3), None]), path)
    assert read_trace(path, TraceOptions(strict=True)).accepted_drafts == [(2, 0, 3), None]
    path = tmp_path / "negative.csv"
    path.write_text("arrival_time_s,input_tokens,output_tokens,accepted_drafts\n0,1,2,1 -1\n")
    with pytest.raises(InputError, match="accepted_drafts has a negative number"):
        read_trace(path, TraceOptions(strict=True))


def test_a_negative_patience_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_time_s,input_tokens,output_tokens,patience_s\n0,1,2,-1\n")
    with pytest.raises(InputError, match="patience_s is negative"):
        read_trace(path, TraceOptions(strict=True))
