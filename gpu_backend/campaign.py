"""Everything that needs a GPU, in one command, twice at most ten minutes.

    python -m gpu_backend.campaign --device cuda --out DIR --part 1     kernels against ceilings and rivals; the profile
    python -m gpu_backend.campaign --device cuda --out DIR --part 2     lockstep, free-running, on plans of real shapes

Part 1 writes kernel_bench.json, rows.jsonl.gz and measured.json (swap bandwidth, alone and beside a step, among it).
Part 2 executes plans of two kinds of traffic twice each and writes a lockstep-NAME.csv with every step's counts and
times, and the agreement with the cost model at hand: of `--profile` (from `batchlab calibrate fit` on part 1's rows),
else the roofline. Prices can be put on the recorded steps later: `batchlab lockstep ... --replay FILE`. Free-running
compares the latencies of a few policies when each side is left alone.

Every file is written when its piece is done, so that a call that is cut off leaves what it had. With `--device cpu`
the same runs over a tiny model, in a minute: a rehearsal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_backend.extra import require_torch
from gpu_backend.traffic import TRAFFIC, read_requests
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.kv import KVCache, kv_cache, swap_s_per_block
from simulator.hardware.models import Model, custom_model, find_model
from simulator.lockstep.csv import write_csv
from simulator.lockstep.limits import LIMITS
from simulator.lockstep.run import LockstepCase, MakeDevice, predicted_clock
from simulator.lockstep.step_errors import agreement
from simulator.memory.blocks import BlockManager
from simulator.metrics.summary import summarize
from simulator.policies import load_policy
from simulator.timing.cost import CostModel
from simulator.timing.executor import Predicted
from simulator.workload import Workload

POLICIES = ("vllm", "continuous", "static", "tgi")
RATES = (1.0, 1.5, 0.5, 1.25, 0.75)  # the most telling first: time may run out
TINY = {
    "layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "vocab": 256, "max_model_len": 1024,
    "dtype_bytes": 4, "kv_dtype_bytes": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run on a device: how large, how long."""

    model: Model
    kv: KVCache
    limits: tuple[int | None, int | None, int | None]  # of the profile: decodes, context, tokens of a step
    requests: int
    longest: int | None
    policy: dict[str, int]
    seeds: int
    rates: Sequence[float]


def plan_for(device: str, gpu: str, model: str) -> Plan:
    """The campaign of a device: the model named on a GPU, a tiny one on the CPU."""
    if device == "cpu":
        tiny = custom_model(TINY)
        kv = KVCache(num_gpu_blocks=600, block_size=16, num_host_blocks=64, bytes_per_block=8192)
        return Plan(tiny, kv, (8, 256, 64), 8, 500, {"max_num_seqs": 8, "max_num_batched_tokens": 64}, 1, (1.0,))
    chosen = find_model(model)
    # Less than a server would take: graphs and scratch memory need room beside it, and so does a profile's.
    kv = kv_cache(chosen, find_gpu(gpu), 1, 0.75, 16, 8192, 8.0)
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    return Plan(chosen, kv, (256, 32768, 8192), 150, None, limits, 1, RATES)


