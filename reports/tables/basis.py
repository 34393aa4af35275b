"""The basis of a report's figures: model, GPU, step costs and their known error, version; a step's cost by part."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reports.tables.details import TableRows
from reports.units import one_line
from reports.verdict.shown_metrics import Summaries, Summary, joined

KEY = "provenance"
"""The key of a summary."""


def provenance_of(summary: Summary) -> Mapping[str, Any]:
    """A summary's provenance; empty where it has none."""
    found: object = summary.get(KEY)
    return found if isinstance(found, Mapping) else {}


def provenance_words(summaries: Summaries) -> str:
    """Model, hardware, step costs, seeds and version of the runs in a line; '' where they are not known.

    What differs between runs is named with all its values.
    """
    known = [each for runs in summaries.values() for each in map(provenance_of, runs) if each]
    if not known:
        return ""
    costs = _distinct(cost_words(each["cost"]) for each in known)
    parts = [
        f"{_distinct(map(_hardware, known))}",
        f"step costs: {costs}",
        f"seed {_seeds([each['seed'] for each in known])}",
        f"batchlab {_distinct(each['version'] for each in known)}",
    ]
    return "; ".join(parts)


def cost_words(cost: Mapping[str, Any]) -> str:
    """A kind of step costs and how far it is known to be off."""
    error = cost["error"]
    if isinstance(error, Mapping):
        kinds = ", ".join(f"{key.removesuffix('_mape_percent')} {value:.1f} %" for key, value in error.items())
        error = f"mean error on held-out kernels: {kinds}"
    profile = f" {cost['profile']}" if "profile" in cost else ""
    return f"{cost['kind']}{profile} ({error})"


def _hardware(each: Mapping[str, Any]) -> str:
    stages, replicas = each.get("pipeline_parallel", 1), each["replicas"]
    ranks = each["tensor_parallel"] * stages
    gpu = f"{ranks} x {each['gpu']}" if ranks > 1 else each["gpu"]
    gpu += f" in {stages} stages" if stages > 1 else ""
    return f"{each['model']} on {gpu}, {replicas} replica{'s' if replicas != 1 else ''}"


def _distinct(texts: Any) -> str:
    return " / ".join(dict.fromkeys(texts))


def _seeds(seeds: Sequence[int]) -> str:
    """0; 0 and 3; 0 to 4."""
    found = sorted(set(seeds))
    if len(found) > 2 and found == [*range(found[0], found[-1] + 1)]:
        return f"{found[0]} to {found[-1]}"
    return ", ".join(map(str, found))


HEAD = ("part", "how", "in words")
KINDS = {
    "linear": ("given", "the scenario's coefficients"),
    "roofline": ("assumed", "bytes and operations over the GPU's datasheet"),
}
"""The source of a step's time, by the kind of its costs, where it has no parts."""

Row = tuple[str, str, str]


def cost_tables(summaries: Summaries) -> list[tuple[str, TableRows]]:
    """A table for each way that steps were priced, with the runs, or groups of a fleet, that it is of; '' for all."""
    told: dict[tuple[Row, ...], list[str]] = {}
    for label, runs in summaries.items():
        for of_group, found in _groups(provenance_of(runs[0]) if runs else {}):
            name = f"{label}, {of_group}" if of_group and len(summaries) > 1 else of_group or label
            told.setdefault(tuple(cost_rows(found)), []).append(name)
    told.pop((), None)
    tables = [(joined(names), TableRows(HEAD, rows, len(HEAD))) for rows, names in told.items()]
    return [("", tables[0][1])] if len(tables) == 1 else tables


def is_of_steps(note: str) -> bool:
    """Return whether a run's note says how sensitive it is to step times (`scenarios.runs.runner`)."""
    return "TTFT" in note and "step time" in note


def cost_rows(found: Mapping[str, Any]) -> list[Row]:
    """The lines of one provenance; none of a summary that has no such thing."""
    cost = found.get("cost")
    if not isinstance(cost, Mapping):
        return []
    parts = cost.get("composed") or cost.get("fitted")
    rows: list[Row] = [] if parts else [("step", *KINDS.get(str(cost["kind"]), ("", "")))]
    for name, how in (parts or {}).items():
        word, _, words = how.partition(", ")
        rows.append((one_line(name, 120), word, words))
    rows += [_host(found.get("host")), _front_end(found.get("front_end"))]
    return [*rows, *_settings(found.get("defaults"))]


def _settings(told: Mapping[str, Any] | None) -> Iterator[Row]:
    """Yield which settings are the server's own, and which are not; nothing under plain defaults."""
    if told is not None:
        yield "settings", "default", f"{told['of']}: {_keys(told['taken'], ' ')}"
        if told["otherwise"]:
            yield "settings", "given", f"not as {told['of']} by default: {_keys(told['otherwise'], ', not ')}"
        for path, why in told.get("gave_way", {}).items():
            yield "settings", "default", f"{path} is false: {why}"
        for path, asked in told.get("unknown", {}).items():
            yield "settings", "given", f"{path} {asked} is not known: the nearest that is stands for it"


def _keys(values: Mapping[str, Any], between: str) -> str:
    return "; ".join(f"{path.partition('.')[2]}{between}{value}" for path, value in values.items())


def _groups(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A provenance by the groups of its fleet."""
    groups: Sequence[Mapping[str, Any]] = found.get("fleet", ())
    for group in groups:
        yield str(group.get("name", "")), group
    if not groups:
        yield "", found


def _host(host: Mapping[str, Any] | None) -> Row:
    if host is None:
        return "host", "nothing", "no time of the host's is added to a step"
    how, of = _source(str(host["from"]))
    return "host", how, f"{_ms(host['step_s'])} a step and {_us(host['per_seq_s'])} for each request{of}"


def _front_end(front_end: Mapping[str, Any] | None) -> Row:
    if front_end is None:
        return "front end", "nothing", "times count from the arrival at the engine"
    how, of = _source(str(front_end["from"]))
    fixed, each = _ms(front_end["fixed_s"]), _us(front_end["per_running_s"])
    prompt = f", {_us(token)} for each prompt token" if (token := front_end.get("per_prompt_token_s")) else ""
    return "front end", how, f"{fixed} and {each} for each running request{prompt}{of}"


def _source(text: str) -> tuple[str, str]:
    """One word for where figures come from, and the rest of it."""
    if text in ("", "the scenario"):
        return "given", ""
    how = "assumed" if "assumed" in text else "measured" if not text.startswith("fitted") else "fitted"
    return how, f" ({text})" if text != how else ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} microseconds"
