"""`batchlab serve`."""

from typing import Annotated

import typer

from scenarios.cli import flags
from scenarios.cli.report import tables
from simulator.errors import InputError

_NEEDS = ("starlette", "uvicorn", "prometheus_client")


def serve(
    scenario: flags.Scenario,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="The port; 0 takes any free one.")
    ] = 8000,
    time_scale: Annotated[
        float,
        typer.Option("--time-scale", min=0.001, max=1000.0, metavar="X", help="Simulated seconds per real second."),
    ] = 1.0,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="KEY", help="The key that clients must send.")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", metavar="NAME", help="What clients call the model.")
    ] = None,
    *,
    given: flags.Given,
    report: flags.Report = False,
    log_decisions: flags.LogDecisions = False,
) -> None:
    """Serve OpenAI's API from the simulation, in real time.

    Clients are real; the scenario's own requests only say how long answers are. SIGINT or SIGTERM ends it: calls under
    way get their answers (a second signal ends them too). Then a run folder is written, as by run: --out, else
    runs/NAME-serve with what --set and --seed changed. Its arrivals.jsonl.gz has the requests that came, and batchlab
    run on its scenario.yaml makes the same decisions again.
    """
    _check_extra()
    from scenarios.runs.storage.output import default_folder, output
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.schema.loader import load
    from scenarios.serve.server import Address, Serving
    from scenarios.show import write_pictures

    console, changed = given.console, given.changed
    chosen = load(scenario, changed)
    target = given.out or default_folder(chosen.name, "serve", changed=changed)
    with output(target, overwrite=given.overwrite) as folder:
        serving = Serving(
            chosen, time_scale=time_scale, api_key=api_key, served_name=served_model_name, log_decisions=log_decisions
        )

        def ready(url: str) -> None:
            console.written(f"serving {chosen.name} as {serving.model_name} at {url}/v1", None, json=given.json)

        serving.listen(Address(host, port), ready)
        if not serving.num_requests:
            console.note("no request came: there is nothing to write")
            raise typer.Exit
        result = serving.finish(folder, target)
        console.note(serving.meters.lag_text())
        console.notes(result.notes)
        if report:
            console.note("drawing the report")
            write_pictures(folder, [result.shown()], result.notes)
    console.out(to_json(result.summary) if given.json else tables([result.shown()], console.terminal) + "\n")
    console.written(f"run folder: {target}", target if report else None, json=given.json)


def _check_extra() -> None:
    """Raise InputError, with what to install, where the extra is not there."""
    from importlib.util import find_spec

    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        what = f"batchlab serve needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise InputError(what, hint="pip install 'batchlab[serve]', or in a clone: pip install -e '.[serve]'")
