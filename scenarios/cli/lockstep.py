"""`batchlab lockstep` and `batchlab parity`: plans on the real backend, and a user's own engine beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli import flags
from scenarios.cli.calibrate import Device, Layers
from scenarios.cli.flags import Console, Given, NoReport, Scenario

if TYPE_CHECKING:
    from scenarios.schema.scenario import Scenario as ScenarioModel
    from simulator.lockstep.lockstep_run import Canary, MakeDevice
    from simulator.lockstep.step_errors import ComparedStep


# `batchlab parity`: the user's own engine decides beside batchlab on a scenario.

NOT_EQUAL = 3
"""Exit code: everything ran, and the two decide differently."""


def parity(
    scenario: flags.Scenario,
    engine_python: Annotated[
        str, typer.Option("--engine-python", metavar="PY", help="The Python that has the engine: a path, or a program.")
    ],
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="vllm|sglang", help="The engine to ask; by default the one of the scenario's policy."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", help="Compare the first N steps of each replica only."),
    ] = None,
    set_: flags.Set = None,
    seed: flags.Seed = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Hold decisions against those of your own vLLM or SGLang.

    The real scheduler decides on the same requests, step by step, in a process of its own. It needs no GPU and no
    model. The forward pass and the clock are batchlab's. Which requests compute how many tokens, who is admitted with
    how many cached tokens, who is preempted, the queue, the batch and the free blocks must be equal.

    Exit code 3: the two differ. The first difference is printed.
    """
    from scenarios.cli.flags import Console, overrides
    from scenarios.parity import compare
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.schema.loader import load
    from simulator.parameters import check_choice
    from simulator.policies import policy_class
    from simulator.policies.real.asked import SGLANG, TITLES, VLLM, EngineProcess
    from simulator.policy_traits import Traits

    console = Console(quiet=quiet)
    chosen = load(scenario, overrides(set_, seed))
    if engine is None:
        engine = SGLANG if Traits.of(policy_class(chosen.engine.policy)).has_radix_tree else VLLM
    check_choice(engine, tuple(TITLES), "engine")
    process = EngineProcess(engine_python, SGLANG if engine == SGLANG else VLLM)
    console.note(f"{process.title} decides beside {chosen.engine.policy}")
    found = compare(chosen, process, steps=steps)
    if json:
        console.out(to_json(found.entry()))
    elif found.difference is None:
        console.out(f"equal: {found.steps:,} steps decided as by {process.title}\n")
    else:
        console.out(f"{found.difference.words(process.title)}\n{found.steps:,} steps before it are equal\n")
    if found.difference is not None:
        raise typer.Exit(NOT_EQUAL)


NOT_WITHIN = 3
"""Exit code: everything ran, and the prediction is not within its limits."""
CANNOT_TELL = 4
"""Exit code: everything ran, and the device was too noisy, or had changed too much, for a verdict."""


