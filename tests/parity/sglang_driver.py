"""Runs in an environment that has SGLang: cases on stdin, a line each; its scheduler's records on stdout.

A line says "case"; the records of the case follow, a line each, and null. Where the scheduler ends in an error of its
own (overlap and little memory: its estimate counts too little), the last record is {"failed": its words}.

usage: python sglang_driver.py FOLDER_OF_THE_HARNESS

The harness has no speculative decoding (sglang_drafts_driver.py has), and no PrefillDelayer: a case's keys
`enable_prefill_delayer`, `prefill_delayer_...` and `prefill_max_requests` give its scheduler SGLang's own here, with
the harness's clock, as the only rank.

A request may name its tokens by `block_hashes` of `hash_block_size` tokens, as traces do, instead of one by one; the
harness gives those of an answer, and of a prompt of which nothing is said, to that request alone. Answers that end
before their `max_tokens` end with the same stop token there; those of which nothing is said end here with their own.
"""

import importlib
import json
import os
import sys
from itertools import chain
from types import SimpleNamespace
from typing import Any

HASHED = 3 << 40  # where the ids of hashed tokens begin: beyond those of the harness
STOP = 1 << 50  # where the ids of stop tokens begin
DELAYER = {
    "enable_prefill_delayer": False,
    "prefill_delayer_max_delay_passes": 30,
    "prefill_delayer_token_usage_low_watermark": None,
    "prefill_delayer_queue_min_ratio": None,
    "prefill_delayer_max_delay_ms": None,
    "prefill_max_requests": None,
}


def tokens(hashes: list[int], size: int, count: int) -> list[int]:
    """The first `count` tokens of these blocks: a block's content follows from its hash."""
    blocks = [range(HASHED + block * size, HASHED + (block + 1) * size) for block in hashes]
    return list(chain.from_iterable(blocks))[:count]


def let_answers_end(harness: Any) -> None:
    """Give every answer that is not spelled out a stop token of its own."""
    make = harness.make

    def made(case: dict[str, Any], timed: bool) -> Any:
        requests = make(case, timed)
        spelled = {request["id"] for request in case["requests"] if "output_token_ids" in request}
        for place, (_, request, answer) in enumerate(requests):
            if answer[-1] == harness.STOP and request.rid not in spelled:
                answer[-1] = STOP + place
                request.sampling_params.stop_token_ids = {answer[-1]}
        return requests

    harness.make = made


def let_prefills_wait(harness: Any) -> None:
    """Make the harness's schedulers with SGLang's PrefillDelayer where a case asks for it."""
    delayer: Any = importlib.import_module("sglang.srt.managers.prefill_delayer")
    pools: Any = importlib.import_module("sglang.srt.managers.scheduler_components.pool_stats_observer")
    clock: list[Any] = []  # the run under way, whose `now` is the time
    state = delayer._State
    group = SimpleNamespace(cpu_group=None, device_group=None, device="cpu")
    alone = SimpleNamespace(num_dp_ranks=1, attn_dp_enabled=False, attn_cp_size=1, attn_tp_size=1, tp_group=group)
    delayer.get_parallel = lambda: alone
    delayer.all_gather_single = lambda out, given, group: out.copy_(given)
    delayer.time = SimpleNamespace(perf_counter=lambda: clock[0].gi_frame.f_locals["now"])
    delayer._State = lambda: state(start_time=delayer.time.perf_counter())
    plain, plain_run, plain_complete, context = harness.OnCpu, harness._run, harness.complete, harness.get_context()

    class Delaying(plain):  # type: ignore[misc, valid-type] # a class that only the other interpreter has
        def __init__(self, c: dict[str, Any]) -> None:
            super().__init__(c)
            if not c["enable_prefill_delayer"]:
                return
            self.prefill_delayer = delayer.PrefillDelayer(
                max_delay_passes=c["prefill_delayer_max_delay_passes"],
                token_usage_low_watermark=c["prefill_delayer_token_usage_low_watermark"],
            )
            window = harness.envs.SGLANG_PREFILL_DELAYER_MAX_PREFILL_BS_WINDOW_SIZE.get()
            self.prefill_bs_tracker = delayer.RecentPrefillBatchSizeTracker(window_size=window)
            given = dict.fromkeys(pools.SchedulerPoolStatsObserver.__dataclass_fields__, False)
            of_self = ("tree_cache", "token_to_kv_pool_allocator", "req_to_token_pool", "max_total_num_tokens")
            self.pool_stats_observer = pools.SchedulerPoolStatsObserver(
                **{**given, **{key: getattr(self, key) for key in of_self}}
            )

    def context_of(c: dict[str, Any]) -> Any:
        """SGLang's context, which is given the delayer's settings together with the others."""
        override, settings = context.override_server_args, {key: c[key] for key in DELAYER}
        return lambda: SimpleNamespace(override_server_args=lambda **others: override(**others, **settings))

    def run(case: Any, c: dict[str, Any], max_steps: int) -> Any:
        clock[:] = [plain_run(case, c, max_steps)]
        yield from clock[0]

    def complete(case: Any) -> dict[str, Any]:
        c: dict[str, Any] = plain_complete(case)
        harness.get_context = context_of(c)
        return c

    harness.DEFAULTS.update(DELAYER)
    harness.OnCpu, harness._run, harness.complete = Delaying, run, complete


def main() -> None:
    drafts = importlib.import_module("sglang_drafts_driver")
    sys.path[0] = sys.argv[1]  # instead of this folder, whose modules are not meant
    harness = importlib.import_module("sglang_harness")
    let_answers_end(harness)
    let_prefills_wait(harness)
    drafts.let_drafts_be_verified(harness)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where memory runs out, SGLang prints its tree
    for line in sys.stdin:
        case = json.loads(line)
        for request in case["requests"]:
            if hashes := request.pop("block_hashes", None):
                size = request.pop("hash_block_size")
                request["prompt_token_ids"] = tokens(hashes, size, request["prompt_len"])
        print('"case"', file=out)
        try:
            for record in harness.run(case):
                if record["aborted"]:
                    raise RuntimeError(f"{record['aborted']} no longer fits, alone")
                print(json.dumps(record), file=out)
        except RuntimeError as error:
            print(json.dumps({"failed": str(error)}), file=out)
        print("null", file=out, flush=True)


if __name__ == "__main__":
    main()
