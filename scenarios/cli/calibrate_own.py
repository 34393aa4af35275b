"""`batchlab calibrate ask`, and `calibrate fit` of what an engine measured of itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scenarios.cli.flags import Json

if TYPE_CHECKING:
    from calibration.belief import Belief
    from calibration.own_steps import OwnFit
    from calibration.rows import KernelRows
    from simulator.hardware.gpus import Gpu
    from simulator.hardware.models import Model as Model_

MOST_TOKENS = 8192  # of a step that is asked for
LOAD = 64.0  # the load (`traits_of`) by whose runs a prediction's error is taken
UTILISATION = 0.9


@dataclass(frozen=True, slots=True)
class Before:
    """What is believed of a model's steps on a GPU before they are measured, and why."""

    belief: Belief
    model: Model_
    gpu: Gpu
    why: str
    most_keys: float


def before(model: str, gpu: str, tensor_parallel: int, policy: str) -> Before:
    """Return the belief by kernel tables where there are some, else by the roofline. InputError for what cannot be."""
    from calibration.belief import believe
    from scenarios.assembly.fleet_parts import build_fleet
    from scenarios.prediction.basis import basis_of
    from scenarios.prediction.prediction import step_factors
    from scenarios.schema.loader import load
    from simulator.errors import InputError
    from simulator.metrics.predicted import TPOT

    def built(kind: str) -> Any:
        scenario = load({
            "name": "before", "model": _model_value(model), "cost": {"kind": kind},
            "hardware": {"gpu": gpu, "tensor_parallel": tensor_parallel}, "host": {"step_s": 0, "per_seq_s": 0},
            "engine": {"policy": policy}, "workload": {"requests": 1, "classes": [_CLASS]},
        })  # fmt: skip
        return scenario, build_fleet(scenario)

    try:
        scenario, fleet = built("profile")
    except InputError:
        scenario, fleet = built("roofline")
    basis = basis_of(fleet)
    assert basis is not None
    low, high = step_factors(scenario, basis, LOAD, _LEVEL)[TPOT]
    resolved, device = scenario.resolve_model(), scenario.resolve_gpu()
    left = UTILISATION * device.memory_bytes - resolved.weight_bytes(tensor_parallel)
    most_keys = left / resolved.kv_bytes_per_token(tensor_parallel)
    belief = believe(fleet[0].parts.cost.step_s, math.log(high / low) / (2.0 * _TIMES), MOST_TOKENS, most_keys)
    return Before(belief, resolved, device, basis.why, most_keys)


_CLASS = {"name": "all", "arrival": {"process": "poisson", "rate": 1}, "input": {"dist": "fixed", "value": 1},
          "output": {"dist": "fixed", "value": 1}}  # fmt: skip
_LEVEL, _TIMES = 0.9, 1.645


def _model_value(text: str) -> Any:
    """Return the model as a scenario has it: a name, a path or a mapping."""
    from calibration.names import model_name

    if text.lstrip().startswith("{"):
        import yaml

        return yaml.safe_load(text)
    return model_name(text) or text


def fit_own(rows: KernelRows, model: str, gpu: str, name: str) -> OwnFit:
    """Fit a profile to what an engine measured of itself."""
    from calibration.own_steps import fit_own_steps

    known = before(model, gpu, rows.tensor_parallel, "sglang" if "SGLang" in rows.software else "vllm")
    return fit_own_steps(rows, known.belief, known.model, known.gpu, name)


