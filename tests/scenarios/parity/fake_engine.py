"""Speaks the protocol of simulator/policies/real/programs/serve.py as a plain scheduler: whole steps by hand, no cache.

usage: python fake_engine.py FAULT PROGRAM ENGINE
"""

import json
import sys
from typing import Any

FAULT = sys.argv[1]
Told = dict[str, Any]


class Scheduler:
    """First come, first served, prompts in chunks beside the decodes, memory for everybody."""

    def __init__(self, settings: Told) -> None:
        self.slots = settings["max_num_seqs"] - (FAULT == "slot")
        self.budget, self.size = settings["max_num_batched_tokens"], settings["block_size"]
        self.blocks, self.brief = settings["num_gpu_blocks"] - 1, settings["brief"]
        self.waiting: list[Told] = []
        self.running: list[Told] = []
        self.sampled: list[Told] = []

    @property
    def free(self) -> int:
        return int(self.blocks - sum(-(-request["computed"] // self.size) for request in self.running))

    def told(self, line: Told) -> Told:
        for request_id in line["aborted"]:
            for place in (self.waiting, self.running):
                place[:] = [request for request in place if request["id"] != request_id]
        finished = [self.settle(stops) for stops in line["results"]]
        found = {"finished": finished, "free_before": self.free + (FAULT == "memory")}
        self.waiting += [{**request, "computed": 0, "outputs": 0} for request in line["arrived"]]
        return {**found, **self.plan()} if line["plan"] else found

    def settle(self, stops: list[str]) -> list[str]:
        for request in self.sampled:
            request["outputs"] += 1
        gone = [each for each in self.sampled if each["id"] in stops or each["outputs"] == each["max_tokens"]]
        self.running = [request for request in self.running if request not in gone]
        return [request["id"] for request in gone]

    def plan(self) -> Told:
        budget, scheduled, admitted = self.budget, {}, {}
        self.sampled = []
        for request in [*self.running, *self.waiting]:
            new = request not in self.running
            if not budget or (new and len(self.running) == self.slots):
                break
            length = request["prompt_tokens"] + request["outputs"]
            tokens = min(length - request["computed"], budget)
            if new:
                self.running.append(request)
                admitted[request["id"]] = 0
            scheduled[request["id"]] = tokens
            budget -= tokens
            request["computed"] += tokens
            if request["computed"] == length:
                self.sampled.append(request)
        self.waiting = [request for request in self.waiting if request not in self.running]
        if FAULT == "order":
            scheduled = dict(reversed(scheduled.items()))
        found: Told = {"scheduled": scheduled, "admitted": admitted, "preempted": [], "free": self.free}
        if not self.brief:
            found["waiting"] = [request["id"] for request in self.waiting]
            found["running"] = [request["id"] for request in self.running]
        return found


def main() -> None:
    if FAULT == "dies":
        sys.exit("ImportError: no such thing")
    if FAULT == "absent":
        print(json.dumps({"error": "ModuleNotFoundError: No module named 'vllm'"}))
        return
    print(json.dumps({"engine": sys.argv[3], "version": "9.9"}), flush=True)
    scheduler = None
    for number, line in enumerate(sys.stdin):
        told = json.loads(line)
        if FAULT == "refuses":
            found: Told = {"error": "it has no setting watermark, which is 0.1 here", "key": "watermark"}
        elif FAULT == "fails" and number == 5:
            found = {"error": "AssertionError: here"}
        elif "start" in told:
            scheduler, found = Scheduler(told["start"]), {}
        else:
            assert scheduler is not None
            found = scheduler.told(told)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
