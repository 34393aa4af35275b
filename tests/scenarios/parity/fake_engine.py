"""Speaks the protocol of simulator/policies/real/programs/serve.py as a plain scheduler: whole steps by hand, no cache.

As vLLM it computes prompts beside the decodes, and verifies drafts; as SGLang it computes prompts first.

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
        self.slots, self.budget = self.limits(settings)
        self.slots -= FAULT == "slot"
        self.size = settings["block_size"]
        self.blocks, self.brief = settings["num_gpu_blocks"] - 1, settings["brief"]
        self.waiting: list[Told] = []
        self.running: list[Told] = []
        self.sampled: list[Told] = []

    def limits(self, settings: Told) -> tuple[int, int]:
        return settings["max_num_seqs"], settings["max_num_batched_tokens"]

    @property
    def free(self) -> int:
        for request in self.running:  # rejected drafts give no block back
            request["reach"] = max(request["reach"], request["computed"])
        return int(self.blocks - sum(-(-request["reach"] // self.size) for request in self.running))

    def told(self, line: Told) -> Told:
        for request_id in line["aborted"]:
            for place in (self.waiting, self.running):
                place[:] = [request for request in place if request["id"] != request_id]
        finished = [self.settle(results) for results in line["results"]]
        found = {"finished": finished, "free_before": self.free + (FAULT == "memory")}
        self.waiting += [
            {**request, "computed": 0, "outputs": 0, "drafts": 0, "reach": 0} for request in line["arrived"]
        ]
        return {**found, **self.plan()} if line["plan"] else found

    def settle(self, results: Told) -> list[str]:
        for request in self.sampled:
            tokens = results["tokens"].get(request["id"], 1)
            request["outputs"] += tokens
            request["computed"] -= request["drafts"] + 1 - tokens
            request["drafts"] = max(0, results["drafts"].get(request["id"], 0) - (FAULT == "drafts"))
        ended = results["ended"]
        gone = [each for each in self.sampled if each["id"] in ended or each["outputs"] >= each["max_tokens"]]
        self.running = [request for request in self.running if request not in gone]
        return [request["id"] for request in gone]

    def plan(self) -> Told:
        budget, scheduled, admitted = self.budget, {}, {}
        self.sampled = []
        for request in [*self.running, *self.waiting]:
            new = request not in self.running
            if not budget or (new and len(self.running) == self.slots):
                break
            known = request["prompt_tokens"] + request["outputs"]
            tokens = min(known + request["drafts"] - request["computed"], budget)
            if new:
                self.running.append(request)
                admitted[request["id"]] = 0
            scheduled[request["id"]] = tokens
            budget -= tokens
            request["computed"] += tokens
            if request["computed"] >= known:
                request["drafts"] = request["computed"] - known
                self.sampled.append(request)
        self.waiting = [request for request in self.waiting if request not in self.running]
        return self.planned(scheduled, admitted)

    def planned(self, scheduled: Told, admitted: Told) -> Told:
        if FAULT == "order":
            scheduled = dict(reversed(scheduled.items()))
        found: Told = {"scheduled": scheduled, "admitted": admitted, "preempted": [], "passed": [], "free": self.free}
        if not self.brief:
            found["waiting"] = [request["id"] for request in self.waiting]
            found["running"] = [request["id"] for request in self.running]
            found["spec"] = {each["id"]: each["drafts"] for each in self.sampled if each["drafts"]}
        return found


class PromptsFirst(Scheduler):
    """Prompts in steps of their own, as long as any waits and there is a slot; else the decodes."""

    def limits(self, settings: Told) -> tuple[int, int]:
        return settings["max_running_requests"], settings["chunked_prefill_size"]

    def plan(self) -> Told:
        tried: list[str] = []
        new: list[Told] = []
        budget = self.budget
        for request in self.waiting:
            if budget <= 0 or len(self.running) + len(new) == self.slots:
                break
            tried.append(request["id"])
            new.append(request)
            budget -= -(-request["prompt_tokens"] // self.size) * self.size
        self.sampled = new or list(self.running)
        for request in self.sampled:
            request["computed"] += request["prompt_tokens"] if new else 1
        self.waiting, self.running = self.waiting[len(new) :], [*self.running, *new]
        scheduled = {each["id"]: each["prompt_tokens"] if new else 1 for each in self.sampled}
        found = self.planned(scheduled, {each["id"]: 0 for each in new})
        found.pop("running", None)
        return {**found, "tried": tried if tried else None, "withheld": False}


def main() -> None:
    if FAULT == "dies":
        sys.exit("ImportError: no such thing")
    if FAULT == "absent":
        print(json.dumps({"error": f"ModuleNotFoundError: No module named {sys.argv[3]!r}"}))
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
            scheduler, found = (PromptsFirst if sys.argv[3] == "sglang" else Scheduler)(told["start"]), {}
        else:
            assert scheduler is not None
            found = scheduler.told(told)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
