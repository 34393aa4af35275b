"""`python -m tests.bench.router_memory`: what routers remember, in megabytes of the process and of the router alone.

8 replicas with prefix caches serve the first requests of Mooncake's hour (`--traffic mooncake`, with BATCHLAB_SHARED),
or generated ones that nothing bounds: 80 a second whose prompts have hashes of their own, behind one of seven
beginnings, or conversations of five turns. Each row is a process of its own: its largest memory, trace and records
included; and at the end all that the router alone refers to.
"""

import argparse
import gc
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from unittest.mock import patch

import yaml

import scenarios
from scenarios.assembly.fleet_parts import build_router
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.router import Router
from simulator.fleet.routers import built_in_routers, load_router
from simulator.memory.ledger import PrefixLedger
from simulator.policies import load_policy
from simulator.simulate import simulate_fleet
from simulator.timing.formula_cost import Linear
from tests.bench.fleet import chat
from tests.bench.prefix_cache import SIZE, conversations, hashes
from tests.bench.workloads import LINEAR
from tests.laws.scenarios import Memory

MOONCAKE = (2_000, 12_031)
GENERATED = (10_000, 50_000, 100_000)
CONTENTS = {"hashes": hashes, "conversations": conversations}
_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)  # not the router's own


def held_mb(router: Router) -> float:
    """Megabytes of all objects that a router refers to, itself included."""
    met = {id(router): router}
    left: list[object] = [router]
    while left:
        for each in gc.get_referents(left.pop()):
            if id(each) not in met and not isinstance(each, _SHARED) and type(each).__name__ != "HeardCache":
                met[id(each)] = each
                left.append(each)
    return sum(map(sys.getsizeof, met.values())) / 1e6


def mooncake(name: str, parameters: dict[str, object], requests: int) -> Router:
    """Serve the first requests of the hour by the scenario of the study of routers; returns the router."""
    chosen = {"kind": name, **parameters}
    settings = [f"workload.trace.limit={requests}", f"router={chosen}".replace("'", "")]
    scenario = scenarios.load("study-routers", settings)
    made: list[Router] = []

    def build(given: scenarios.Scenario) -> Router:
        made.append(build_router(given))
        return made[-1]

    with patch("scenarios.runs.runner.build_router", build):
        scenarios.run(scenario)
    return made[-1]


def generated(content: str, name: str, parameters: dict[str, object], requests: int) -> Router:
    """Serve generated requests; returns the router."""
    workload = chat(requests, 80.0)
    workload = replace(workload, content=CONTENTS[content](workload))
    policy = partial(load_policy, "chunked_prefill", {"max_num_seqs": 256, "max_num_batched_tokens": 2048})
    blocks = partial(PrefixLedger, block_size=SIZE)
    group = ReplicaGroup(policy, Memory(20_000, SIZE), Linear(**LINEAR), make_blocks=blocks, replicas=8)
    router = load_router(name, parameters)
    simulate_fleet(workload, [group], router=router)
    return router


TRAFFIC: dict[str, tuple[Callable[..., Router], tuple[int, ...]]] = {
    "mooncake": (mooncake, MOONCAKE),
    **{content: (partial(generated, content), GENERATED) for content in CONTENTS},
}


def parsed(router: str) -> tuple[str, dict[str, object]]:
    """The name and the parameters in `name,key=value,...`."""
    name, *given = router.split(",")
    return name, {key: yaml.safe_load(value) for key, value in (each.split("=") for each in given)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traffic", choices=TRAFFIC, default="mooncake")
    parser.add_argument("--routers", nargs="+", default=list(built_in_routers()), metavar="NAME[,KEY=VALUE]")
    parser.add_argument("--requests", nargs="+", type=int)
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)  # one, in this process
    chosen = parser.parse_args()
    serve, usual = TRAFFIC[chosen.traffic]
    requests = chosen.requests or usual
    if chosen.row:
        router = serve(*parsed(chosen.routers[0]), requests[0])
        mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        print(f"{mb:.0f} ({held_mb(router):.1f})")
        return
    print(f"| router | {' | '.join(f'{each:,} requests' for each in requests)} |")
    print("| --- |" + " ---: |" * len(requests), flush=True)
    command = [sys.executable, "-m", "tests.bench.router_memory", "--row", "--traffic", chosen.traffic]
    for router in chosen.routers:
        row = [
            subprocess.run(
                [*command, "--routers", router, "--requests", str(each)], check=True, capture_output=True, text=True
            ).stdout.strip()
            for each in requests
        ]
        print(f"| {router} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
