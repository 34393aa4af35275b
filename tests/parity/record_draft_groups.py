"""Records what vLLM's scheduler decides with drafts where some layers see a window; run by a Python that has vLLM 0.33.

usage: PYTHONPATH=FOLDER_OF_THE_FEATURES VLLM_PYTHON tests/parity/record_draft_groups.py FIRST COUNT OUT.jsonl.gz

The harness is that of drafts. Its cases get a second KV group, and it makes the scheduler with both.
"""

import gzip
import json
import random
import sys
from importlib import import_module
from typing import Any

KINDS = ("spec_ngram", "spec_ngram_async", "spec_eagle", "spec_eagle_async", "spec_draft", "spec_draft_async")
MOST_SCHEDULED = 160  # entries of `scheduled` in all steps of a case: larger ones tell little more


def draw(seed: int) -> dict[str, Any]:
    """A case of drafts with a window beside its full layer, and about as many blocks as start-up asks for."""
    rng = random.Random(f"draft groups {seed}")
    case: dict[str, Any] = module("spec_decode_gen").case(KINDS[seed % len(KINDS)], seed)
    config = case["config"]
    size, longest, budget = config["block_size"], config["max_model_len"], config["max_num_batched_tokens"]
    if case["spec"]:
        case["spec"].update(disable_lookahead_block_hashes=False, mtp_layers=1)
    window = rng.choice([2 * size, 3 * size + 1, size, 40])
    layer = {"kv_heads": 1, "head": 8}
    specs = {"w": {"kind": "window", **layer, "window": window}, "f": {"kind": "full", **layer}}
    config["kv"] = {"layers": rng.choice(["wf", "wf", "wwf"]), "specs": specs}
    config["retention_interval"] = rng.choice([0, 0, None, 4 * size])
    in_flight = budget * (2 if config["async_scheduling"] else 1)
    held = -(-min(window - 1 + in_flight, longest) // size) + 1
    least = -(-longest // size) + held * config["kv"]["layers"].count("w") + 1
    config["num_gpu_blocks"] = least + rng.choice([0, 1, 3, least // 3, least])
    return case


def module(name: str) -> Any:
    """A module that only the harness's Python has."""
    return import_module(name)


class Harness:
    """The harness of drafts with a scheduler of several KV groups."""

    def __init__(self) -> None:
        self.drive, self.specs = module("spec_decode"), module("vllm.v1.kv_cache_interface")
        self.half = module("torch").float16
        self.make_config, self.complete = self.drive.KVCacheConfig, self.drive.base.complete_config
        self.config: dict[str, Any] = {}
        self.drive.KVCacheConfig = self.groups
        self.drive.base.complete_config = self.completed
        self.drive.Engine.check = check

    def groups(self, num_blocks: int, kv_cache_tensors: Any, kv_cache_groups: Any) -> Any:
        """A group of each layer; the drafter's own is the full one, if it has one."""
        made = []
        for place, letter in enumerate(self.config["kv"]["layers"]):
            given = {"block_size": self.config["block_size"], "num_kv_heads": 1, "head_size": 8, "dtype": self.half}
            window = self.config["kv"]["specs"][letter].get("window")
            if window:
                spec = self.specs.SlidingWindowSpec(**given, sliding_window=window)
                made.append(self.specs.KVCacheGroupSpec([f"layer {place}"], spec))
            else:
                drafts = kv_cache_groups[0].is_eagle_group
                spec = self.specs.FullAttentionSpec(**given)
                made.append(self.specs.KVCacheGroupSpec([f"layer {place}"], spec, is_eagle_group=drafts))
        config = self.make_config(num_blocks=num_blocks, kv_cache_tensors=kv_cache_tensors, kv_cache_groups=made)
        config.prefix_cache_retention_interval = self.config["retention_interval"]
        return config

    def completed(self, case: dict[str, Any]) -> Any:
        """The settings that the harness knows."""
        known = {key: value for key, value in case["config"].items() if key not in ("kv", "retention_interval")}
        return self.complete({**case, "config": known})

    def run(self, case: dict[str, Any]) -> list[Any]:
        """The steps of a case."""
        self.config = case["config"]
        return list(self.drive.run(json.loads(json.dumps(case)), max_steps=20_000))


def check(engine: Any) -> None:
    """Each block is free, or some group's."""
    managers = engine.sched.kv_cache_manager.coordinator.single_type_managers
    tables = [table for manager in managers for table in manager.req_to_blocks.values()]
    owned = {block.block_id for table in tables for block in table if not block.is_null}
    assert engine.pool.get_num_free_blocks() + len(owned) == engine.cfg["num_gpu_blocks"] - 1


def main() -> None:
    first, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    harness = Harness()
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for seed in range(first, first + count):
            case = draw(seed)
            records = harness.run(case)
            if sum(len(record["scheduled"]) for record in records) <= MOST_SCHEDULED:
                item = {"seed": seed, "case": case, "records": records}
                file.write((json.dumps(item, separators=(",", ":")) + "\n").encode())


if __name__ == "__main__":
    main()
