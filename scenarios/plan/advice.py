"""Advise the change that would help a candidate most, tried by a run where it fails."""

from collections.abc import Iterator

from scenarios.assembly.engine_policy import policy_traits, with_chunks
from scenarios.assembly.replica_parts import build
from scenarios.assembly.unused_keys import engine_keys
from scenarios.diagnosis.evidence import HOST_GIB, load_token_s, prompt_token_s
from scenarios.plan.answer import Answer
from scenarios.plan.bottleneck import Shares
from scenarios.plan.candidate import POLICY, TENSOR_PARALLEL, Candidate
from scenarios.plan.goal import Goal
from scenarios.plan.search import rounded
from scenarios.plan.text import described, rate_text
from scenarios.plan.trial import Laboratory, Trial
from scenarios.schema.engine import DEFAULT_BUDGET
from scenarios.schema.scenario import Scenario
from scenarios.studies.study import Setting
from simulator.errors import InputError

_BEYOND = 1.08  # times the largest rate: where the candidate should fail
_NEAR = 0.03
_MUCH = 0.1  # of the worst requests' time: a cause with less is not what they wait for
OFFLOAD = "hardware.kv_offload"
_MOST = 3  # changes that are tried
_LEAST_GAIN = 0.02  # of the excess's logarithm: less is no help


def advise(lab: Laboratory, answer: Answer, *, tried: bool) -> str:
    """Advise a change in a sentence. With `tried`, runs of a few changes show which one helps most."""
    if answer.binding is None:
        return ""
    has_content = lab.traffic.workload(answer.load, lab.traffic.scenario.seed).content is not None
    changes = [
        (setting, changed)
        for setting in proposals(answer.candidate, answer.binding, answer.shares, has_content=has_content)
        if (changed := _built(answer.candidate, setting)) is not None
    ][:_MOST]
    if not changes:
        return "No setting is left to change: take another GPU, or more replicas."
    words = [_worded(setting, answer.candidate) for setting, _ in changes]
    if not tried or lab.is_spent:
        return f"May help (not tried): {' or '.join(words)}."
    rate, before = _failing(lab, answer)
    if before.holds:
        return ""
    runs: list[Trial] = []
    for setting, changed in changes:
        replicas = changed.scenario.replicas if "replicas" in setting else answer.replicas
        runs.append(lab.run(changed, rate, replicas=replicas, early_stop=False))
        if runs[-1].holds:
            break
    best = min(range(len(runs)), key=lambda place: runs[place].excess)
    at = f"at {rate_text(rate)} requests/s"
    if runs[best].holds:
        return f"With {words[best]} it still holds {at} (simulated)."
    said = f"No single setting helps {at} (runs: {'; '.join(words)})."
    if runs[best].excess < before.excess - _LEAST_GAIN:
        gain = f"{at} {described(runs[best])}, and {described(before)} without it"
        said = f"{words[best]} helps most, but not enough: {gain} (runs)."
    return f"{said} {_more_replicas(lab, answer, rate)}"


def _failing(lab: Laboratory, answer: Answer) -> tuple[float, Trial]:
    """Find a rate at which the candidate fails, the load or a little above its largest rate, and its run there."""
    rate, seed = answer.load, lab.traffic.scenario.seed
    ran = [t for t in answer.trials if t.replicas == answer.replicas and t.seed == seed and not t.stopped]
    if answer.feasible and answer.bounds is not None:
        rate = rounded(answer.bounds.value * _BEYOND)
        rate = min((trial.rate for trial in ran if abs(trial.rate / rate - 1) < _NEAR), default=rate)
    for _ in range(_MOST):
        before = next((trial for trial in ran if trial.rate == rate), None) or lab.run(
            answer.candidate, rate, replicas=answer.replicas, early_stop=False
        )
        if not before.holds:
            break
        rate = rounded(rate * _BEYOND)
    return rate, before


def _more_replicas(lab: Laboratory, answer: Answer, rate: float) -> str:
    """Say what one more replica would do."""
    if answer.candidate.scenario.fleet is not None:
        return "Another GPU, or a larger fleet."
    more = answer.replicas + 1
    after = lab.run(answer.candidate, rate, replicas=more)
    if not after.holds:
        return "One more replica is not enough either: take another GPU."
    price = answer.candidate.usd_per_hour(more)
    cost = "" if price is None else f", for {price:,.2f} USD/h"
    return f"{more:,} replicas hold there (run){cost}."


