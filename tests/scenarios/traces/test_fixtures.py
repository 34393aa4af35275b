"""Every fixture of another project's format, with every value known: one format a case."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.inspect import inspect_trace
from simulator.request import PromptContent, Request
from simulator.workload import Workload
from tests.scenarios.traces.test_read import FIXTURES, notes, write

UNTIMED = "no arrival times: every request arrives at 0, unless workload.trace.arrival gives other arrivals"
SESSION = "00000000-0000-4000-8000-000000000001"

# file: (format, requests, what each follows and how long after it, what notes say)
FIXTURE: dict[str, tuple[str, list[Request], list[tuple[int, float]], tuple[str, ...]]] = {
    "bailian_seconds_sessions.jsonl": (
        "bailian",
        [
            Request(0, "1", 0.0, 40, 30, 30, 0, "text", "1", content=PromptContent((10, 11, 12), 16)),
            Request(1, "2", 14.25, 75, 20, 30, 0, "text", "1", content=PromptContent((10, 11, 13, 14, 15), 16)),
        ],
        [(-1, 0.0), (0, 14.25)],
        ("time 0 is timestamp 61.25 s", "delays since a parent's answer include the answer's time"),
    ),
    "burstgpt_v1_failed_row.csv": (
        "burstgpt",
        [
            Request(0, "0", 0.0, 450, 20, 250, 0, "ChatGPT"),
            Request(1, "1", 34.0, 1010, 220, 250, 0, "ChatGPT"),
            Request(2, "2", 113.0, 400, 250, 250, 0, "GPT-4"),
        ],
        [],
        ("skipped 1 row: Response tokens is 0 (line 5)", "time 0 is timestamp 7 s"),
    ),
    "burstgpt_v3_session.csv": (
        "burstgpt",
        [
            Request(0, f"{SESSION}/0", 0.0, 460, 19, 19, 0, "ChatGPT", SESSION),
            Request(1, "1", 3.5, 12, 7, 19, 0, "GPT-4"),
        ],
        [],
        ("time 0 is timestamp 5.5 s",),
    ),
    "llmservingsim_flat_and_agentic.jsonl": (
        "llmservingsim",
        [
            Request(0, "s0/0", 0.0, 1500, 130, 512, session_id="s0"),
            Request(1, "0", 0.043, 128, 512, 512),
            Request(2, "s0/1", 0.127, 1700, 120, 512, session_id="s0"),
        ],
        [(-1, 0.0), (-1, 0.0), (0, 0.127)],
        ("1 turn without a time of its own arrives as if the answers before them took no time",),
    ),
    "openai_batch.jsonl": (
        "openai-batch",
        [Request(0, "request-1", 0.0, 2, 100, 100, 0, "m")],
        [],
        (UNTIMED, "tokens estimated as characters / 4; answers have their max_tokens"),
    ),
    "servegen_offline_stat_no_arrivals.jsonl": (
        "servegen-offline",
        [Request(0, "0", 0.0, 60, 2300, 2300, 0, "text"), Request(1, "1", 0.0, 55, 2000, 2300, 0, "text")],
        [],
        (UNTIMED,),
    ),
    "sharegpt.json": (
        "sharegpt",
        [Request(0, "0", 0.0, 3, 5, 5)],
        [],
        (UNTIMED, "skipped 1 row: a conversation without a human turn and its answer (line 1)"),
    ),
    "splitwise_sim.csv": (
        "splitwise",
        [Request(0, "0", 0.0, 4000, 30, 30), Request(1, "1", 2.5, 2000, 8, 30)],
        [],
        ("time 0 is timestamp 0.5 s",),
    ),
    "vidur_arrivals.csv": (
        "vidur",
        [Request(0, "0", 0.0, 370, 45, 110), Request(1, "1", 4.25, 390, 110, 110)],
        [],
        ("0.235 requests/s",),
    ),
    "vidur_lengths_only.csv": (
        "vidur-lengths",
        [Request(0, "0", 0.0, 3700, 50, 160), Request(1, "1", 0.0, 2000, 160, 160)],
        [],
        (UNTIMED,),
    ),
    "weka_flat_seconds.jsonl": (
        "weka",
        [
            Request(0, "conv-0/0", 0.0, 140, 30, 40, session_id="conv-0", content=PromptContent((1, 2), 64)),
            Request(1, "conv-0/1", 12.5, 260, 40, 40, session_id="conv-0", content=PromptContent((1, 2, 3, 4), 64)),
        ],
        [(-1, 0.0), (0, 12.5)],
        ("1 request follows an earlier answer (sessions); an open replay keeps the recorded times",),
    ),
}


def followed(workload: Workload) -> list[tuple[int, float]]:
    """What each request follows, and how long after it; empty where no request can."""
    if workload.after_row is None:
        return []
    assert workload.delay_s is not None
    return list(zip(workload.after_row.tolist(), workload.delay_s.tolist(), strict=True))


@pytest.mark.parametrize("name", FIXTURE)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_fixture(name: str, packed: bool, tmp_path: Path) -> None:
    format_, requests, follows, said = FIXTURE[name]
    data = (FIXTURES / name).read_bytes()
    path = write(tmp_path, gzip.compress(data) if packed else data, "trace")  # the name says nothing
    workload = read_trace(path)
    assert list(workload.requests()) == requests
    assert followed(workload) == follows
    for note in said:
        assert note in notes(workload)
    facts = inspect_trace(path)
    assert (facts.format, facts.notes) == (format_, workload.notes)
    assert read_trace(path, TraceOptions(format=format_)).notes == workload.notes


def test_quirks_of_text_files_are_taken_in_every_format(tmp_path: Path) -> None:
    """A byte order mark, CR LF, blank lines and a missing final newline change nothing."""
    for name, (_, requests, _, _) in FIXTURE.items():
        text = (FIXTURES / name).read_text().strip().replace("\n", "\r\n\r\n")
        assert list(read_trace(write(tmp_path, b"\xef\xbb\xbf" + text.encode())).requests()) == requests, name


CSV = [name for name in FIXTURE if name.endswith(".csv")]


@pytest.mark.parametrize("name", CSV)
def test_columns_in_another_order_and_more_of_them(name: str, tmp_path: Path) -> None:
    rows = [line.split(",") for line in (FIXTURES / name).read_text().splitlines()]
    changed = "\n".join(",".join([*row[::-1], "more" if not place else "x"]) for place, row in enumerate(rows))
    assert list(read_trace(write(tmp_path, changed)).requests()) == FIXTURE[name][1]
    assert list(read_trace(write(tmp_path, changed.replace("Timestamp", " TIMESTAMP "))).requests())


def test_failed_requests_can_count_as_one_token() -> None:
    workload = read_trace(FIXTURES / "burstgpt_v1_failed_row.csv", TraceOptions(zero_output="one"))
    assert workload.output_tokens.tolist() == [20, 220, 250, 1]
    assert workload.input_tokens.tolist() == [450, 1010, 400, 310]


def test_a_row_without_any_token_stays_out(tmp_path: Path) -> None:
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,a,3,4,7,x\n6,a,0,0,0,x\n"
    path = write(tmp_path, text)
    for options in (TraceOptions(), TraceOptions(zero_output="one")):
        assert len(read_trace(path, options)) == 1
    assert "skipped 1 row: a failed request: no tokens at all (line 3)" in notes(read_trace(path))


def test_all_formats_take_answers_without_tokens(tmp_path: Path) -> None:
    texts = {
        "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-02 00:00:00,5,0\n",
        "blis": "request_id,arrival_time_us,input_tokens,output_tokens\n1,5,5,0\n",
        "guidellm-csv": "timestamp,input_length,output_length\n0.5,5,0\n",
        "llmservingsim": "arrival_time_ns,input_toks,output_toks\n1,5,0\n",
        "native": "arrival_time_s,input_tokens,output_tokens\n1,5,0\n",
        "run": "request_id,status,arrival_s,input_tokens,output_tokens\na,finished,1,5,0\n",
        "splitwise": "request_id,request_type,arrival_timestamp,prompt_size,token_size\n1,2,0,5,0\n",
        "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,0\n",
        "vidur-lengths": "num_prefill_tokens,num_decode_tokens\n5,0\n",
        "aiperf": '{"session_id":"a","timestamp":1,"input_length":5,"output_length":0}\n',
        "bailian": '{"chat_id":1,"parent_chat_id":-1,"timestamp":1,"input_length":5,"output_length":0}\n',
        "mooncake": '{"timestamp":1,"input_length":5,"output_length":0,"hash_ids":[1]}\n',
        "servegen-offline": '{"request_id":1,"input_length":5,"hash_ids":[1],"img_ids":[]}\n',
        "weka": '{"id":"c","t":1,"in":5,"out":0}\n',
    }
    for format_, text in texts.items():
        path = write(tmp_path, text)
        facts = inspect_trace(path, TraceOptions(zero_output="one"))
        assert (facts.format, facts.input.max, facts.output.max) == (format_, 5, 1)


@pytest.mark.parametrize(
    ("stamps", "arrivals"), [((7.5, 8, 9), [0, 0.5, 1.5]), ((0, 3000, 6000), [0, 3, 6]), ((4, 4), [0, 0])]
)
def test_guidellm_csv_tells_the_unit_as_its_json_does(
    stamps: tuple[float, ...], arrivals: list[float], tmp_path: Path
) -> None:
    text = "timestamp,input_length,output_length\n" + "".join(f"{t},5,6\n" for t in stamps)
    assert read_trace(write(tmp_path, text)).arrival_s.tolist() == arrivals


def test_weka_conversations_over_several_lines(tmp_path: Path) -> None:
    text = """{
      "id": "c", "models": ["m"], "block_size": 32, "hash_id_scope": "local",
      "requests": [
        {"t": 0.0, "type": "n", "in": 70, "out": 5, "hash_ids": [1, 2], "api_time": 2.0},
        {"t": 3.5, "type": "subagent", "requests": []},
        {"t": 9.0, "type": "s", "in": 99, "out": 6, "hash_ids": [1, 2, 3], "think_time": 1.25},
        {"t": 12.0, "type": "s", "in": 99, "out": 7, "hash_ids": [1, 2, 3]}
      ]
    }
    {"id": "d", "requests": [{"t": 0, "type": "n", "in": 64, "out": 1, "hash_ids": [1]}]}
    """
    workload = read_trace(write(tmp_path, text))
    assert workload.arrival_s.tolist() == [0, 0, 9, 12]
    assert workload.request_ids == ["c/0", "d/0", "c/1", "c/2"]
    assert followed(workload) == [(-1, 0), (-1, 0), (0, 1.25), (2, 3.0)]
    first, other, *_ = workload.content or ()
    assert first is not None
    assert other is not None
    assert first.hash_block_size == 32
    assert set(first.block_hashes).isdisjoint(other.block_hashes)  # the same ids in another conversation
    assert "skipped 1 row: calls of a subagent (line 1)" in notes(workload)
    assert "every conversation begins at 0" in notes(workload)


def test_sharegpt_may_be_spread_over_lines_and_begin_with_an_answer(tmp_path: Path) -> None:
    text = """[
      {"id": "a", "conversations": [
        {"from": "gpt", "value": "left over"},
        {"from": "human", "value": "brackets }} ] and \\"quotes\\" {"},
        {"from": "gpt", "value": "fine"}]},
      {"id": "b", "conversations": [{"from": "human", "value": "no answer"}]},
      {"id": "c", "conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "x"}]},
      {"id": "d", "conversations": [{"from": "human", "value": "12345"}, {"from": "gpt", "value": "12345678"}]}
    ]"""
    workload = read_trace(write(tmp_path, text))
    assert workload.input_tokens.tolist() == [7, 2]
    assert workload.output_tokens.tolist() == [1, 2]
    assert "a human turn and its answer (line 6)" in notes(workload)
    assert "an empty turn (line 7)" in notes(workload)


def test_openai_batch_bodies(tmp_path: Path) -> None:
    def row(name: str, body: dict[str, Any]) -> str:
        import json

        return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/x", "body": body}) + "\n"

    parts = [{"type": "text", "text": "12345678"}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    text = (
        row("ids", {"prompt": [5, 6, 7], "max_tokens": 4})
        + row("text", {"prompt": "123456789", "max_completion_tokens": 5})
        + row("parts", {"messages": [{"role": "user", "content": parts}], "max_tokens": 6})
        + row("input", {"input": "1234", "max_output_tokens": 7})
        + row("embedding", {"input": "1234"})
        + row("none", {"max_tokens": 4})
    )
    workload = read_trace(write(tmp_path, text))
    assert workload.request_ids == ["ids", "text", "parts", "input"]
    assert workload.input_tokens.tolist() == [3, 3, 2, 1]
    assert workload.max_tokens.tolist() == workload.output_tokens.tolist() == [4, 5, 6, 7]
    assert workload.content is not None
    assert workload.content[0] == PromptContent(prompt_token_ids=(5, 6, 7))
    assert "no cap on the answer (max_tokens): its length is not known (line 5)" in notes(workload)


def test_blis_columns(tmp_path: Path) -> None:
    header = (
        "request_id,tenant_id,slo_class,vllm_priority,session_id,round_index,prefix_group,prefix_length,input_tokens,"
        "output_tokens,deadline_us,arrival_time_us,last_chunk_time_us,status\n"
    )
    rows = (
        "0,t1,critical,2,s,0,sys,16,40,5,3000000,1000000,2500000,ok\n"
        "1,t1,critical,2,s,1,,0,60,5,0,4000000,0,ok\n"
        "2,t2,,,,0,,0,10,5,0,4500000,0,\n"
        "3,t2,,,,0,,0,10,0,0,4600000,0,timeout\n"
    )
    workload = read_trace(write(tmp_path, header + rows))
    assert list(workload.requests()) == [
        Request(0, "0", 0.0, 40, 5, 5, 2, "critical", "s", None, 2.0, PromptContent((), 0, "sys", 16)),
        Request(1, "1", 3.0, 60, 5, 5, 2, "critical", "s"),
        Request(2, "2", 3.5, 10, 5, 5, 0, "t2"),
    ]
    assert followed(workload) == [(-1, 0), (0, 1.5), (-1, 0)]
    assert "skipped 1 row: status is 'timeout': the request failed (line 5)" in notes(workload)


def test_aiperf_rows(tmp_path: Path) -> None:
    rows = [
        '{"session_id": "a", "timestamp": 1000, "input_length": 10, "output_length": 2, "hash_ids": [7]}',
        '{"session_id": "a", "delay": 500, "text_input": "12345678", "output_length": 3}',
        '{"session_id": "a", "messages": [{"role": "user", "content": "1234"}], "output_length": 4}',
        '{"timestamp": 1200, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}',
        '{"delay": 500, "input_length": 10, "output_length": 5}',
    ]
    workload = read_trace(write(tmp_path, "\n".join(rows)))
    assert workload.arrival_s.tolist() == [0, 0.2, 0.5, 0.5]
    assert workload.input_tokens.tolist() == [10, 600, 2, 1]
    assert followed(workload) == [(-1, 0), (-1, 0), (0, 0.5), (2, 0)]
    assert "2 turns without times of their own arrive as if" in notes(workload)
    assert "2 prompts given as text: tokens estimated as characters / 4" in notes(workload)
    assert "a delay without a session_id: it does not say after which answer (line 5)" in notes(workload)
    assert "block hashes of 512 tokens each" in notes(workload)


def test_bailian_is_a_tree(tmp_path: Path) -> None:
    def row(chat: int, parent: int, stamp: float) -> str:
        return (
            f'{{"chat_id": {chat}, "parent_chat_id": {parent}, "timestamp": {stamp}, "input_length": 20,'
            ' "output_length": 2, "hash_ids": [1]}\n'
        )

    text = row(1, -1, 0) + row(2, 1, 5) + row(3, 1, 7) + row(4, 3, 9) + row(5, 99, 11)
    workload = read_trace(write(tmp_path, text))
    assert workload.session_ids == ["1", "1", "1", "1", "99"]
    assert followed(workload) == [(-1, 0), (0, 5), (0, 7), (2, 2), (-1, 0)]
    assert "dropped the hashes of 5 rows: not one for each 16 tokens" in notes(workload)
