"""From a scenario to what the simulator takes: workload, KV memory, step costs, policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from scenarios.build.expert_parallel import build_group_cost, held_model
from scenarios.build.groups import Group, groups_of
from scenarios.build.orders import build_order
from scenarios.build.unused import caches_prefixes, check_overlap, refuse_unused, unused
from scenarios.schema.engine import DEFAULT_BUDGET, ENGINE_KEYS
from scenarios.schema.loader import dump, load
from scenarios.schema.scenario import Scenario, TraceWorkload
from scenarios.schema.source.hints import did_you_mean
from simulator.errors import InputError
from simulator.hardware.kv import KVCache, kv_cache, swap_s_per_block
from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.prefix_ledger import PrefixLedger
from simulator.memory.radix_cache import RadixCache
from simulator.plan import OptionalMembers, PolicyFeatures, Traits
from simulator.policies import (
    DEFAULT_POLICY,
    built_in_policies,
    load_policy,
    policy_class,
    policy_parameters,
    rules_of,
)
from simulator.queues import Order
from simulator.workload import Workload

if TYPE_CHECKING:
    from simulator.engine.data_parallel import GroupCost
    from simulator.plan import Policy
    from simulator.timing.cost import CostModel


_FEW = 64  # chains of a closed loop's pool that tell one from another


@dataclass(frozen=True, slots=True)
class Parts:
    """What a simulation is made of, the workload apart. `make_policy` makes each replica one of its own."""

    make_policy: Callable[[], Policy]
    kv: KVCache
    cost: CostModel
    swap_s_per_block: float
    make_blocks: Callable[[int, int], KVBlocks]
    make_blocks_by_id: Callable[[int, int], KVBlocks]  # the same with ids, for a device
    swap_overlap: bool = False
    group_cost: GroupCost | None = None
    max_queued_requests: int | None = None


def build_workload(scenario: Scenario) -> Workload:
    """Read the scenario's trace, or draw its requests; then predict their lengths, if it says how.

    Raises InputError for a trace that cannot be read, and for weights or SLOs of unknown classes.
    """
    workload = _given_workload(scenario)
    named = {
        "engine.class_weights": scenario.engine.given().get("class_weights"),
        "slo.classes": scenario.slo and scenario.slo.classes,
    }
    for key, classes in named.items():
        for name in classes or ():
            if name not in workload.class_names:
                hint = did_you_mean(name, workload.class_names)
                raise scenario.error(f"{key}.{name}", f"no class is called {name!r}", hint)
    _check_clients(scenario, workload)
    predictor = scenario.workload.predictor
    if predictor is not None:
        from scenarios.build.predict import predict

        workload = predict(workload, predictor, scenario.seed)
    return workload.in_files()


def _given_workload(scenario: Scenario) -> Workload:
    workload = scenario.workload
    if isinstance(workload, TraceWorkload):
        from scenarios.traces import read_trace

        trace = read_trace(workload.path, workload.options(scenario.seed))
        if workload.trace.arrival is not None:  # before the sessions are taken apart, which keep their pace
            from scenarios.generate.redrawn import with_arrivals

            trace = with_arrivals(trace, workload.trace.arrival, scenario.seed)
        return _played_back(trace, scenario, workload)
    from scenarios.generate import generate

    return generate(workload, scenario.seed)


def _check_clients(scenario: Scenario, workload: Workload) -> None:
    """Raise InputError for clients that leave before an answer could reach them."""
    late_s = scenario.resolve_front_end().delay_s(1)
    for client in workload.clients:
        for name in ("ttft_timeout_s", "timeout_s"):
            if (patience_s := getattr(client, name)) <= late_s:
                what = f"a {name} of {patience_s:g} s is over before an answer can come: front_end adds {late_s:g} s"
                raise scenario.error("front_end", what, "a longer timeout, or a nearer front end")


def _played_back(trace: Workload, scenario: Scenario, workload: TraceWorkload) -> Workload:
    """The trace with its sessions as the scenario wants them, and its clients."""
    if workload.trace.sessions == "recorded":
        trace = replace(trace, after_row=None, delay_s=None)
    elif trace.after_row is None:
        what = "sessions: closed_loop needs a trace that says which request follows which"
        raise scenario.error("workload.trace.sessions", what, "this one does not; leave the key out")
    if workload.client is None:
        return trace
    from scenarios.generate.clients import client_of

    clients = tuple(client_of(workload.client, scenario.seed, name) for name in trace.class_names)
    return replace(trace, clients=clients)


def build(scenario: Scenario) -> Parts:
    """Policy, memory and costs. Raises InputError where they do not fit together, before anything is simulated."""
    policy = build_policy(scenario)
    kv = _build_kv(scenario, policy)
    swap_s = swap_s_per_block(kv, scenario.resolve_gpu())
    check_overlap(scenario)
    cost, (make_blocks, make_blocks_by_id) = scenario.cost.build(scenario), _build_blocks(scenario)
    group_cost = build_group_cost(scenario, cost)
    return Parts(
        lambda: deepcopy(policy),
        kv,
        cost,
        swap_s,
        make_blocks,
        make_blocks_by_id,
        scenario.engine.swap_overlap,
        group_cost,
        scenario.engine.max_queued_requests,
    )


def _build_blocks(scenario: Scenario) -> tuple[Callable[[int, int], KVBlocks], Callable[[int, int], KVBlocks]]:
    """Blocks as counts and by id, with a prefix cache where the scenario asks for one and the policy can have it."""
    engine = scenario.engine
    if not engine.enable_prefix_caching:
        return BlockLedger, BlockManager
    if not caches_prefixes(engine.policy):
        able = ", ".join(name for name in built_in_policies() if caches_prefixes(name))
        what = f"the policy {policy_label(engine.policy)} does not reckon with a prefix cache"
        raise scenario.error("engine.enable_prefix_caching", what, f"these do: {able}; or leave the key out")
    features = PolicyFeatures.of(policy_class(engine.policy))
    counts, by_id = (RadixCache, RadixCache) if features.has_radix_tree else (PrefixLedger, PrefixCache)
    return partial(counts, block_size=engine.block_size), partial(by_id, block_size=engine.block_size)


def check_content(scenario: Scenario, workload: Workload) -> None:
    """Raise InputError if the workload's block hashes cannot be told in the blocks of every engine and the router."""
    if workload.content is None:
        return
    sizes = {content.hash_block_size for content in workload.content if content is not None and content.block_hashes}
    for group in groups_of(scenario):
        engine = group.scenario.engine
        if engine.enable_prefix_caching:
            _check_size(group.scenario, "engine.block_size", engine.block_size, sizes)
    of_router = scenario.routing.resolved().get("block_size")
    if isinstance(of_router, int) and scenario.num_replicas > 1:
        key = "router" if isinstance(scenario.router, str) else "router.block_size"
        _check_size(scenario, key, of_router, sizes)


