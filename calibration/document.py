"""Write the parts of a profile as plain JSON, which `simulator.timing.profile.profile_schema` reads."""

import json
from pathlib import Path
from typing import Any

from simulator.timing.profile.experts import Experts
from simulator.timing.profile.physics import Physics
from simulator.timing.profile.profile_schema import SCALE
from simulator.timing.profile.skew import Skew
from simulator.timing.profile.surface import Curve, Surface, SurfaceAxis


def of_curve(curve: Curve) -> dict[str, Any]:
    """A curve as JSON."""
    return {
        "counts": [_number(count) for count in curve.counts],
        "us": list(curve.us),
        "us_beyond": curve.us_beyond,
        **({"tile": _number(curve.tile)} if curve.tile else {}),
    }


def of_surface(surface: Surface) -> dict[str, Any]:
    """A surface as JSON; corrections become integers."""
    return {
        "axes": [of_axis(axis) for axis in surface.axes],
        "physics": of_physics(surface.physics),
        "correction": [round(value / SCALE) for value in surface.correction],
    }


def of_axis(axis: SurfaceAxis) -> dict[str, Any]:
    """An axis as JSON."""
    return {"name": axis.name, "values": [_number(value) for value in axis.values]}


def of_physics(physics: Physics) -> dict[str, Any]:
    """Coefficients by feature, as JSON."""
    return {
        "constant_us": physics.constant_us,
        "terms": dict(physics.terms),
        "roofs": [dict(roof) for roof in physics.roofs],
        "p": physics.p,
    }


def of_skew(skew: Skew) -> dict[str, Any]:
    """A skew as JSON: microseconds per key to four digits."""
    return {
        "axes": [of_axis(axis) for axis in (skew.seqs, skew.share, skew.context)],
        "decode": [float(f"{value:.4g}") for value in skew.decode],
        "mixed": [float(f"{value:.4g}") for value in skew.mixed],
    }


def of_experts(experts: Experts) -> dict[str, Any]:
    """Experts as JSON."""
    return {"experts": experts.experts, "top_k": experts.top_k, "surface": of_surface(experts.surface)}


def write_document(document: dict[str, Any], path: Path) -> None:
    """Write a profile: one line a key of the top two levels, so that diffs can be read and files stay small."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and value:
            inner = [f"  {json.dumps(name)}: {_compact(part)}" for name, part in value.items()]
            lines.append(f"{json.dumps(key)}: {{\n" + ",\n".join(inner) + "\n}")
        else:
            lines.append(f"{json.dumps(key)}: {_compact(value)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value
