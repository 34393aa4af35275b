"""Speculative decoding of a scenario's replicas: the engine's configuration, the law of acceptance, the drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scenarios.assembly.engines import takes_ahead, verifies_drafts
from scenarios.random_draws import stream
from scenarios.schema.cost import ProfileCostConfig, RooflineCostConfig
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.hardware.models import Model
from simulator.parameters import split_class
from simulator.policies import built_in_policies
from simulator.request import Request
from simulator.speculative import (
    PRESETS,
    Acceptance,
    DrawnAcceptance,
    RequestAcceptance,
    Speculation,
    check_server,
    least_variance,
    preset_of,
)
from simulator.timing.added import Drafter, DrafterMemory, Joint, draft_head, joined_parameters, memory_of
from simulator.timing.cost import CostModel
from simulator.timing.formula_cost import Roofline

if TYPE_CHECKING:
    from scenarios.schema.speculative import AcceptanceConfig, SpeculativeDecoding

_KEY = "engine.speculative_config"


def drafts_of(scenario: Scenario) -> SpeculativeDecoding | None:
    """Return what the scenario says of speculative decoding; None where nothing is drafted."""
    given = scenario.engine.speculative_config
    return given if given is not None and given.num_speculative_tokens else None


def build_speculation(scenario: Scenario) -> Speculation | None:
    """Build what a replica drafts with. Raises InputError for what the server would not start, or what is not known."""
    given = drafts_of(scenario)
    if given is None:
        return None
    model, engine = scenario.resolve_model(), scenario.engine
    if not verifies_drafts(engine.policy):
        able = ", ".join(name for name in built_in_policies() if verifies_drafts(name))
        what = f"the policy {split_class(engine.policy)[1]} does not plan steps that verify drafts"
        raise scenario.error(_KEY, what, f"these do: {able}; or num_speculative_tokens: 0")
    if given.method == "mtp" and not model.num_nextn_predict_layers:
        what = f"the model {model.name} has no layers for multi-token prediction (num_nextn_predict_layers)"
        raise scenario.error(f"{_KEY}.method", what, "method: eagle3, draft_model or ngram")
    try:
        config = given.config(max(model.num_nextn_predict_layers, 1))
        if takes_ahead(engine.policy):
            check_server(
                config,
                mixes=bool(engine.parameter("enable_mixed_chunk", False)),
                max_num_seqs=engine.parameter("max_num_seqs", 1),
                max_num_batched_tokens=engine.parameter("max_num_batched_tokens", 1 << 30),
            )
        else:
            config.check_engine(
                max_num_batched_tokens=engine.parameter("max_num_batched_tokens", 1 << 30),
                long_prefill_token_threshold=engine.parameter("long_prefill_token_threshold", 0) or 0,
                block_size=engine.block_size,
                caches_prefixes=engine.enable_prefix_caching,
                async_scheduling=bool(engine.parameter("async_scheduling", False)),
            )
    except ValueError as error:
        raise scenario.error(_KEY, str(error), None) from None
    return Speculation(config, _acceptance(scenario, given), model.max_model_len)


def _acceptance(scenario: Scenario, given: SpeculativeDecoding) -> Acceptance:
    """The law of all requests, of classes and of requests with a list of their own."""
    key = int(stream(scenario.seed, "", "acceptance").integers(2**63))
    usual: Acceptance = _Unknown(scenario)
    law: str | AcceptanceConfig | None = given.acceptance or preset_of(scenario.resolve_model().name, given.method)
    if law is not None:
        usual = DrawnAcceptance(_rates(scenario, law, given, f"{_KEY}.acceptance"), key)
    elif not hasattr(scenario.workload, "trace"):
        raise _not_known(scenario)
    by_class = {
        name: DrawnAcceptance(_rates(scenario, law, given, f"{_KEY}.acceptance_by_class.{name}"), key)
        for name, law in given.acceptance_by_class.items()
    }
    return RequestAcceptance(usual, by_class)


def _rates(scenario: Scenario, law: str | AcceptanceConfig, given: SpeculativeDecoding, key: str) -> Sequence[float]:
    """The rates of a law by position, as many as there are drafts."""
    drafts = given.num_speculative_tokens
    if isinstance(law, str):
        preset = PRESETS[law]
        if drafts > preset.most_drafts:
            what = f"{law} was measured with at most {preset.most_drafts} drafts, not with {drafts}"
            raise scenario.error(key, what, "fewer num_speculative_tokens, another name of `batchlab list acceptance`")
        return preset.rates_of(drafts)
    if law.rates is not None:
        if drafts > len(law.rates):
            what = f"there are {len(law.rates)} rates for {drafts} drafts"
            raise scenario.error(f"{key}.rates", what, "a rate for each of num_speculative_tokens")
        return law.rates[:drafts]
    assert law.mean_length is not None
    try:
        return least_variance(law.mean_length, drafts)
    except ValueError as error:
        raise scenario.error(f"{key}.mean_length", str(error), None) from None


class _Unknown:
    """Acceptance that only the trace can say, and does not. Implements Acceptance."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def enter(self, request: Request) -> None:
        pass

    def accepted(self, row: int, verify_step: int) -> int:
        raise _not_known(self._scenario)


