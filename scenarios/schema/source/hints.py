"""Hints for a wrong word: the nearest known one, the same quantity in another unit, the place of the key."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic_core import PydanticCustomError

_SECOND, _BYTE, _PER_SECOND, _FLOP = "time", "size", "bandwidth", "compute"
_UNITS: dict[str, tuple[str, float, str]] = {  # suffix of a key: quantity, factor, name
    "gib_s": (_PER_SECOND, 2.0**30, "GiB/s"),
    "tb_s": (_PER_SECOND, 1e12, "TB/s"),
    "gb_s": (_PER_SECOND, 1e9, "GB/s"),
    "mb_s": (_PER_SECOND, 1e6, "MB/s"),
    "pflops": (_FLOP, 1e15, "PFLOP/s"),
    "tflops": (_FLOP, 1e12, "TFLOP/s"),
    "gflops": (_FLOP, 1e9, "GFLOP/s"),
    "hours": (_SECOND, 3600.0, "hours"),
    "minutes": (_SECOND, 60.0, "minutes"),
    "seconds": (_SECOND, 1.0, "seconds"),
    "secs": (_SECOND, 1.0, "seconds"),
    "sec": (_SECOND, 1.0, "seconds"),
    "millis": (_SECOND, 1e-3, "milliseconds"),
    "h": (_SECOND, 3600.0, "hours"),
    "min": (_SECOND, 60.0, "minutes"),
    "s": (_SECOND, 1.0, "seconds"),
    "ms": (_SECOND, 1e-3, "milliseconds"),
    "us": (_SECOND, 1e-6, "microseconds"),
    "ns": (_SECOND, 1e-9, "nanoseconds"),
    "tib": (_BYTE, 2.0**40, "TiB"),
    "gib": (_BYTE, 2.0**30, "GiB"),
    "mib": (_BYTE, 2.0**20, "MiB"),
    "kib": (_BYTE, 2.0**10, "KiB"),
    "tb": (_BYTE, 1e12, "TB"),
    "gb": (_BYTE, 1e9, "GB"),
    "mb": (_BYTE, 1e6, "MB"),
    "bytes": (_BYTE, 1.0, "bytes"),
}
_ELSEWHERE_CALLED = {  # other tools' words
    "qps": "rate",
    "rps": "rate",
    "request_rate": "rate",
    "num_prompts": "requests",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "scheduler": "policy",
    "scheduling_policy": "order",
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "isl": "input",
    "osl": "output",
    "std": "sd",
    "stddev": "sd",
    "type": "kind",
    "correlation": "corr",
    "rank_correlation": "corr",
    "spearman": "corr",
    "shared_prefix": "prefix",
    "prefix_group": "prefix",
    "prefix_groups": "prefix",
    "system_prompt": "prefix",
    "rates": "states",
    "ramp": "profile",
    "ramp_up_strategy": "profile",
    "diurnal": "profile",
    "spike": "profile",
    "stages": "profile",
}


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word most like this one, if one is like it at all."""
    options = list(known)
    folded = {option.lower(): option for option in reversed(options)}
    found = difflib.get_close_matches(str(word).lower(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def reordered(key: str, known: Iterable[str]) -> str | None:
    """The known key with the parts of this one in another order, its unit perhaps left out: `ttft_p99`."""
    parts = sorted(key.lower().split("_"))
    return next(
        (name for name in known if parts in (sorted(name.split("_")), sorted(_split_unit(name)[0].split("_")))), None
    )


def did_you_mean(word: object, known: Sequence[str]) -> str:
    """A hint: the nearest of the known words, and all of them."""
    near = nearest(word, known)
    allowed = f"allowed: {', '.join(known)}" if known else ""
    return " ".join(part for part in (f"did you mean `{near}`?" if near else "", allowed) if part)


def key_hint(
    key: str,
    value: object,
    allowed: Sequence[str],
    elsewhere: Mapping[str, Sequence[str]],
    listed: Sequence[str] | None = None,
    here: str | None = None,
) -> str:
    """A hint for an unknown key: its unit, its spelling, or where it belongs; and the keys allowed here.

    `elsewhere` maps the keys of the whole file to the places where each is known; `listed` are the words for the
    allowed keys where these are too many to list. `here` is the place of the key itself, where it is known too if
    another kind of the same mapping takes it.
    """
    known = f"allowed: {', '.join(listed or allowed)}"
    called = _ELSEWHERE_CALLED.get(key)
    if unit := _unit_hint(key, value, allowed):
        meant = unit
    elif called is not None and called in allowed:
        meant = f"it is called `{called}` here"
    elif key in elsewhere:
        places = elsewhere[key]
        under = " or ".join(f"`{place}`" for place in places if place)
        where = ["at the top level"] * ("" in places) + [f"under {under}"] * bool(under)
        meant = f"`{key}` belongs {' or '.join(where)}"
        if here in places:
            meant = f"`{key}` is a key of another kind of `{here}`"
    elif near := nearest(key, allowed):
        return f"did you mean `{near}`? {known}"
    elif called is not None and called in elsewhere:
        meant = f"it is called `{called}`, under {' or '.join(f'`{place}`' for place in elsewhere[called])}"
    else:
        meant = ""
    return "; ".join(part for part in (meant, known) if part)


def _unit_hint(key: str, value: object, allowed: Iterable[str]) -> str | None:
    """`ttft_s: 0.5` where `ttft_ms` is known: say so, and convert."""
    stem, unit = _split_unit(key)
    for candidate in allowed:
        known_stem, known_unit = _split_unit(candidate)
        if known_unit is None or known_stem != stem or candidate == key:
            continue
        quantity, factor, name = _UNITS[known_unit]
        if unit is None:
            return f"with its unit it is `{candidate}` ({name})"
        if _UNITS[unit][0] != quantity:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return f"in {name} it is `{candidate}: {value * _UNITS[unit][1] / factor:.10g}`"
        return f"in {name} it is `{candidate}`"
    return None


def unit_of(key: str) -> str | None:
    """The unit that a key's name says."""
    _, unit = _split_unit(key)
    if unit is not None:
        return _UNITS[unit][2]
    return next((what for what in ("tokens", "blocks", "bytes") if key.endswith(f"_{what}")), None)


def _split_unit(key: str) -> tuple[str, str | None]:
    for unit in _UNITS:  # longer suffixes stand before those they end with
        if key.endswith(f"_{unit}"):
            return key[: -len(unit) - 1], unit
    return key, None


_QUANTITY = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z%/]+)")


def as_number(text: object) -> float | None:
    """The number that a text spells; None for another text, and for what is no text."""
    try:
        return float(text) if isinstance(text, str) else None
    except ValueError:
        return None


def number_hint(key: str, value: object) -> str | None:
    """A hint for a value that should have been a number: quotes, or a unit written with it."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    if (number := as_number(text)) is not None:
        return f"write it without quotes: {text}" if math.isfinite(number) else None
    if not (match := _QUANTITY.fullmatch(text)):
        return None
    _, unit = _split_unit(key)
    given = _UNITS.get(match[2].lower().replace("/", "_"))
    if unit is None:
        return "write the number alone"
    quantity, factor, name = _UNITS[unit]
    if given is not None and given[0] == quantity:
        return f"the unit is in the key ({name}): write {float(match[1]) * given[1] / factor:.10g}"
    return f"the unit is in the key ({name}): write the number alone"


def refusal(message: str, hint: str | None = None, key: str | tuple[str, ...] | None = None) -> PydanticCustomError:
    """The exception by which a validator refuses a value: becomes an InputError with this message and hint.

    `key`, dotted or as a tuple, names a key inside the value refused; the message then stands at that key.
    """
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint, "key": key})
