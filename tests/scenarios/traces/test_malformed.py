"""Malformed traces of every format: each ends in its own error, at its line, on the command line too."""

from pathlib import Path

import pytest

from scenarios.traces import TraceOptions, read_trace
from simulator.errors import InputError
from tests.command import batchlab
from tests.scenarios.traces.test_read import jsonl, write

BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
SPLITWISE = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
BLIS = (
    "request_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,input_tokens,output_tokens,"
    "deadline_us,arrival_time_us,last_chunk_time_us,status\n"
)
CHAT: dict[str, object] = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 5, "output_length": 2}
TURN: dict[str, object] = {"session_id": "a", "timestamp": 5, "input_length": 5, "output_length": 2}
WEKA: dict[str, object] = {"id": "c", "t": 0, "in": 5, "out": 2}
CALL: dict[str, object] = {"input_toks": 5, "output_toks": 2}
AGENT: dict[str, object] = {"session_id": "s", "arrival_time_ns": 4, "sub_requests": [CALL]}
BATCH: dict[str, object] = {"custom_id": "r", "method": "POST", "url": "/v1", "body": {"prompt": "x", "max_tokens": 4}}
OFFLINE: dict[str, object] = {"request_id": 0, "input_length": 5, "output_length": 2, "duration": 1}


def body(**parts: object) -> str:
    return jsonl(BATCH | {"body": parts})


def talk(*turns: dict[str, object]) -> str:
    return "[" + jsonl({"id": "a", "conversations": list(turns)}) + "]"


HUMAN: dict[str, object] = {"from": "human", "value": "hello"}