def _check_size(scenario: Scenario, key: str, block_size: int, sizes: Iterable[int]) -> None:
    for size in sorted(sizes):
        if size % block_size and block_size % size:
            what = f"the trace has hashes of {size}-token blocks, which do not go with block_size = {block_size}"
            raise scenario.error(key, f"{what}: one must be a multiple of the other", None)


def _build_kv(scenario: Scenario, policy: Policy) -> KVCache:
    """The KV cache beside the activations of a step: of the policy's own budget, where the scenario gives none."""
    engine, hardware = scenario.engine, scenario.hardware
    budget = OptionalMembers.of(policy).max_num_batched_tokens
    try:
        return kv_cache(
            held_model(scenario),
            scenario.resolve_gpu(),
            hardware.tensor_parallel,
            hardware.gpu_memory_utilization,
            engine.block_size,
            budget if isinstance(budget, int) else engine.parameter("max_num_batched_tokens", DEFAULT_BUDGET),
            hardware.swap_space_gib,
            hardware.num_gpu_blocks,
        )
    except InputError as error:
        raise scenario.error("hardware", error.message, error.hint) from None


def build_policy(scenario: Scenario) -> Policy:
    """The policy with the parameters that the scenario gives it.

    A key that neither the policy nor its order takes is an InputError, unless its value asks for nothing.
    """
    engine = scenario.engine
    try:
        own = policy_parameters(policy_class(engine.policy))
    except InputError as error:
        raise error if error.file else scenario.error("engine.policy", error.message, error.hint) from None
    refuse_unused(scenario)
    parameters = {key: value for key, value in engine.given().items() if key in own}
    order = engine.parameter("order") if "order" in own else None
    if isinstance(order, str):
        parameters["order"] = build_order(scenario, order)
    try:
        return load_policy(engine.policy, parameters)
    except InputError as error:
        key = next((key for key in parameters if f": {key} " in error.message), "policy")
        raise error if error.file else scenario.error(f"engine.{key}", error.message, error.hint) from None


def policy_traits(scenario: Scenario) -> Traits:
    """Return what the scenario's policy says of itself, as it is configured."""
    return OptionalMembers.of(build_policy(scenario)).traits


def is_default(scenario: Scenario) -> bool:
    """Return whether the scenario's policy is the default scheduler, under any of its names."""
    return rules_of(scenario.engine.policy) == rules_of(DEFAULT_POLICY)


def with_chunks(scenario: Scenario) -> dict[str, str | int]:
    """Return the settings that compute prompts in chunks beside the decodes: the default policy, with its chunks."""
    found: dict[str, str | int] = {} if is_default(scenario) else {"engine.policy": DEFAULT_POLICY}
    if scenario.engine.given().get("enable_chunked_prefill") is False:
        found["engine.enable_chunked_prefill"] = True
    return found