def _computing_s(scenario: Scenario) -> float:
    """Return the seconds in which a prompt token is computed."""
    return prompt_token_s(
        build(scenario).cost, int(scenario.engine.parameter("max_num_batched_tokens") or DEFAULT_BUDGET)
    )


def _offload(scenario: Scenario, shares: Shares, *, has_content: bool) -> Iterator[Setting]:
    """Propose to keep KV on the host, where prompts are known and loading is faster, or to stop where its link binds.

    The host has a fair share of a server's memory for each GPU.
    """
    given = scenario.hardware.kv_offload
    if given is not None and shares.bottleneck == "link":
        yield {OFFLOAD: None}
    finds = has_content and scenario.engine.enable_prefix_caching and scenario.fleet is None
    if given is None and finds and load_token_s(scenario) < _computing_s(scenario):
        yield {OFFLOAD: {"host_gib": HOST_GIB * scenario.hardware.tensor_parallel}}


def proposals(candidate: Candidate, binding: Goal, shares: Shares, *, has_content: bool = False) -> Iterator[Setting]:
    """Propose changes that relieve what the worst requests of the binding goal wait for, the likeliest first."""
    scenario = candidate.scenario
    engine = scenario.engine
    seqs, budget = engine.parameter("max_num_seqs"), engine.parameter("max_num_batched_tokens")
    if policy_traits(scenario).whole_prompts:
        yield {**with_chunks(scenario)}
    if binding.latency in ("tpot", "itl"):
        if isinstance(budget, int) and budget >= 256:
            yield {"engine.max_num_batched_tokens": budget // 2}
            yield {"engine.max_num_batched_tokens": budget // 4}
        if isinstance(seqs, int) and seqs >= 16:
            yield {"engine.max_num_seqs": seqs // 2}
    else:
        yield from _offload(scenario, shares, has_content=has_content)
        for cause in sorted(shares.of, key=lambda cause: -shares.of[cause]) or ["compute"]:
            if cause in ("queueing", "memory") and shares.of[cause] < _MUCH:
                continue
            if cause == "queueing" and isinstance(seqs, int):
                yield {"engine.max_num_seqs": seqs * 2}
            elif cause == "memory" and scenario.hardware.gpu_memory_utilization < 0.94:
                yield {"hardware.gpu_memory_utilization": 0.95}
            elif cause == "compute" and isinstance(budget, int):
                yield {"engine.max_num_batched_tokens": budget * 2}
    ranks = scenario.hardware.tensor_parallel
    if scenario.fleet is None and ranks * 2 in scenario.resolve_model().tensor_parallel_choices():
        yield {TENSOR_PARALLEL: ranks * 2}


def _built(candidate: Candidate, setting: Setting) -> Candidate | None:
    """Change a candidate; None where it cannot be built, or its policy does not take the key."""
    keys = [key.removeprefix("engine.") for key in setting if key.startswith("engine.") and key != POLICY]
    if not {*keys} <= {*engine_keys(candidate.scenario.engine.policy, {})}:
        return None
    try:
        found = candidate.with_settings(setting)
        build(found.scenario)
    except InputError:
        return None
    return found


def _worded(setting: Setting, candidate: Candidate) -> str:
    scenario = candidate.scenario
    words = []
    for key, value in setting.items():
        if key == OFFLOAD:
            us = f"{1e6 * load_token_s(scenario):.3g} us to load a token, {1e6 * _computing_s(scenario):.3g} to compute"
            host = "no kv_offload" if value is None else f"kv_offload of {HOST_GIB:g} GiB for each GPU"
            words.append(f"{host} ({us})")
            continue
        section, _, name = key.rpartition(".")
        before = scenario.engine.parameter(name) if section == "engine" else getattr(scenario.hardware, name, None)
        words.append(f"{name} {value} instead of {scenario.engine.policy if key == POLICY else before}")
    return ", ".join(words)
