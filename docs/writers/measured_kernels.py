"""Which built-in models the shipped kernel tables price whole: `scenarios/prediction/kernels.json`."""

import json
from pathlib import Path

import scenarios
from scenarios.profiles import shipped_tables
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.models import MODELS, Model
from simulator.timing.tables import compose, read_tables

FILE = Path(scenarios.__file__).parent / "prediction" / "kernels.json"
SHARE = 0.9  # of a GPU's memory, for weights
MOST_GPUS = 64


def text(models: tuple[str, ...] = tuple(MODELS)) -> str:
    """The file: by model, the GPUs whose tables of an engine have all of its kernels, with those engines."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in models}
    for table, path in shipped_tables().items():
        gpu, engine, _ = table.rsplit("-", 2)
        tables = read_tables(path)
        for name in models:
            ranks = fewest(MODELS[name], GPUS[gpu])
            try:
                compose(tables, MODELS[name], GPUS[gpu], ranks)
            except InputError:
                continue
            engines = found[name].setdefault(gpu, [])
            if engine not in engines:
                engines.append(engine)
    lines = [f"  {json.dumps(name)}: {json.dumps(gpus, sort_keys=True)}" for name, gpus in found.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def fewest(model: Model, gpu: Gpu) -> int:
    """The fewest GPUs in tensor parallel that hold the weights; the most that are possible where none do."""
    choices = [ranks for ranks in model.tensor_parallel_choices() if ranks <= MOST_GPUS]
    room = SHARE * gpu.memory_gib * 2**30
    return next((ranks for ranks in choices if model.weight_bytes(ranks) < room), choices[-1])