def lockstep(
    scenario: Scenario,
    device: Device = "cpu",
    profile: Annotated[
        Path | None,
        typer.Option("--profile", metavar="FILE", help="Predict by this profile, not by the scenario's cost."),
    ] = None,
    clock: Annotated[
        str, typer.Option("--clock", metavar="predicted|device", help="The durations that move the run's clock.")
    ] = "predicted",
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Take an earlier lockstep.csv instead of a device.")
    ] = None,
    as_recorded: Annotated[
        bool, typer.Option("--as-recorded", help="With --replay: price the recorded steps, plan nothing.")
    ] = False,
    free_running: Annotated[
        bool, typer.Option("--free-running", help="Run each side alone; compare latencies and the order of policies.")
    ] = False,
    policies: Annotated[
        str | None, typer.Option("--policies", metavar="A,B,...", help="With --free-running: policies to compare.")
    ] = None,
    rates: Annotated[
        str, typer.Option("--rates", metavar="X,Y,...", help="With --free-running: factors on the arrival rate.")
    ] = "0.5,0.75,1,1.25,1.5",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="K", help="With --free-running: the number of seeds.")
    ] = 3,
    layers: Layers = None,
    *,
    given: Given,
    no_report: NoReport = False,
) -> None:
    """Execute the simulator's plans on a device.

    Each step is predicted and measured. Errors by regime go to stdout. Rows and a report go to --out, else to
    runs/NAME-lockstep-DEVICE with what the flags changed. If the folder holds earlier results, that is an error, unless
    --overwrite is given.

    Exit code 3: not within the limits (CPU: MAPE 8 %, P95 20 %, drift 3 %; GPU: MAPE 4 %, P95 12 %, drift 2 %).
    Exit code 4: the device is too noisy to tell (two executions of the same steps differ by more than 6 % on a CPU,
    2 % on a GPU), or no longer what it was when the profile was measured.
    """
    from scenarios.runs.storage.output import check_output, default_folder
    from scenarios.schema.loader import load
    from scenarios.validate.lockstep_case import priced_elsewhere
    from simulator.errors import InputError
    from simulator.parameters import check_choice

    check_choice(device, ("cuda", "cpu"), "device")
    check_choice(clock, ("predicted", "device"), "clock")
    console, changed = given.console, given.changed
    asked = changed
    if profile is not None:
        if not profile.is_file():
            raise InputError(f"no such file: {profile}", file="--profile", hint="batchlab calibrate fit writes one")
        # A CPU captures nothing, so it computes a batch as it is.
        graphs = str(device == "cuda").lower()
        asked = [*asked, f"cost={{kind: profile, path: {str(profile.resolve())!r}, cuda_graphs: {graphs}}}"]
    chosen = load(scenario, asked)
    flags = {"profile": profile and profile.name, "replay": replay and replay.name, "layers": layers}
    flags |= {"clock": clock if clock != "predicted" else None, "policies": policies if free_running else None}
    words = [f"{key}={value}" for key, value in flags.items() if value is not None]
    words += ["as-recorded"] * as_recorded + [f"free-running={rates},seeds={seeds}"] * free_running
    target = given.out or default_folder(chosen.name, "lockstep", device, *words, changed=changed)
    # What a device takes is never the same twice; a replay's results are.
    check_output(target, overwrite=given.overwrite, expected=None if replay is None else {})
    if free_running:
        scales = _numbers(rates)
        names = [name.strip() for name in (policies or chosen.engine.policy).split(",") if name.strip()]
        _free_running(chosen, names, scales, seeds, device, layers, target, given)
        return
    elsewhere = None if profile is not None else priced_elsewhere(chosen, str(scenario), device)
    if replay is not None:
        steps, fingerprint = _replayed(chosen, replay, profile, plan=not as_recorded)
    else:
        steps, fingerprint = _executed(chosen, device, layers, profile, clock, console, elsewhere)
    _tell(chosen, steps, fingerprint, device, target, given, elsewhere=elsewhere, report=not no_report)


def _numbers(text: str) -> list[float]:
    from simulator.errors import InputError

    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise InputError(f"not a list of positive numbers: {text!r}", file="--rates", hint="as in: --rates 0.5,1,2")
    return found


def _replayed(
    scenario: ScenarioModel, path: Path, profile: Path | None, *, plan: bool
) -> tuple[list[ComparedStep], dict[str, str]]:
    """Compare plans and predictions with recorded durations. It needs no device and no torch."""
    from scenarios.assembly.replica_parts import build
    from scenarios.validate.lockstep_case import lockstep_case, measured_swap_s
    from simulator.lockstep.lockstep_run import replayed, repriced
    from simulator.lockstep.step_errors import read_csv

    recorded = read_csv(path)
    told = {"device": "recorded", "file": path.name}
    swap_s = measured_swap_s(profile)
    if plan:
        return replayed(lockstep_case(scenario, swap_s), recorded), told
    parts = build(scenario)
    return repriced(recorded, parts.cost, parts.swap_s_per_block if swap_s is None else swap_s), told


def _device_maker(
    scenario: ScenarioModel, device: str, layers: int | None, repeats: int | None = None, canary: Canary | None = None
) -> tuple[MakeDevice, dict[str, str]]:
    """Return the maker of executors on the device, and the fingerprint of the device."""
    from gpu_backend import require_torch

    require_torch(device)
    from gpu_backend.session import executors
    from scenarios.assembly.replica_parts import build

    kv, limit = build(scenario).kv, scenario.engine.parameter
    largest = int(limit("max_num_seqs") or 1), int(limit("max_num_batched_tokens") or 64)
    return executors(
        scenario.resolve_model(), device, kv, layers=layers, seed=scenario.seed, repeats=repeats, largest=largest,
        canary=canary,
    )  # fmt: skip


