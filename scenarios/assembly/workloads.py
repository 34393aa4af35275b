"""The workload of a scenario: its trace read, or its requests drawn; and whether two workloads are equal."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from scenarios.assembly.engines import groups_of
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.hints import did_you_mean
from scenarios.schema.trace import TraceWorkload
from simulator.policies import policies_with
from simulator.workload import Workload

BY_CLASS = ("class_weights", "class_s")
"""Keys of the engine whose values are by class."""
_FEW = 64  # chains of a closed loop's pool that tell one from another


def build_workload(scenario: Scenario) -> Workload:
    """Read the scenario's trace, or draw its requests. Then predict their lengths, if it has a predictor.

    Raises InputError for a trace that cannot be read, and for weights or SLOs of unknown classes.
    """
    workload = _given_workload(scenario)
    drafts = scenario.engine.speculative_config
    named = {
        **{f"engine.{key}": scenario.engine.given().get(key) for key in BY_CLASS},
        "slo.classes": scenario.slo and scenario.slo.classes,
        "engine.speculative_config.acceptance_by_class": drafts and drafts.acceptance_by_class,
    }
    for key, classes in named.items():
        for name in classes or ():
            if name not in workload.class_names:
                hint = did_you_mean(name, workload.class_names)
                raise scenario.error(f"{key}.{name}", f"no class is called {name!r}", hint)
    _check_clients(scenario, workload)
    _check_adapters(scenario, workload)
    _check_images(scenario, workload)
    predictor = scenario.workload.predictor
    if predictor is not None:
        from scenarios.assembly.predicted_lengths import predict

        workload = predict(workload, predictor, scenario.seed)
    return workload.in_files()


def _given_workload(scenario: Scenario) -> Workload:
    workload = scenario.workload
    if isinstance(workload, TraceWorkload):
        from scenarios.traces import read_trace

        trace = read_trace(workload.path, workload.options(scenario.seed))
        if workload.trace.arrival is not None:  # before the sessions are taken apart, which keep their pace
            from scenarios.generate.arrivals import with_arrivals

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


def _check_adapters(scenario: Scenario, workload: Workload) -> None:
    """Raise InputError for requests that ask for adapters where an engine takes none."""
    key = "workload.trace.path"
    if not isinstance(scenario.workload, TraceWorkload):
        asks = [place for place, entry in enumerate(scenario.workload.classes or ()) if entry.lora is not None]
        key = f"workload.classes.{asks[0]}.lora" if asks else ""
    elif workload.lora is None or not any(workload.lora):
        key = ""
    for group in groups_of(scenario):
        engine = group.scenario.engine
        if key and engine.parameter("max_loras") is None:
            if "max_loras" not in engine.takes():
                able = ", ".join(policies_with("max_loras"))
                raise scenario.error(key, f"the policy {engine.policy} serves no adapters", f"these do: {able}")
            raise scenario.error(key, "the engine takes no adapters", "give engine.max_loras, as in max_loras: 4")


def _check_images(scenario: Scenario, workload: Workload) -> None:
    """Raise InputError for images that an engine does not take, or that are larger than it takes."""
    if workload.images is None:
        return
    key = "workload.trace.path"
    if not isinstance(scenario.workload, TraceWorkload):
        asks = [place for place, entry in enumerate(scenario.workload.classes or ()) if entry.images is not None]
        key = f"workload.classes.{asks[0]}.images" if asks else "workload"
    largest = max([image.embeddings for images in workload.images for image in images], default=0)
    for group in groups_of(scenario):
        engine = group.scenario.engine
        most = engine.parameter("max_image_embeddings")
        if most is None:
            if "max_image_embeddings" not in engine.takes():
                able = ", ".join(policies_with("max_image_embeddings"))
                raise scenario.error(key, f"the policy {engine.policy} takes no images", f"these do: {able}")
            raise scenario.error(key, "the engine takes no images", f"give engine.max_image_embeddings: {largest}")
        if largest > most:
            what = f"an image of {largest} embeddings is larger than engine.max_image_embeddings = {most}"
            raise scenario.error(key, what, f"engine.max_image_embeddings: {largest}")


def _played_back(trace: Workload, scenario: Scenario, workload: TraceWorkload) -> Workload:
    """Return the trace with the scenario's sessions and clients."""
    if workload.trace.sessions == "recorded":
        trace = replace(trace, after_row=None, delay_s=None, also_after=None)
    elif trace.after_row is None:
        what = "sessions: closed_loop needs a trace that says which request follows which"
        raise scenario.error("workload.trace.sessions", what, "this one does not; leave the key out")
    if workload.client is None:
        return trace
    from scenarios.generate.classes import client_of

    clients = tuple(client_of(workload.client, scenario.seed, name) for name in trace.class_names)
    return replace(trace, clients=clients)


def check_content(scenario: Scenario, workload: Workload) -> None:
    """Raise InputError if the trace's hash blocks fit neither into nor around the blocks of an engine or the router."""
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


def is_random(scenario: Scenario) -> bool:
    """Return whether another seed can make another workload, or other predictions of it."""
    workload = scenario.workload
    if not isinstance(workload, TraceWorkload):
        return True
    trace = workload.trace
    drawn = trace.format == "servegen-tables" or workload.path.is_dir()  # tables that a trace is drawn from
    if drawn or trace.jitter_s > 0 or trace.sample < 1 or trace.copies > 1 or trace.arrival is not None:
        return True
    return workload.predictor is not None and workload.predictor.kind == "noisy"


def same_requests(one: Workload, other: Workload) -> bool:
    """Return whether two workloads hold the same requests at the same times, and predict the same of them."""
    if len(one.loops) != len(other.loops):
        return False
    if not all(same_requests(a.draw(_FEW), b.draw(_FEW)) for a, b in zip(one.loops, other.loops, strict=True)):
        return False
    columns = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "class_index", "predicted_output_tokens")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in (*columns, "delay_s"))
