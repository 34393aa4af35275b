"""`python tests/bench/prices.py BEFORE [NOW]`: CPU time of step prices in two trees of this repository, and the ratio.

Both price the same random steps by their cost model of kernel tables: single steps with prompts and decodes, and runs
of decode steps. Each round is a process of its own, which prices them several times; the trees take turns, and of each
the best time counts. NOW is the tree of this file if it is left out.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SCENARIOS = ("tables-h100-fp8", "tables-h100-mixtral", "tables-h200-deepseek-v3")
STEPS, RUN, TIMES = 20_000, 32, 5


def spent_s(work: Callable[[], object]) -> float:
    """CPU seconds of `work`."""
    before_s = time.process_time()
    work()
    return time.process_time() - before_s


def price(name: str) -> dict[str, float]:
    """Microseconds of a step, and of a step of a run, in this process."""
    import scenarios
    from simulator.timing.cost import StepShape

    scenario = scenarios.load(name)
    cost = scenario.cost.build(scenario)
    draw = random.Random(0)
    mixed, decodes = [], []
    for _ in range(STEPS):
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
    found = {}
    for what, work, count in (
        ("step", lambda: [cost.step_s(shape) for shape in mixed], STEPS),
        ("run", lambda: [cost.decode_run_s(shape, RUN) for shape in decodes], STEPS * RUN),
    ):
        found[what] = 1e6 * min(spent_s(work) for _ in range(TIMES)) / count
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a scenario, in this process
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(price(chosen.one)))
        return
    trees = [*chosen.trees, Path(__file__).parents[2]][:2]
    print("| scenario | what | before, us | now, us | now / before |\n| --- | --- | ---: | ---: | ---: |")
    for name in SCENARIOS:
        rounds = [[_priced(tree.resolve(), name) for tree in trees] for _ in range(chosen.rounds)]
        for what in ("step", "run"):
            before, now = (min(each[place][what] for each in rounds) for place in (0, 1))
            print(f"| {name} | {what} | {before:.2f} | {now:.2f} | {now / before:.2f} |", flush=True)


def _priced(tree: Path, name: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, str(tree)]
    answer = subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=True, stdout=subprocess.PIPE
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


if __name__ == "__main__":
    main()
