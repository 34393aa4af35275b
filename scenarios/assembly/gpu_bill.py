"""The cost of a run's GPUs: the time that each group's replicas were there, and its price."""

from collections.abc import Mapping

from scenarios.assembly.groups import groups_of
from scenarios.schema.scenario import Scenario


def gpu_hours(scenario: Scenario, seconds: Mapping[str, float]) -> dict[str, float]:
    """GPU-hours of every group: its replicas' time, in seconds, x the GPUs of a replica."""
    gpus = {group.name: group.scenario.hardware.gpus for group in groups_of(scenario)}
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


def cost_per_million(scenario: Scenario, output_throughput: float | None) -> float | None:
    """USD for a million output tokens on the scenario's GPUs; None where the price or the throughput is not known."""
    from simulator.metrics.summary import cost_per_million_output_tokens

    usd_per_hour = 0.0
    for group in groups_of(scenario):
        of_gpu = group.scenario.resolve_gpu().usd_per_hour
        if of_gpu is None:
            return None
        usd_per_hour += group.replicas * group.scenario.hardware.gpus * of_gpu
    return cost_per_million_output_tokens(output_throughput, gpus=1, usd_per_gpu_hour=usd_per_hour)
