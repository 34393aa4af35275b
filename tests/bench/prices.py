"""`python -m tests.bench.prices BEFORE [NOW]`: CPU time of step prices in two trees of this repository, and the ratio.

Both price the same random steps by their cost model of kernel tables: single steps with prompts and decodes, and runs
of decode steps. Each round is a process of its own, which prices them several times; the trees take turns, and of each
the best time counts. NOW is the tree of this file if it is left out.

`--instructions` counts the instructions of the interpreter by valgrind instead, which takes minutes, but is the same
however busy the machine is: what a process that prices the steps three times has more than one that does so once.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.timing.cost import CostModel

SCENARIOS = ("tables-h100-fp8", "tables-h100-mixtral", "tables-h200-deepseek-v3")
STEPS, RUN, TIMES = 20_000, 32, 5
COUNTED = 1000  # steps whose instructions are counted


def spent_s(work: Callable[[], object]) -> float:
    """CPU seconds of `work`."""
    before_s = time.process_time()
    work()
    return time.process_time() - before_s


def model_of(name: str) -> CostModel:
    """The cost model of a shipped scenario."""
    import scenarios

    scenario = scenarios.load(name)
    return scenario.cost.build(scenario)


def works(cost: CostModel, steps: int) -> dict[str, tuple[Callable[[], object], int]]:
    """What prices so many steps, and so many runs of steps, with the number of prices of each."""
    from simulator.timing.cost import StepShape

    draw = random.Random(0)
    mixed, decodes = [], []
    for _ in range(steps):
        seqs = draw.randint(1, 128)
        each = [draw.randint(16, 4096) for _ in range(3)]
        context = seqs * each[0]
        stats = {"decode_longest": 2 * each[0], "decode_squares": 2 * seqs * each[0] ** 2}
        stats = stats if cost.wants_context_stats else {}
        decodes.append(StepShape(seqs, context, **stats))
        tokens, before = draw.randint(1, 2048 - seqs), each[1]
        pairs = tokens * before + tokens * (tokens + 1) // 2
        prompt = (1, tokens, before + tokens, pairs)
        mixed.append(StepShape(seqs, context, *prompt, prefill_longest=before + tokens, **stats))
    return {
        "step": (lambda: [cost.step_s(shape) for shape in mixed], steps),
        "run": (lambda: [cost.decode_run_s(shape, RUN) for shape in decodes], steps * RUN),
    }


def price(name: str) -> dict[str, float]:
    """Microseconds of a step, and of a step of a run, in this process."""
    found = works(model_of(name), STEPS).items()
    return {what: 1e6 * min(spent_s(work) for _ in range(TIMES)) / count for what, (work, count) in found}


def repeat(cost: CostModel, often: str) -> None:
    """Price all once, and what is named `often` twice more."""
    gc.disable()  # when it looks for cycles depends on what was made before
    for what, (work, _) in works(cost, COUNTED).items():
        for _ in range(3 if what == often else 1):
            work()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--price", help=argparse.SUPPRESS)  # a scenario, in this process
    parser.add_argument("--keep", nargs=2, help=argparse.SUPPRESS)  # its cost model, in a file
    parser.add_argument("--repeat", nargs=2, help=argparse.SUPPRESS)  # the file, and what is done often
    chosen = parser.parse_args()
    if chosen.price:
        print(json.dumps(price(chosen.price)))
        return
    if chosen.keep:
        Path(chosen.keep[1]).write_bytes(pickle.dumps(model_of(chosen.keep[0])))
        return
    if chosen.repeat:
        repeat(pickle.loads(Path(chosen.repeat[0]).read_bytes()), chosen.repeat[1])
        return
    trees = [tree.resolve() for tree in [*chosen.trees, Path(__file__).parents[2]][:2]]
    unit = "instructions" if chosen.instructions else "us"
    print(f"| scenario | what | before, {unit} | now, {unit} | now / before |\n| --- | --- | ---: | ---: | ---: |")
    for name in SCENARIOS:
        one = counted if chosen.instructions else timed
        rounds = [[one(tree, name) for tree in trees] for _ in range(1 if chosen.instructions else chosen.rounds)]
        for what in ("step", "run"):
            before, now = (min(each[place][what] for each in rounds) for place in (0, 1))
            print(f"| {name} | {what} | {before:,.2f} | {now:,.2f} | {now / before:.3f} |", flush=True)


def timed(tree: Path, name: str) -> dict[str, float]:
    """Microseconds by the code of a tree."""
    found: dict[str, float] = json.loads(_run(tree, "--price", name))
    return found


def counted(tree: Path, name: str) -> dict[str, float]:
    """Instructions by the code of a tree."""
    from tests.bench.instructions import of_process

    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/cost"  # made before: to compose it takes many times the instructions of the prices
        _run(tree, "--keep", name, file)
        once, *often = (
            of_process(_command(tree, "--repeat", file, what), tree, _environment(tree))
            for what in ("nothing", "step", "run")
        )
    counts = {"step": COUNTED, "run": COUNTED * RUN}
    return {what: (more - once) / 2 / count for (what, count), more in zip(counts.items(), often, strict=True)}


def _run(tree: Path, *words: str) -> str:
    done = subprocess.run(
        _command(tree, *words), cwd=tree, env=_environment(tree), check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def _command(tree: Path, *words: str) -> list[str]:
    """This file for a tree, whose own `tests` may be older."""
    return [sys.executable, __file__, str(tree), *words]


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}


if __name__ == "__main__":
    main()