class Campaign:
    """One run of it: what goes where, and how long it may take."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.device: str = chosen.device
        self.out: Path = chosen.out
        self.gpu: str = chosen.gpu
        self.seconds: float = chosen.seconds
        self.requests: Path | None = chosen.requests
        self.profile: Path | None = chosen.profile
        self.plan = plan_for(self.device, self.gpu, chosen.model)
        self._started_s = time.monotonic()
        self.out.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"[{time.monotonic() - self._started_s:5.0f} s] {text}", file=sys.stderr, flush=True)

    @property
    def left_s(self) -> float:
        """Seconds that are left of what was given."""
        return self.seconds - (time.monotonic() - self._started_s)

    def write(self, name: str, data: Any) -> None:
        """A JSON file of the campaign."""
        (self.out / name).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        self.say(f"wrote {name}")

    # Part 1

    def kernels(self) -> None:
        """The kernels against the device's ceilings and against others."""
        import torch

        from gpu_backend import kernel_bench

        if self.device == "cuda":  # what the profile's pages took
            torch.cuda.empty_cache()
        kernel_bench.main(["--out", str(self.out), "--device", self.device])

    def measure(self) -> None:
        """The rows of a profile."""
        from gpu_backend.session import measure_into

        plan = self.plan
        gpu = self.gpu if self.device == "cuda" else ""
        measure_into(self.out, plan.model, self.device, limits=plan.limits, gpu=gpu, say=self.say)

    # Part 2

    def cost(self) -> CostModel:
        """The profile, or the roofline where there is none."""
        if self.profile is not None:
            from simulator.timing.profile import ProfileCost, read_profile

            return ProfileCost(read_profile(self.profile))
        from simulator.timing.roofline import Roofline

        return Roofline(self.plan.model, find_gpu(self.gpu), 1)

    def case(self, workload: Workload, policy: str) -> LockstepCase:
        """A policy on that traffic."""
        cost, kv = self.cost(), self.plan.kv
        swap_s = swap_s_per_block(kv, find_gpu(self.gpu))
        return LockstepCase(
            workload,
            lambda: load_policy(policy, self.plan.policy),
            kv,
            lambda: Predicted(cost, swap_s),
            BlockManager,
        )

    def workloads(self) -> Iterator[tuple[str, Workload]]:
        """The traffic to run: the file's, or two kinds drawn from quantiles."""
        plan = self.plan
        if self.requests is not None:
            yield self.requests.stem, read_requests(self.requests, plan.requests)
            return
        for name, traffic in TRAFFIC.items():
            count = plan.requests if name == "azure-chat" else max(4, plan.requests // 4)
            longest = min(plan.longest or plan.model.max_model_len, plan.kv.tokens)
            yield name, traffic.requests(count, longest=longest)

    def locksteps(self, make_device: MakeDevice) -> None:
        """Every plan executed twice, beside its prediction."""
        for name, workload in self.workloads():
            steps = predicted_clock(self.case(workload, POLICIES[0]), make_device)
            write_csv(self.out / f"lockstep-{name}.csv", steps)
            found = agreement(steps)
            self.write(
                f"lockstep-{name}.json",
                {
                    "steps": found.all.steps, "plans_equal": found.plans_equal, "step_mape": found.all.mape,
                    "step_p95": found.all.p95, "step_bias": found.all.bias, "noise_floor_mape": found.floor,
                    "drift": found.drift, "failures": LIMITS[self.device].verdict(found).reasons,
                    "cost": str(self.profile or "roofline"),
                },
            )  # fmt: skip

    def free_running(self, make_device: MakeDevice) -> None:
        """Both sides alone, over rates and policies, as far as the time allows."""
        points: list[dict[str, Any]] = []
        name, plain = next(self.workloads())
        for rate in self.plan.rates:
            for policy in POLICIES:
                if self.left_s < 0.1 * self.seconds:
                    self.say("no time left for more")
                    return
                case = self.case(_faster(plain, rate), policy)
                executed = summarize(case.run(make_device()).records)
                simulated = summarize(case.run(case.make_predicted(), with_ids=False).records)
                points.append({"policy": policy, "rate": rate, "executed": executed, "simulated": simulated})
                self.write(
                    "free-running.json", {"traffic": name, "cost": str(self.profile or "roofline"), "points": points}
                )


def _faster(workload: Workload, rate: float) -> Workload:
    return replace(workload, arrival_s=workload.arrival_s / rate)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpu_backend.campaign", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is found")
    parser.add_argument("--part", type=int, choices=(1, 2), help="one of the two, else both")
    parser.add_argument("--model", default="llama-3.1-8b", help="of the model table; the CPU has a tiny one")
    parser.add_argument("--gpu", default="h200", help="its name in the table of GPUs")
    parser.add_argument("--profile", type=Path, help="prices steps by this profile")
    parser.add_argument("--requests", type=Path, help="a CSV of arrival_time_s,input_tokens,output_tokens")
    parser.add_argument("--seconds", type=float, default=540.0, help="a part may take so long")
    chosen = parser.parse_args(arguments)
    try:
        require_torch(chosen.device)
        for part in (1, 2) if chosen.part is None else (chosen.part,):
            _run(Campaign(chosen), part)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(campaign: Campaign, part: int) -> None:
    if part == 1:
        pieces: list[Callable[[], None]] = [campaign.measure, campaign.kernels]
    else:
        from gpu_backend.session import executors

        make_device, fingerprint = executors(campaign.plan.model, campaign.device, campaign.plan.kv)
        campaign.write("device.json", fingerprint)
        pieces = [lambda: campaign.locksteps(make_device), lambda: campaign.free_running(make_device)]
    failed = []
    for piece in pieces:
        try:
            piece()
        except Exception as error:  # one piece that breaks must not cost the others
            campaign.say(f"{type(error).__name__}: {error}")
            failed.append(error)
    if failed:
        raise failed[0]


if __name__ == "__main__":
    sys.exit(main())
