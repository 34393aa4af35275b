"""Profiles as JSON: read, checked, and turned into tables. `calibration.document` is the other direction.

Version 1. Times in microseconds unless a name says otherwise; `layer` tables count once a layer, `step` tables once a
step. Corrections are log(measured / physics) x 10^4, rounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from simulator.hardware.dimensions import check_choice
from simulator.timing.documents import DocumentKind
from simulator.timing.profile.experts import Experts, RoutedExperts
from simulator.timing.profile.physics import Physics, Sum
from simulator.timing.profile.skew import Skew
from simulator.timing.profile.step import Attention, DecodeTable, JointTable, PrefillTable
from simulator.timing.profile.surface import Curve, Surface, SurfaceAxis

SCHEMA = "batchlab profile"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "a profile", "batchlab calibrate fit")
SCALE = 1e-4  # what a correction's integer stands for
Curves = Mapping[str, Curve]


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU, a model, a parallelism: their kernels. `document` is the JSON, with errors and sources."""

    name: str
    model: str
    gpu: str
    tensor_parallel: int
    layers: int
    host_s: float
    host_per_seq_s: float
    layer_curves: Curves
    step_curves: Curves
    row_curves: Curves
    attention: Attention
    skew: Skew | None
    experts: Experts | RoutedExperts | None
    all_reduce: Curve | None
    document: Mapping[str, Any]

    def covered(self) -> dict[str, int]:
        """The largest tokens of a step, decodes of a step and mean context that were measured."""
        seqs, context = self.attention.decode.surface.axes
        tokens = min(int(curve.counts[-1]) for curve in self.layer_curves.values())
        return {"tokens": tokens, "seqs": int(seqs.values[-1]), "context": int(context.values[-1])}


def read_profile(path: Path) -> Profile:
    """A profile from a file. InputError where it cannot be read, or is of another schema or version."""
    return load_profile(KIND.read(path), str(path))


def load_profile(document: object, file: str | None = None) -> Profile:
    """A profile from the parsed JSON; `file` is where errors say it came from."""
    with KIND.opened(document, file) as held:
        return _profile(held)


def _profile(document: dict[str, Any]) -> Profile:
    tables, attention, host = document["tables"], document["attention"], document["host"]
    reduce, experts, skew = document.get("all_reduce"), document.get("experts"), document.get("skew")
    return Profile(
        name=str(document["name"]),
        model=str(document["model"]),
        gpu=str(document["gpu"]),
        tensor_parallel=int(document["tensor_parallel"]),
        layers=_at_least_1(document["layers"], "layers"),
        host_s=_seconds(host["step_s"], "host.step_s"),
        host_per_seq_s=_seconds(host["seq_s"], "host.seq_s"),
        layer_curves={name: _curve(curve, name) for name, curve in tables["layer"].items()},
        step_curves={name: _curve(curve, name) for name, curve in tables["step"].items()},
        row_curves={name: _curve(curve, name) for name, curve in tables["rows"].items()},
        attention=_attention(attention),
        skew=None if skew is None else _skew(skew),
        experts=None if experts is None else _experts(experts),
        all_reduce=None if reduce is None else _curve(reduce["curve"], "all_reduce"),
        document=document,
    )


def _attention(document: dict[str, Any]) -> Attention:
    check_choice(document["prompts"], ("joint", "apart"), "attention.prompts")
    surface = _surface(document["prompt"], "attention.prompt")
    is_joint = document["prompts"] == "joint"
    prompt = JointTable(surface, float(document["knee_keys"])) if is_joint else PrefillTable(surface)
    decode = DecodeTable(_surface(document["decode"], "attention.decode"))
    launch_us = _seconds(document.get("launch_us", 0.0), "attention.launch_us")
    return Attention(decode, prompt, launch_us, _seconds(document.get("beside", 1.0), "attention.beside"))


def _experts(document: dict[str, Any]) -> Experts:
    count, top_k = _at_least_1(document["experts"], "experts"), _at_least_1(document["top_k"], "top_k")
    return Experts(_surface(document["surface"], "experts"), count, top_k)


def _skew(document: dict[str, Any]) -> Skew:
    axes = [read_axis(axis, "skew") for axis in document["axes"]]
    seqs, share, context = axes
    decode, mixed = _floats(document["decode"], "skew.decode"), _floats(document["mixed"], "skew.mixed")
    size = len(seqs.values) * len(share.values)
    if len(decode) != size or len(mixed) != size * len(context.values):
        raise ValueError("skew has tables that are not as large as its axes")
    return Skew(seqs, share, context, decode, mixed)


def _surface(document: dict[str, Any], name: str) -> Surface:
    axes = tuple(read_axis(axis, name) for axis in document["axes"])
    correction = tuple(value * SCALE for value in _floats(document["correction"], name))
    size = prod(len(axis.values) for axis in axes)
    if len(correction) != size:
        raise ValueError(f"{name} has {len(correction)} corrections for a grid of {size}")
    return Surface(axes, read_physics(document["physics"], name), correction)


def read_axis(document: dict[str, Any], name: str) -> SurfaceAxis:
    """An axis of `name` from JSON. ValueError, KeyError or TypeError where it is none."""
    values = _floats(document["values"], name)
    _check_ascending(values, f"an axis of {name}")
    return SurfaceAxis(str(document["name"]), values)


def _curve(document: dict[str, Any], name: str) -> Curve:
    counts, us = _floats(document["counts"], name), _floats(document["us"], name)
    _check_ascending(counts, f"the counts of {name}")
    if len(us) != len(counts):
        raise ValueError(f"{name} has {len(us)} times for {len(counts)} counts")
    if min(us) < 0:
        raise ValueError(f"{name} has a time below 0")
    return Curve(counts, us, _seconds(document["us_beyond"], name), _seconds(document.get("tile", 0), name))


def read_physics(document: dict[str, Any], name: str) -> Physics:
    """The physics of `name` from JSON. ValueError, KeyError or TypeError where it is none."""
    roofs = tuple(_sum(roof, name) for roof in document["roofs"])
    p = float(document["p"])
    if p < 1:
        raise ValueError(f"{name} has p = {p}, which is below 1")
    return Physics(_seconds(document["constant_us"], name), _sum(document["terms"], name), roofs, p)


def _sum(document: dict[str, float], name: str) -> Sum:
    return tuple((feature, _seconds(coefficient, f"{name}.{feature}")) for feature, coefficient in document.items())


def _floats(values: object, name: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} has no list of numbers where one should be")
    return tuple(float(value) for value in values)


def _check_ascending(values: tuple[float, ...], what: str) -> None:
    if any(b <= a for a, b in pairwise(values)) or values[0] < 0:
        raise ValueError(f"{what} do not ascend from 0 or more")


def _seconds(value: object, name: str) -> float:
    number = float(value)  # type: ignore[arg-type] # a TypeError says that the profile is damaged
    if not 0 <= number < float("inf"):
        raise ValueError(f"{name} is {number}, not 0 or more")
    return number


def _at_least_1(value: object, name: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, not a count of at least 1")
    return value
