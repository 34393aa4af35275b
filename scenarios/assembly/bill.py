"""What a run's GPUs cost: the time that each group's replicas were there, and its price."""

from __future__ import annotations

from collections.abc import Mapping

from scenarios.assembly.groups import groups_of
from scenarios.schema.scenario import Scenario


def gpu_hours(scenario: Scenario, seconds: Mapping[str, float]) -> dict[str, float]:
    """GPU-hours of every group: its replicas' time, in seconds, x the GPUs of a replica."""
    gpus = {group.name: group.scenario.hardware.tensor_parallel for group in groups_of(scenario)}
    alone = next(iter(gpus.values()))
    return {name: spent * gpus.get(name, alone) / 3600 for name, spent in seconds.items()}


def cost_of(hours: Mapping[str, float], scenario: Scenario, output_tokens: int) -> float | None:
    """USD for a million output tokens; None without output, or where a price is not known."""
    usd = 0.0
    prices = [group.scenario.resolve_gpu().usd_per_hour for group in groups_of(scenario)]
    for price, spent in zip(prices, hours.values(), strict=True):
        if price is None:
            return None
        usd += price * spent
    return usd / output_tokens * 1e6 if output_tokens else None
