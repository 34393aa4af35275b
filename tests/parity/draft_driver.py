"""Runs in an environment that has vLLM: cases with drafts on stdin, a line each; what its scheduler decides on stdout.

usage: python draft_driver.py FOLDER_OF_THE_HARNESS

A line answers with {"case", "records"}, or with {"refused"} where vLLM gets stuck. A case with `dp` is run in ranks
that step together, where the harness has ranks without drafts: a dummy batch verifies the drafts of one request
(`execute_dummy_batch` in vllm/v1/worker/gpu_worker.py, 0.33), and ranks leave drafting out together or not at all
(vllm/v1/worker/gpu/dp_utils.py:88). Kinds with aborts are run first without, which says when aborts tell most.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


class Rank:
    """As much of vLLM's engine core as decides when ranks hold prompts back, and when they stop."""

    def __init__(
        self, drive: Any, config: dict[str, Any], spec: dict[str, Any], dp: dict[str, int], group: Any
    ) -> None:
        self.engine = drive.Engine(config, spec, True, dp_size=dp["ranks"])
        self.scheduler = self.engine.sched
        self.prefill_schedule_interval = config["prefill_schedule_interval"]
        self.dp_sync_interval = dp["sync_interval"]
        self.step_counter = self.current_wave = 0
        self.engines_running = self.pending_pause = self.ignore_start_dp_wave = False
        self.dp_group = group
        self.vllm_config = SimpleNamespace(parallel_config=self)

    def sync_dp_state(self, group: Any, *, has_unfinished: bool, pending_pause: bool) -> tuple[bool, bool]:
        return group.has_work, False


def in_ranks(drive: Any, core: Any, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The common steps, with what each rank decides in them."""
    config, spec = drive.complete(case)
    cost, group = {"d": 0.0, **case["cost"]}, SimpleNamespace(has_work=False)
    ranks = [Rank(drive, config, spec, case["dp"], group) for _ in range(case["dp"]["ranks"])]
    pending = drive.make_requests(case, config, True, ranks[0].engine.lookahead_hash)[::-1]
    drafts, now, step = spec["k"], 0.0, 0
    dummy_s = cost["a"] + (cost["b"] + cost["c"]) * (1 + drafts) + cost["d"] * drafts
    while True:
        if not any(rank.engines_running or rank.scheduler.has_requests() for rank in ranks):
            if not pending:
                return
            now = max(now, pending[-1][0])
        while pending and pending[-1][0] <= now:
            _, _, request, outputs, row = pending.pop()
            own = ranks[row["rank"]]
            own.engine.add(request, outputs, row)
            if not own.engines_running:
                for rank in ranks:
                    rank.engines_running = True
        done: list[dict[str, Any]] = []
        items = []
        for rank in ranks:
            one: dict[str, Any] = {"scheduled": {}}
            item = None
            if rank.scheduler.has_requests():
                one, item = rank.engine.schedule(step, [], {}, core._should_throttle_prefills(rank))
            is_awake = rank.scheduler.has_unfinished_requests() or rank.engines_running
            one["dummy"] = not one["scheduled"] and is_awake
            done.append(one)
            items.append(item)
        skips = all(one["scheduled"] and one["skip_drafts"] for one in done)
        lengths = [dummy_s if one["dummy"] else 0.0 for one in done]
        for place, one in enumerate(done):
            if one["scheduled"]:
                if one["skip_drafts"] and not skips:
                    one["drafted"] = one["next_k"] * len(one["scheduled"])
                lengths[place] = drive.seconds(cost, one)
        now += max(lengths)
        for rank, item in zip(ranks, items, strict=True):
            if item is not None:
                rank.engine.update(item)
        group.has_work = any(rank.scheduler.has_unfinished_requests() for rank in ranks)
        if not any(one["scheduled"] or one["dummy"] for one in done):
            continue
        for rank in ranks:
            rank.engines_running = core._has_global_unfinished_reqs(rank, rank.scheduler.has_unfinished_requests())
        for rank in ranks:
            if not rank.engines_running:
                rank.step_counter = 0
        step += 1
        yield {"ranks": done, "t_end": now}


def with_adapters(drive: Any, case: dict[str, Any]) -> None:
    """Let vLLM serve the case's adapters: its configuration has them before its scheduler is made, its requests too."""
    most = case["config"].pop("max_loras")
    asked = {str(request["id"]): request["lora"] for request in case["requests"]}
    manager, request = drive.StructuredOutputManager, drive.Request
    config_of = importlib.import_module("vllm.config").LoRAConfig
    lora_of = importlib.import_module("vllm.lora.request").LoRARequest

    def made(config: Any) -> Any:
        config.lora_config = config_of(max_loras=most, max_cpu_loras=max(most, 64))
        return manager(config)

    def asks(*, request_id: str, **others: Any) -> Any:
        k = asked[request_id]
        own = lora_of(lora_name=f"a{k}", lora_int_id=k, lora_path=f"p{k}") if k else None
        return request(request_id=request_id, lora_request=own, **others)

    drive.StructuredOutputManager, drive.Request = made, asks


def without_dynamic_drafts(drive: Any) -> None:
    """Let vLLM's own rule on drafts by batch size be applied, as the number of ranks is set behind its constructor."""
    make = drive.StructuredOutputManager

    def made(config: Any) -> Any:
        config._maybe_disable_dynamic_sd_for_data_parallel()
        return make(config)

    drive.StructuredOutputManager = made


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    drive: Any = importlib.import_module("spec_decode")
    generator = importlib.import_module("spec_decode_gen")
    core = importlib.import_module("vllm.v1.engine.core").DPEngineCoreProc
    without_dynamic_drafts(drive)
    for line in sys.stdin:
        case, seed = json.loads(line)
        try:
            if "dp" in case:
                records = list(in_ranks(drive, core, case))
            else:
                plain = drive.StructuredOutputManager, drive.Request
                given = json.loads(line)[0]
                if "max_loras" in given["config"]:
                    with_adapters(drive, given)
                try:
                    records = list(drive.run(given, max_steps=20_000))
                finally:
                    drive.StructuredOutputManager, drive.Request = plain
                if case["kind"].startswith("abort"):
                    case = generator.place_aborts(seed, case, records)
                    records = list(drive.run(case, max_steps=20_000))
            print(json.dumps({"case": case, "records": records}), flush=True)
        except RuntimeError as error:
            print(json.dumps({"refused": str(error)[:200]}), flush=True)


if __name__ == "__main__":
    main()
