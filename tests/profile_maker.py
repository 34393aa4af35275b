"""A small profile for tests, with every part that one can have; and its JSON."""

from copy import deepcopy
from typing import Any

from simulator.timing.profile import SCHEMA, VERSION, Profile, load_profile


def physics(constant: float, *roofs: dict[str, float], p: float = 2.0, **terms: float) -> dict[str, Any]:
    return {"constant_us": constant, "terms": terms, "roofs": list(roofs), "p": p}


def axis(name: str, *values: float) -> dict[str, Any]:
    return {"name": name, "values": list(values)}


_DECODE = {
    "axes": [axis("seqs", 1, 8, 64), axis("context", 16, 256, 4096)],
    "physics": physics(7.0, {"keys": 0.003}, {"chain": 0.02}, seqs=0.1),
    "correction": [0, 500, -300, 100, -900, 200, 50, 40, -60],
}
_JOINT = {
    "axes": [axis("chunk", 16, 256), axis("cached", 0, 128), axis("seqs", 0, 8, 64), axis("context", 0, 1024)],
    "physics": physics(5.0, {"pairs": 1e-4, "keys": 0.005, "missed": 0.004}, {"chain": 0.02}, tiles=0.3),
    "correction": [(i * 37) % 400 - 200 for i in range(24)],
}
_PREFILL = {
    "axes": [axis("chunks", 1, 8), axis("each", 16, 1024)],
    "physics": physics(5.0, {"pairs": 1e-4}, tiles=0.3),
    "correction": [100, -100, 50, 0],
}
DOCUMENT: dict[str, Any] = {
    "schema": SCHEMA,
    "version": VERSION,
    "name": "tiny",
    "model": "llama-3.1-8b",
    "gpu": "rtx-4090",
    "tensor_parallel": 1,
    "software": "none",
    "layers": 2,
    "host": {"step_s": 1e-4, "seq_s": 1e-6, "from": "made up"},
    "attention": {"prompts": "joint", "knee_keys": 4096, "decode": _DECODE, "prompt": _JOINT},
    "skew": {
        "axes": [axis("seqs", 2, 32), axis("share", 0, 0.1, 1), axis("context", 128, 1024)],
        "decode": [0.01, 0.02, 0, 0.03, 0.01, 0],
        "mixed": [0.01, 0.02, 0.03, 0.04, 0, 0, 0.02, 0.01, 0.03, 0.05, 0, 0],
    },
    "experts": {
        "experts": 16,
        "top_k": 2,
        "surface": {
            "axes": [axis("tokens", 1, 64, 2048), axis("activated", 2, 16)],
            "physics": physics(3.0, {"tokens": 0.1}, {"activated": 2.0}),
            "correction": [0, 100, -100, 30, 20, 10],
        },
    },
    "all_reduce": {"from": "made up", "curve": {"counts": [1, 4096], "us": [40.0, 900.0], "us_beyond": 0.2}},
    "tables": {
        "layer": {
            "gate_up": {"counts": [1, 16, 32, 2048], "us": [50.0, 52.0, 55.0, 900.0], "us_beyond": 0.4, "tile": 16},
            "norm": {"counts": [1, 2048], "us": [3.0, 40.0], "us_beyond": 0.02},
        },
        "step": {"embedding": {"counts": [1, 2048], "us": [3.0, 9.0], "us_beyond": 0.0}},
        "rows": {"lm_head": {"counts": [1, 64], "us": [80.0, 90.0], "us_beyond": 0.2}},
    },
    "errors": {"gemm": {"random": {"mape": 2.0, "median": 1.0, "p95": 5.0, "bias": 0.1, "rows": 40}}},
}


def document(**changes: Any) -> dict[str, Any]:
    """The JSON, with some of its keys changed; None takes one out."""
    made = {**deepcopy(DOCUMENT), **changes}
    return {key: value for key, value in made.items() if value is not None}


def apart() -> dict[str, Any]:
    """The attention part of a profile whose prompts and decodes were measured apart."""
    return {"prompts": "apart", "launch_us": 5.0, "decode": deepcopy(_DECODE), "prompt": deepcopy(_PREFILL)}


def profile(**changes: Any) -> Profile:
    return load_profile(document(**changes))