def policy_label(policy: str) -> str:
    """What tables call a policy: its name, or the class of a user's own."""
    return policy.rpartition(":")[2] if ".py:" in policy else policy


def policies_label(scenario: Scenario) -> str:
    """What tables call a run: its policy; of a fleet with several, all of them."""
    return "+".join(dict.fromkeys(policy_label(group.scenario.engine.policy) for group in groups_of(scenario)))


def with_policy(
    scenario: Scenario, policy: str, asked: Mapping[str, object] | None = None
) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario under another policy, and the keys given to the engine that this policy does not take.

    These are left out. `asked` holds further keys of the engine, which replace the scenario's own. A relative path in
    `policy` counts from the working directory.
    """
    data = scenario.model_dump(exclude_unset=True)
    try:
        bare = load({**data, "engine": {"policy": policy}})
    except InputError as error:
        raise InputError(error.message, file="--policies", hint=error.hint) from None
    given = {**data.get("engine", {}), **(asked or {}), "policy": bare.engine.policy}
    left_out = unused(bare.engine.policy, given)
    kept = {key: value for key, value in given.items() if key not in left_out}
    return load({**data, "engine": kept}), tuple(key for key, asks in left_out.items() if asks)


def resolved_yaml(scenario: Scenario) -> str:
    """The scenario as YAML with nothing left to a default, those of the policy itself included.

    Keys of other policies, which ask for nothing, are left out.
    """
    data = scenario.model_dump(exclude_unset=True)
    data["engine"] = _resolved_engine(scenario)
    around = scenario.resolved_around()
    if scenario.fleet is not None:
        data["fleet"] = [_resolved_group(group) for group in groups_of(scenario)]
        del around["host"]  # each group has its own
    data |= {key: value for key, value in around.items() if value is not None}
    return dump(load(data, check_files=False))


def _resolved_engine(scenario: Scenario) -> dict[str, object]:
    given, known = scenario.model_dump(exclude_unset=True).get("engine", {}), scenario.engine.takes()
    plain = _plain_parameters(scenario)
    found = {key: plain.get(key, given.get(key)) for key in (*ENGINE_KEYS, *known) if key in {**given, **plain}}
    return {**found, "policy": scenario.engine.policy}


def _resolved_group(group: Group) -> dict[str, object]:
    whole, engine = group.scenario.model_dump(), group.scenario.engine
    host = group.scenario.resolved_around()["host"]
    rule = group.autoscaling
    scales = {} if rule is None else {"autoscaling": rule.model_dump(exclude_none=True)}
    return {
        "name": group.name,
        **({} if group.role == "both" else {"role": group.role}),
        **scales,
        **{key: whole[key] for key in ("replicas", "model", "hardware", "cost")},
        **({} if host is None else {"host": host}),
        "engine": type(engine).model_validate(_resolved_engine(group.scenario)).resolved(),
    }


def cost_per_million(scenario: Scenario, output_throughput: float | None) -> float | None:
    """USD for a million output tokens on the scenario's GPUs; None where the price or the throughput is not known."""
    from simulator.metrics.summary import cost_per_million_output_tokens

    usd_per_hour = 0.0
    for group in groups_of(scenario):
        of_gpu = group.scenario.resolve_gpu().usd_per_hour
        if of_gpu is None:
            return None
        usd_per_hour += group.replicas * group.scenario.hardware.tensor_parallel * of_gpu
    return cost_per_million_output_tokens(output_throughput, gpus=1, usd_per_gpu_hour=usd_per_hour)


def is_random(scenario: Scenario) -> bool:
    """Whether another seed can make another workload, or other predictions of it."""
    workload = scenario.workload
    if not isinstance(workload, TraceWorkload):
        return True
    trace = workload.trace
    drawn = trace.format == "servegen-tables" or workload.path.is_dir()  # tables that a trace is drawn from
    if drawn or trace.jitter_s > 0 or trace.sample < 1 or trace.arrival is not None:
        return True
    return workload.predictor is not None and workload.predictor.kind == "noisy"


def same_requests(one: Workload, other: Workload) -> bool:
    """Whether two workloads hold the same requests at the same times, and predict the same of them."""
    if len(one.loops) != len(other.loops):
        return False
    for ours, theirs in zip(one.loops, other.loops, strict=True):
        if not same_requests(ours.draw(_FEW), theirs.draw(_FEW)):
            return False
    columns = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "class_index", "predicted_output_tokens")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in (*columns, "delay_s"))


def _plain_parameters(scenario: Scenario) -> Mapping[str, object]:
    """The parameters of policy and order as far as YAML can hold them."""
    policy = build_policy(scenario)
    values = {key: getattr(policy, key) for key in policy_parameters(type(policy))}
    order = values.get("order")
    if isinstance(order, Order):
        values |= {"order": str(order), **order.parameters}
    return {key: value for key, value in values.items() if isinstance(value, (str, int, float, bool, dict))}