def ask(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model: its name, config.json or dimensions.")],
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="A GPU (batchlab list gpus).")],
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", metavar="N", min=1, help="GPUs per replica.")
    ] = 1,
    engine: Annotated[
        Literal["vllm", "sglang"], typer.Option("--engine", metavar="vllm|sglang", help="The engine that is there.")
    ] = "vllm",
    json: Json = False,
) -> None:
    """Say which few shapes to measure, as commands: those that make the prediction's interval narrowest.

    Before the first measurement the interval is that of predictions for real servers.
    """
    from calibration.ask import ask as choose
    from calibration.ask import candidates
    from calibration.engines import READERS
    from scenarios.runs.storage.run_folder import to_json

    known = before(model, gpu, tensor_parallel, engine)
    reader = next(each for each in READERS if each.name == {"vllm": "vllm-forward", "sglang": "sglang-passes"}[engine])
    shapes = candidates(MOST_TOKENS, known.most_keys, known.model.max_model_len or MOST_TOKENS)
    if engine == "sglang":
        shapes = [each for each in shapes if not (each.seqs and each.chunks) and not each.cached]
    asked = choose(known.belief, shapes, reader.noise, MOST_TOKENS, known.most_keys)
    make = _vllm if engine == "vllm" else _sglang
    commands = [*make(asked.shapes, model, known.model, tensor_parallel), _fit(model, gpu, tensor_parallel, engine)]
    told = {"now": asked.now, "after": asked.after, "with_all": asked.with_all}
    if json:
        held = {"shapes": [each.case() for each in asked.shapes], "interval_width": told, "commands": commands}
        typer.echo(to_json({**held, "before": known.why}), nl=False)
        return
    typer.echo(f"now: {known.why}; 90 % of steps lie in an interval whose ends are {asked.now:.2f} times apart")
    typer.echo(
        f"with these {len(asked.shapes)} shapes: {asked.after:.2f} times; with all {len(shapes)}: {asked.with_all:.2f}"
    )
    for command in commands:
        typer.echo(f"\n{command}")


def _repository(model: str, resolved: Model_) -> str:
    from simulator.hardware.models import HUGGING_FACE

    return model if "/" in model else HUGGING_FACE.get(resolved.name, model)


def _vllm(shapes: Any, model: str, resolved: Model_, ranks: int) -> list[str]:
    start = "vllm" if ranks == 1 else f"torchrun --nproc-per-node={ranks} -m vllm.entrypoints.cli.main"
    lines = [f"{start} bench forward --model {_repository(model, resolved)} --tensor-parallel-size {ranks}"]
    lines += [f"  --case {each.case()}" for each in shapes]
    return [" \\\n".join([*lines, "  --kv-len-jitter 0 --output-json measured.json"])]


def _sglang(shapes: Any, model: str, resolved: Model_, ranks: int) -> list[str]:
    name = _repository(model, resolved)
    serve = f"python -m sglang.launch_server --model-path {name} --tp {ranks} --disable-radix-cache \\\n"
    serve += f"  --enable-forward-pass-metrics --forward-pass-metrics-ipc-name ipc://{_SOCKET}"
    found = [serve, _RECORD]
    for each in shapes:
        users, prompt, answer = (each.seqs, each.context, 32) if each.seqs else (each.chunks, each.tokens, 2)
        found.append(
            f"python -m sglang.bench_serving --dataset-name random --random-range-ratio 1 --num-prompts {2 * users} "
            f"--max-concurrency {users} \\\n  --random-input-len {max(1, prompt - answer // 2)} "
            f"--random-output-len {answer}"
        )
    return found


_SOCKET = "passes"
_RECORD = f"""python -c "import zmq, msgspec; from sglang.srt.observability.forward_pass_metrics import decode
s = zmq.Context().socket(zmq.SUB); s.connect('ipc://{_SOCKET}.0'); s.subscribe(b'')
f = open('measured.jsonl', 'wb', 0)
while True: f.write(msgspec.json.encode(decode(s.recv_multipart()[2])) + b'\\n')" &"""


def _fit(model: str, gpu: str, ranks: int, engine: str) -> str:
    file = "measured.json" if engine == "vllm" else "measured.jsonl"
    return f"batchlab calibrate fit {file} --model {model} --gpu {gpu} --tensor-parallel {ranks} --out my-profile.json"
