"""Waits for KV that is loaded from the host or a further tier, and what a load takes beside computing it."""

import numpy as np

from scenarios.assembly.replica_parts import build
from scenarios.diagnosis.timeline import covered
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.hardware.kv import GIB
from simulator.results.records import Floats, Ints, Records
from simulator.timing.cost import CostModel, StepShape

HOST_GIB = 256.0
"""The most host memory that is proposed for a GPU: a server of eight has 2 TiB."""

TIERS = ("the link to the host", "the first further tier", "the second further tier")


def load_waits(records: Records, rows: Ints, from_s: Floats, to_s: Floats) -> Floats:
    """Return the seconds in which these requests waited while a tier's link loaded, theirs or others before theirs.

    An array of (tiers, requests): the host, then further tiers. A request that loaded nothing waited for no load.
    """
    copies, replica = records.copies, records.requests.replica[rows]
    found = np.zeros((len(TIERS), len(rows)))
    if copies is None:
        return found
    for tier in range(len(TIERS)):
        loads = (copies.tier == tier) & (copies.stored == 0)
        last_s = np.full(len(records.requests.row), -np.inf)
        np.maximum.at(last_s, copies.row[loads], copies.end_s[loads])
        until_s = np.minimum(last_s[rows], to_s)
        for place in np.unique(replica).tolist():
            mine, on = (replica == place) & (until_s > from_s), loads & (copies.replica == place)
            found[tier, mine] = covered(copies.start_s[on], copies.end_s[on], from_s[mine], until_s[mine])
    return found


def load_token_s(scenario: Scenario) -> float:
    """Return the seconds in which a token's KV crosses the link between the host and the GPUs of a replica."""
    hardware = scenario.hardware
    given = hardware.kv_offload.link_gb_s if hardware.kv_offload is not None else None
    link_gb_s = scenario.resolve_gpu().host_link_gb_s if given is None else given
    return kv_gib(scenario, 1.0) * GIB / (link_gb_s * 1e9 * hardware.tensor_parallel)


def prompt_token_s(cost: CostModel, budget: int) -> float:
    """Return the seconds that a prompt token adds in a step full of them."""
    base_s = cost.step_s(StepShape(1, 1, decode_longest=1, decode_squares=1))
    pairs = budget * (budget + 1) // 2
    full_s = cost.step_s(StepShape(0, 0, 1, budget, budget, pairs, prefill_longest=budget))
    return max(full_s - base_s, 0.0) / budget


def kv_gib(scenario: Scenario, tokens: float) -> float:
    """Return the GiB that the KV of so many tokens takes, over all GPUs of a replica."""
    kv = build(scenario).kv
    return tokens * kv.bytes_per_block * scenario.hardware.tensor_parallel / scenario.engine.block_size / GIB


def with_host(scenario: Scenario, host_gib: float) -> Scenario:
    """Return the scenario with so much memory for KV on each host. Raises InputError as `load` does."""
    data = scenario.model_dump(exclude_unset=True)
    hardware = data.get("hardware") or {}
    tier = {**(hardware.get("kv_offload") or {}), "host_gib": host_gib}
    return load({**data, "hardware": {**hardware, "kv_offload": tier}}, check_files=False)