# what is wrong: (content, line, what is said there when reading strictly)
MALFORMED: dict[str, tuple[str | bytes, int, str]] = {
    "bailian without parent": (jsonl(CHAT | {"parent_chat_id": None}), 1, "parent_chat_id is neither text nor a"),
    "bailian fraction as id": (jsonl(CHAT, CHAT | {"chat_id": 1.5}), 2, "chat_id is neither text nor a whole number"),
    "bailian negative time": (jsonl(CHAT | {"timestamp": -1}), 1, "timestamp is negative: -1"),
    "bailian hashes as text": (jsonl(CHAT | {"hash_ids": [1, "x"]}), 1, "hash_ids is not a list of whole numbers"),
    "bailian id twice": (jsonl(CHAT, CHAT), 2, "the request_id '1' occurs twice"),
    "burstgpt failed": (BURST + "5,,,m,10,0,10,x\n", 2, "Response tokens is 0"),
    "burstgpt without tokens": (BURST + "5,,,m,0,0,0,x\n", 2, "a failed request: no tokens at all"),
    "burstgpt date": (BURST + "2024-01-01,,,m,10,5,15,x\n", 2, "Timestamp is not a number: '2024-01-01'"),
    "burstgpt negative elapsed": (BURST + "5,s,-2,m,10,5,15,x\n", 2, "Elapsed time is negative"),
    "burstgpt short row": (BURST + "5,s,2,m,10\n", 2, "not 8 fields"),
    "vidur infinite": (VIDUR + "0,5,6\ninf,5,6\n", 3, "arrived_at is NaN or infinite"),
    "vidur fraction of a token": (VIDUR + "0,5.5,6\n", 2, "num_prefill_tokens is not a whole number: '5.5'"),
    "vidur lengths empty": ("num_prefill_tokens,num_decode_tokens\n,6\n", 2, "num_prefill_tokens is missing"),
    "splitwise other type": (SPLITWISE + "0,1,0,0.5,1,10,5\n", 2, "request_type is not 2 (a language model)"),
    "splitwise batch": (SPLITWISE + "0,2,0,0.5,4,10,5\n", 2, "batch_size is not 1: '4'"),
    "splitwise huge prompt": (SPLITWISE + "0,2,0,0.5,1,9999999999,5\n", 2, "prompt_size is above 2147483647"),
    "blis timeout": (BLIS + "0,t,c,,0,,0,10,0,0,5,0,timeout\n", 2, "status is 'timeout': the request failed"),
    "blis deadline": (BLIS + "0,t,c,,0,,0,10,5,3,5,0,ok\n", 2, "deadline_us is before the arrival: '3'"),
    "blis prefix": (BLIS + "0,t,c,,0,g,-4,10,5,0,5,0,ok\n", 2, "prefix_length is negative: '-4'"),
    "guidellm csv in doubt": ("timestamp,input_length,output_length\n1,5,6\n2,5,6\n", 1, "do not show which"),
    "guidellm csv word": ("timestamp,input_length,output_length\n0.5,5,6\nx,5,6\n", 3, "timestamp is not a number"),
    "aiperf prompt": (jsonl(TURN | {"input_length": None}), 1, "neither input_length nor text_input"),
    "aiperf messages": (jsonl(TURN | {"input_length": None, "messages": ["x"]}), 1, "messages is not a list of"),
    "aiperf delay": (jsonl(TURN, TURN | {"delay": "soon"}), 2, "delay is not a number: 'soon'"),
    "aiperf delay alone": (jsonl({"delay": 5, "input_length": 1, "output_length": 1}), 1, "a delay without a session"),
    "weka without id": (jsonl(WEKA | {"id": None}), 1, "id is neither text nor a whole number"),
    "weka hash": (jsonl(WEKA | {"hash_ids": [-1]}), 1, "a hash_id is not within 0 to"),
    "weka block size": (jsonl(WEKA | {"block_size": 0, "hash_ids": [1]}), 1, "block_size is 0"),
    "weka requests": (jsonl({"id": "c", "requests": 7}), 1, "a request is not a JSON object: 7"),
    "weka subagent": (jsonl({"id": "c", "requests": [{"type": "subagent", "t": 0}]}), 1, "calls of a subagent"),
    "servegen without output": (jsonl(OFFLINE | {"output_length": None}), 1, "output_length is missing"),
    "llmservingsim calls": (jsonl(AGENT | {"sub_requests": 5}), 1, "sub_requests is not a list of calls: 5"),
    "llmservingsim tool": (
        jsonl(AGENT | {"sub_requests": [CALL | {"tool_duration_ns": -1}]}),
        1,
        "tool_duration_ns is negative",
    ),
    "llmservingsim session": (jsonl(AGENT | {"session_id": [1]}), 1, "session_id is neither text nor a whole number"),
    "openai body": (jsonl(BATCH | {"body": "x"}), 1, "body is not a JSON object"),
    "openai cap": (body(prompt="x"), 1, "no cap on the answer (max_tokens)"),
    "openai several prompts": (body(prompt=["x", "y"], max_tokens=4), 1, "the body has neither messages nor one"),
    "openai content": (body(messages=[{"content": 5}], max_tokens=4), 1, "a content that is neither text nor a list"),
    "sharegpt no answer": (talk(HUMAN), 1, "a conversation without a human turn and its answer"),
    "sharegpt value": (talk(HUMAN | {"value": None}), 1, "a turn without the text `value`"),
    "sharegpt cut off": (talk(HUMAN)[:-6], 1, "not a whole JSON object"),
    "sharegpt conversations": ('[{"id": "a", "conversations": 5}]', 1, "conversations is not a list"),
    "native delay": (
        "arrival_time_s,input_tokens,output_tokens,delay_s\n0,1,1,5\n",
        2,
        "delay_s without an after_request_id",
    ),
}


def test_there_are_at_least_thirty() -> None:
    assert len(MALFORMED) >= 30


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case: str, tmp_path: Path) -> None:
    content, line, said = MALFORMED[case]
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_trace(path, TraceOptions(strict=True))
    text = str(caught.value)
    assert text.startswith(f"{path}:{line}: ")
    assert said in text
    text.encode("ascii")
    for verb in (("inspect", path), ("convert", path, tmp_path / "copy.jsonl")):
        done = batchlab("trace", *verb, "--strict", cwd=tmp_path)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("case", MALFORMED)
def test_leniently_it_is_a_note_or_an_error_but_never_a_crash(case: str, tmp_path: Path) -> None:
    content, _, said = MALFORMED[case]
    try:
        told = "\n".join(read_trace(write(tmp_path, content)).notes)
    except InputError as error:
        told = str(error)
    assert said.partition(":")[0] in told
