"""Cases of speculative decoding: of the harness's kinds, and of features together that it has no kind for.

A case is drawn by kind and seed. `first_difference` says where our decisions part from vLLM's.
"""

import gzip
import importlib
import io
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.parity.cases import Case
from tests.shared_data import shared

FILE = Path(__file__).with_name("data") / "recorded_drafts.jsonl.gz"
TOGETHER = (
    "spec_cadence", "spec_cadence_async", "spec_passed", "spec_dp", "spec_slots", "spec_longest", "spec_lora",
    "spec_lora_async",
)  # fmt: skip
COLUMNS = (
    "scheduled", "preempted", "finished", "admitted", "waiting", "running", "num_free_blocks", "num_free_blocks_end",
    "spec", "padded", "computed", "emitted", "next_k", "skip_drafts", "held", "dummy", "aborted", "t_end",
)  # fmt: skip
Steps = Sequence[Mapping[str, Any]]


@cache
def _generator() -> Any:
    folder = str(shared("oracle/features"))
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("spec_decode_gen")
    finally:
        sys.path.remove(folder)


def draw(kind: str, seed: int) -> Case:
    """The case of a kind and a seed."""
    generator = _generator()
    if kind not in TOGETHER:
        return dict(generator.case(kind, seed))
    rng = random.Random(f"{kind}-{seed}")
    bases = {
        "spec_slots": ["spec_draft"], "spec_longest": ["spec_ngram", "spec_eagle"], "spec_passed": ["spec_mtp"],
    }  # fmt: skip
    base = rng.choice(bases.get(kind) or ["spec_ngram", "spec_draft", "spec_eagle", "spec_mtp", "spec_dynamic"])
    case: Case = generator.case(base + "_async" * kind.endswith("_async"), 70_000 + seed)
    case["kind"] = kind
    if kind == "spec_slots":
        _with_few_slots(case, rng)
    elif kind == "spec_longest":
        _with_long_prompts(case, rng)
    elif kind.startswith("spec_lora"):
        _with_adapters(case, rng)
    else:
        case["config"]["prefill_schedule_interval"] = rng.choice([2, 3, 4, 8] if kind != "spec_dp" else [1, 1, 2, 4])
        spread = rng.choice([1, 3, 8])
        for request in case["requests"]:
            request["arrival_time"] = round(request["arrival_time"] * spread, 3)
    if kind == "spec_passed":
        _with_short_prompts(case, rng)
    if kind == "spec_dp":
        case["dp"] = {"ranks": rng.choice([2, 2, 3]), "sync_interval": rng.choice([1, 4, 16])}
        for place, request in enumerate(case["requests"]):
            request["rank"] = rng.randrange(case["dp"]["ranks"])
            request["arrival_time"] += rng.choice([2.0, 6.0]) * (place > len(case["requests"]) // 2)
    return case


def _with_few_slots(case: Case, rng: random.Random) -> None:
    """Parallel drafting by priority in little memory: victims that were scheduled give their input slots back."""
    spec, config = case["spec"], case["config"]
    spec.update(parallel_drafting=True, model_runner="v1", k=rng.randint(2, 5))
    for request in case["requests"]:
        request["accept"] = [min(n, spec["k"]) for n in request["accept"]]
    size, longest = config["block_size"], config["max_model_len"]
    config.update(
        policy="priority", enable_chunked_prefill=True, enable_prefix_caching=False, max_num_seqs=rng.choice([4, 6]),
        long_prefill_token_threshold=rng.choice([0, 8, 12]), max_num_batched_tokens=rng.choice([24, 32, 48]),
        num_gpu_blocks=-(-longest // size) + 1 + rng.choice([0, 1, 3]), watermark=0.0,
    )  # fmt: skip


def _with_short_prompts(case: Case, rng: random.Random) -> None:
    """Prompts as short as what the modules of MTP read ahead, and steps with little left for them: these are passed."""
    spec, config = case["spec"], case["config"]
    drafts = spec["k"]
    spec["mtp_layers"] = drafts
    slots = rng.choice([3, 4, 6])
    config.update(
        max_num_seqs=slots, enable_chunked_prefill=True, enable_prefix_caching=False, long_prefill_token_threshold=0,
        max_num_batched_tokens=max(2 * drafts + 2, (slots - 1) * (drafts + 1) + rng.randint(1, drafts)),
    )  # fmt: skip
    for request in case["requests"]:
        request.pop("prompt_token_ids", None)
        request.pop("output_token_ids", None)
        if rng.random() < 0.7:
            request["prompt_len"] = rng.randint(2, drafts + 1)


def _with_adapters(case: Case, rng: random.Random) -> None:
    """Requests that ask for adapters, of which a batch may use few."""
    adapters = rng.choice([2, 3, 5, 8])
    weights = [1 / (rank + 1) for rank in range(adapters)]
    case["config"]["max_loras"] = rng.choice([1, 1, 2, 3])
    for request in case["requests"]:
        request["lora"] = 0 if rng.random() < 0.2 else rng.choices(range(1, adapters + 1), weights)[0]


def _with_long_prompts(case: Case, rng: random.Random) -> None:
    """Prompts whose prefix is cached but for a token, nearly as long as the model's context."""
    spec, config = case["spec"], case["config"]
    size, drafts = config["block_size"], spec["k"]
    blocks = rng.randint(1, 4)
    tokens = [7_000_000 + place for place in range(blocks * size + 1)]
    config.update(enable_prefix_caching=True, max_num_seqs=rng.choice([2, 4]), watermark=0.0)
    spec.update(disable_lookahead_block_hashes=False, disable_eagle_block_drop=spec["method"] != "ngram")
    room = max(1, drafts + rng.choice([-1, 0, 0, 0, 1, 2]))  # behind a prompt; 1 + drafts is enough for a padded step
    for place, request in enumerate(case["requests"]):
        outputs = rng.randint(1, room)
        request.update(
            prompt_len=len(tokens), output_len=outputs, prompt_token_ids=tokens,
            output_token_ids=[9_000_000 + 100 * place + n for n in range(outputs)],
        )  # fmt: skip
    config["max_model_len"] = len(tokens) + room
    config["long_prefill_token_threshold"] = 0
    config["num_gpu_blocks"] = 4 * (blocks + 2) + 2
    config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], 4 * (drafts + 2))
    if not config["enable_chunked_prefill"]:
        config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], config["max_model_len"] + 8)


