"""The compiled core, which is optional: with `BATCHLAB_COMPILE=1 pip install .` mypyc compiles the modules of the loop.

Everything else about the distribution is in pyproject.toml. Where there is no C compiler, or it fails, the sources are
installed alone, which give the same results. `batchlab --version` says which is in use.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Not among them, for mypyc cannot compile them or would change what they are: frozen dataclasses (compiled, they can
# neither be copied nor pickled), and what derives from SimPy or from a built-in class. So a policy is interpreted, ours
# or a user's; what several policies share is compiled. What goes to worker processes says itself how.
CORE = (
    "simulator/division.py",
    "simulator/engine/aborts.py",
    "simulator/engine/arrivals.py",
    "simulator/engine/async_scheduling.py",
    "simulator/engine/block_growth.py",
    "simulator/engine/cache_apply.py",
    "simulator/engine/completion.py",
    "simulator/engine/context_stats.py",
    "simulator/engine/data_parallel.py",
    "simulator/engine/decode_batch.py",
    "simulator/engine/imports.py",
    "simulator/engine/in_flight.py",
    "simulator/engine/intake.py",
    "simulator/engine/late_results.py",
    "simulator/engine/loop.py",
    "simulator/engine/overlap_results.py",
    "simulator/engine/livelock.py",
    "simulator/engine/queue_prefixes.py",
    "simulator/engine/radix_apply.py",
    "simulator/engine/replica.py",
    "simulator/engine/state.py",
    "simulator/engine/taken_back.py",
    "simulator/engine/unseen.py",
    "simulator/engine/view.py",
    "simulator/fleet/run_ahead.py",
    "simulator/memory/block_keys.py",
    "simulator/memory/free_runs.py",
    "simulator/memory/ledger.py",
    "simulator/memory/prefix_ledger.py",
    "simulator/memory/request_keys.py",
    "simulator/policies/chunked_prefill/step.py",
    "simulator/policies/continuous/step.py",
    "simulator/policies/parts/decode_slots.py",
    "simulator/policies/parts/displacement.py",
    "simulator/policies/parts/plan_builder.py",
    "simulator/policies/parts/plans.py",
    "simulator/policies/parts/reservations.py",
    "simulator/policies/sglang/eos_forecast.py",
    "simulator/policies/sglang/new_tokens.py",
    "simulator/policies/sglang/prefill_adder.py",
    "simulator/policies/sglang/step.py",
    "simulator/policies/static/step.py",
    "simulator/policies/tensorrt_llm/step.py",
    "simulator/policies/tgi/step.py",
    "simulator/queues/standing.py",
    "simulator/request_state.py",
    "simulator/results/buffers.py",
    "simulator/results/recorder.py",
    "simulator/results/replica_recorder.py",
    "simulator/timing/affine.py",
    "simulator/timing/profile/arithmetic.py",
    "simulator/timing/profile/counts.py",
    "simulator/timing/profile/joint.py",
    "simulator/timing/profile/lookup.py",
    "simulator/timing/profile/prices.py",
)
COMPILER = "mypy[mypyc]==2.4.1"  # as in constraints.txt


class CompiledCore(build_ext):
    """Compiles all of the core or, with a word on why, nothing of it."""

    def run(self) -> None:
        if self.inplace or self.editable_mode:
            self._do_without("an editable install runs its sources")
            return
        try:
            self.distribution.ext_modules = self._translated()
            self.reinitialize_command(self)
            self.ensure_finalized()
            super().run()
        except (Exception, SystemExit) as error:  # mypyc ends the process where it finds an error
            self._do_without(f"it could not be compiled ({error})")

    def _translated(self) -> list[Extension]:
        """The core as C sources, in a folder of the build."""
        from mypyc.build import mypycify

        folder = Path(self.build_temp) / "mypyc"
        extensions: list[Extension] = mypycify(
            ["--config-file=", "--ignore-missing-imports", *CORE],  # in pip's environment nothing else is installed
            group_name="batchlab",
            target_dir=str(folder),
            debug_level="0",
        )
        for extension in extensions:
            # No multiplication is fused with an addition: every number is rounded as Python rounds it.
            extension.extra_compile_args = [*extension.extra_compile_args, "-ffp-contract=off"]
        return extensions

    def _do_without(self, why: str) -> None:
        print(f"batchlab: the compiled core is left out: {why}", file=sys.stderr)
        for extension in self.extensions:
            Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        self.extensions = []


def has_compiler() -> bool:
    """Whether the C compiler is there that this Python extends itself with."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cl"
    return shutil.which(command.split()[0]) is not None


def options() -> dict[str, object]:
    """What `setup` is given beside pyproject.toml."""
    if os.environ.get("BATCHLAB_COMPILE", "0") in ("", "0"):
        return {}
    if not has_compiler():
        print("batchlab: the compiled core is left out: there is no C compiler", file=sys.stderr)
        return {}
    return {
        "setup_requires": [COMPILER],
        "cmdclass": {"build_ext": CompiledCore},
        "ext_modules": [Extension("batchlab__mypyc", [])],  # for which `CompiledCore` puts those of mypyc
    }


if __name__ == "__main__":
    setup(**options())