def _executed(
    scenario: ScenarioModel,
    device: str,
    layers: int | None,
    profile: Path | None,
    clock: str,
    console: Console,
    elsewhere: str | None,
) -> tuple[list[ComparedStep], dict[str, str]]:
    from scenarios.validate.lockstep_case import lockstep_case, measured_swap_s, profile_canary
    from simulator.lockstep.lockstep_run import device_clock, predicted_clock

    case = lockstep_case(scenario, measured_swap_s(profile))
    make_device, fingerprint = _device_maker(scenario, device, layers, canary=profile_canary(profile))
    if elsewhere is not None:
        console.note(elsewhere)  # the run takes minutes: now there is time to stop it
    with console.timed() as timed:
        told = timed.progress(f"{scenario.name} on {device}", len(case.workload))
        if clock == "device":
            steps, _ = device_clock(case, make_device, progress=told)
        else:
            steps = predicted_clock(case, make_device, progress=told)
    return steps, fingerprint


def _tell(
    scenario: ScenarioModel,
    steps: Sequence[ComparedStep],
    fingerprint: dict[str, str],
    device: str,
    target: Path,
    given: Given,
    *,
    elsewhere: str | None,
    report: bool,
) -> None:
    """Write the steps and the report, and print the verdict. Exit code 3: a bad verdict; 4: none."""
    from reports.pages.lockstep_report import LockstepReport, lockstep_rows, write_lockstep
    from scenarios.assembly.engines import resolved_yaml
    from scenarios.runs.storage.output import output
    from scenarios.runs.storage.run_folder import LOCKSTEP_STEPS, to_json
    from scenarios.validate.compare import write_lockstep as write_results
    from scenarios.validate.lockstep_case import lockstep_json, verdict_words
    from simulator.lockstep.step_errors import LIMITS, agreement

    found = agreement(steps)
    verdict = LIMITS[device].verdict(found)
    words = verdict_words(found, verdict, elsewhere)
    data = lockstep_json(found, verdict, fingerprint)
    with output(target, overwrite=given.overwrite, expected={}) as folder:
        write_results(folder, data, steps)
        if report:
            given.console.note("drawing the report")
            title = f"{scenario.name}: predicted and executed"
            write_lockstep(folder, LockstepReport(title, steps, fingerprint, [words], resolved_yaml(scenario)))
    table = lockstep_rows(found).text(given.console.terminal.width)
    given.console.out(to_json(data) if given.json else f"{table}\n\n{words}\n\n")
    given.console.written(f"steps: {target / LOCKSTEP_STEPS}", target if report else None, json=given.json)
    code = {"within": 0, "not within": NOT_WITHIN, "cannot tell": CANNOT_TELL}[verdict.outcome]
    if code:
        raise typer.Exit(code)


def _free_running(
    scenario: ScenarioModel,
    policies: Sequence[str],
    rates: Sequence[float],
    seeds: int,
    device: str,
    layers: int | None,
    target: Path,
    given: Given,
) -> None:
    from reports.tables.terminal import aligned
    from scenarios.runs.storage.output import output
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.validate.compare import write_free_running
    from scenarios.validate.lockstep_case import duration_rows, free_running_json, free_running_rows, lockstep_case
    from scenarios.validate.lockstep_case import free_running as run_both

    lockstep_case(scenario)  # refuses what one device cannot be
    # Sums over a whole run need no median of each step.
    make_device, fingerprint = _device_maker(scenario, device, layers, repeats=1)
    points = list(run_both(scenario, policies, rates, seeds, lambda _: make_device, given.console.note))
    data = free_running_json(points, fingerprint)
    with output(target, overwrite=given.overwrite, expected={}) as folder:
        write_free_running(folder, data)
    if given.json:
        given.console.out(to_json(data))
        return
    tau = data["kendall_tau"]
    order = "" if tau is None else f"The policies' order on both sides: Kendall tau {tau:.2f} (1: the same). "
    same = "Every policy gave" if data["same_answers"] else "NOT every policy gave"
    given.console.out(
        f"{aligned(duration_rows(points), 1)}\n\n{aligned(free_running_rows(points), 1)}\n\n"
        f"Errors are (simulated - executed) / executed. {order}{same} every request the same tokens.\n"
    )
