"""`batchlab parity`: the user's own engine decides beside batchlab on a scenario."""

from typing import Annotated

import typer

from scenarios.cli import flags

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
    from simulator.policies.real.process import SGLANG, TITLES, VLLM, EngineProcess
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