def first_difference(ours: Steps, theirs: Steps) -> str | None:
    """Where the two part; steps that schedule, finish and preempt nothing are left out."""
    if theirs and "ranks" in theirs[0]:
        for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            pairs = [(a["t_end"], b["t_end"], "t_end")] if abs(a["t_end"] - b["t_end"]) > 1e-6 else []
            if pairs:
                return f"common step {number}: until {a['t_end']} s, vLLM until {b['t_end']} s"
            for rank, (x, y) in enumerate(zip(a["ranks"], b["ranks"], strict=True)):
                if (found := _step_difference({"dummy": False, **x}, y)) is not None:
                    return f"common step {number} of rank {rank}, {found}"
        return None if len(ours) == len(theirs) else f"{len(ours)} common steps, vLLM {len(theirs)}"
    ours, theirs = [[s for s in x if s["scheduled"] or s["finished"] or s["preempted"]] for x in (ours, theirs)]
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if (found := _step_difference(a, b)) is not None:
            return f"step {number}, {found}"
    return None if len(ours) == len(theirs) else f"{len(ours)} steps, vLLM {len(theirs)}"


def _step_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    for key in COLUMNS:
        if key not in theirs or key not in ours:  # a dummy batch has few columns
            continue
        a, b = ours[key], theirs[key]
        if key in ("finished", "running"):
            a, b = sorted(a), sorted(b)
        elif key == "scheduled":
            a, b = [*a.items()], [*b.items()]
        elif key == "t_end":
            a, b = round(a - b, 6), 0.0
        if a != b and (key != "held" or theirs["scheduled"]):
            return f"{key}: ours {a}, vLLM {b}"
    return None


def write(version: str, found: Sequence[Mapping[str, Any]], path: Path = FILE) -> None:
    """Keep cases with vLLM's answers: a header, then a case a line. Equal answers have equal bytes."""

    def kept(step: Mapping[str, Any]) -> dict[str, Any]:
        if "ranks" in step:
            return {"ranks": [kept(rank) for rank in step["ranks"]], "t_end": step["t_end"]}
        return {key: step[key] for key in COLUMNS if key in step}

    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
        for line in ({"vllm": version}, *({**item, "records": [kept(s) for s in item["records"]]} for item in found)):
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    path.write_bytes(packed.getvalue())


@cache
def read(kind: str) -> Sequence[Mapping[str, Any]]:
    """The kept cases of a kind, each with `kind`, `seed`, `case` and `records`."""
    return [item for item in _lines() if item["kind"] == kind]


def _lines() -> Iterator[Mapping[str, Any]]:
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        next(file)
        yield from map(json.loads, file)
