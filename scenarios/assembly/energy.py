"""The energy of a run's GPUs, as the scenario asks for it."""

from scenarios.assembly.groups import groups_of
from scenarios.schema.scenario import Scenario
from simulator.metrics.energy import TDP_W, joules
from simulator.metrics.window import measured_window
from simulator.results.records import Records

_JOULES_A_KWH = 3.6e6


def energy_of(scenario: Scenario, records: Records, output_tokens: int, **cuts: float) -> dict[str, float]:
    """Joules and grams of CO2 a token, by the names of summary.json; none unless the scenario has `energy`.

    Raises InputError for a GPU whose power limit is not known.
    """
    asked = scenario.energy
    if asked is None or not output_tokens:
        return {}
    limits_w: list[float] = []
    for group in groups_of(scenario):
        gpu = group.scenario.resolve_gpu().name
        limit_w = asked.tdp_w or TDP_W.get(gpu)
        if limit_w is None:
            raise scenario.error("energy", f"the power limit of {gpu} is not known", "give energy.tdp_w, in watts")
        limits_w += [limit_w * group.scenario.hardware.gpus] * group.replicas
    limits_w += limits_w[-1:] * (records.replicas - len(limits_w))  # what an autoscaler added
    found = joules(records, measured_window(records, **cuts), limits_w[: records.replicas])
    entries = {
        "joules_per_output_token": found.taken / output_tokens,
        "joules_per_output_token_low": found.low / output_tokens,
        "joules_per_output_token_high": found.high / output_tokens,
    }
    if asked.grams_co2_per_kwh is not None:
        grams = found.taken / _JOULES_A_KWH * asked.grams_co2_per_kwh
        entries["grams_co2_per_million_output_tokens"] = grams / output_tokens * 1e6
    return entries