def _not_known(scenario: Scenario) -> InputError:
    what = "how many drafts are accepted is known neither of this model and method nor of every request"
    hint = "a name of `batchlab list acceptance`, {rates: [...]}, {mean_length: ...}, or a trace's accepted_drafts"
    return scenario.error(f"{_KEY}.acceptance", what, hint)


def drafter_memory(scenario: Scenario) -> DrafterMemory:
    """Return the memory that the drafter takes on each GPU."""
    given, ranks, model = drafts_of(scenario), scenario.hardware.tensor_parallel, scenario.resolve_model()
    if given is None or given.method == "ngram":
        return DrafterMemory()
    own = given.resolve_draft_model()
    if own is not None:
        return memory_of(own, ranks)
    modules = max(model.num_nextn_predict_layers, 1) if given.method == "mtp" else 1
    return memory_of(draft_head(model, given.method), ranks, joined_parameters(model, given.method), modules)


def build_drafter(scenario: Scenario) -> Drafter | None:
    """Build the drafter's time; None where it adds none, or the cost of steps says it by itself."""
    given = drafts_of(scenario)
    if given is None or given.method == "ngram":
        return None
    if not isinstance(scenario.resolve_cost(), (RooflineCostConfig, ProfileCostConfig)):
        return None
    model, gpu, ranks = scenario.resolve_model(), scenario.resolve_gpu(), scenario.hardware.tensor_parallel
    own = given.resolve_draft_model()
    if own is not None:
        return Drafter(_pass(scenario, own), is_parallel=given.parallel_drafting, branches=given.eagle_topk)
    head = draft_head(model, given.method)
    joint = Joint.of(joined_parameters(model, given.method), head, gpu, ranks)
    from simulator.timing.tables.assumed import small_kernels

    return Drafter(_roofline(scenario, head), joint, branches=given.eagle_topk, small=small_kernels(head, gpu, ranks))


def _pass(scenario: Scenario, own: Model) -> CostModel:
    """The cost of a pass of a draft model: measured kernels where the scenario's cost has them, else its roofline."""
    if isinstance(scenario.resolve_cost(), ProfileCostConfig):
        from scenarios.schema.host import HostConfig
        from simulator.timing.profile import ProfileCost

        changed = {"model": own.name, "host": HostConfig(step_s=0.0, per_seq_s=0.0)}
        try:
            found = ProfileCostConfig(kind="profile").build(scenario.model_copy(update=changed))
        except InputError:
            return _roofline(scenario, own)
        if isinstance(found, ProfileCost):
            return ProfileCost(found.profile, replace(found.options, samples_drafts=False))
    return _roofline(scenario, own)


def _roofline(scenario: Scenario, model: Model) -> Roofline:
    gpu, ranks = scenario.resolve_gpu(), scenario.hardware.tensor_parallel
    try:
        return Roofline(model, gpu, ranks, host_s=0.0, samples_drafts=False)
    except InputError as error:
        raise scenario.error(f"{_KEY}.draft_model", error.message, error.hint) from None
