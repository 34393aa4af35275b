"""The form of a reader of an engine's own measurements, and the rows of steps that all of them make."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.rows import COLUMNS, KernelRows, make_table
from simulator.errors import InputError
from simulator.timing.profile.surface import Array

KERNELS, DEVICE, WHOLE = "kernels", "device", "whole"
"""What a time holds: the layers alone; all that the device does in a step; the whole step, the host's part too."""
Step = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of file: `is_it` knows its text, `steps` reads them. InputError where it holds no step.

    `scope` is what its times hold. `noise` is by how much a time may be off for what the file does not say, as a
    fraction: contexts of single requests, or everything but means.
    """

    name: str
    tool: str
    scope: str
    noise: float
    is_it: Callable[[str], bool]
    steps: Callable[[str], Iterable[Step]]
    is_padded: bool = True

    def read(self, text: str, path: Path) -> KernelRows:
        """The rows of a file. InputError names it."""
        try:
            rows = [step for step in self.steps(text) if step["us"] > 0]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = f"not what {self.tool} writes: {type(error).__name__} {error}"
            raise InputError(what, file=str(path)) from None
        if not rows:
            raise InputError(f"no step in this file of {self.tool}", file=str(path))
        source: dict[str, Any] = {"tool": self.tool, "scope": self.scope, "noise": self.noise}
        if not self.is_padded:
            source["graphs"] = "none"
        table = make_table("step", {name: [row.get(name, 0.0) for row in rows] for name in COLUMNS["step"]})
        return KernelRows(gpu="", software=self.tool, sources=(source,), tables={"step": table})


def step_of(decodes: Array, queries: Array, contexts: Array, us: float) -> Step:
    """A step of decodes with these KV tokens, and of prompt chunks of these tokens that end with these KV tokens."""
    return {
        "decode_seqs": len(decodes),
        "decode_context": decodes.sum(),
        "decode_longest": decodes.max(initial=0.0),
        "decode_squares": (decodes**2).sum(),
        "prefill_seqs": len(queries),
        "prefill_tokens": queries.sum(),
        "prefill_context": contexts.sum(),
        "prefill_pairs": (queries * (contexts - queries) + queries * (queries + 1.0) / 2.0).sum(),
        "prefill_longest": contexts.max(initial=0.0),
        "us": us,
    }


def mean_step(decodes: float, context: float, prompts: float, prompt: float, us: float) -> Step:
    """The mean step of a server: so many decodes of that context, and prompts (mostly below 1) of so many tokens."""
    return {
        "decode_seqs": decodes,
        "decode_context": decodes * context,
        "prefill_seqs": prompts,
        "prefill_tokens": prompts * prompt,
        "prefill_context": prompts * prompt,
        "prefill_pairs": prompts * prompt * (prompt + 1.0) / 2.0,
        "prefill_longest": min(prompts, 1.0) * prompt,
        "us": us,
    }


def json_of(text: str) -> Any:
    """The JSON of a text; None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None
