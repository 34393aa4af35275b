"""What marks each trace format: the columns of its header, or the keys of its objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.traces import azure, native


@dataclass(frozen=True, slots=True)
class Signature:
    """What marks a format: columns (or keys) that it has, and some that it must not have."""

    format: str
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()


CSV_SIGNATURES = (
    Signature("azure", azure.COLUMNS),
    Signature("native", native.REQUIRED),
    Signature("burstgpt", ("Timestamp", "Request tokens", "Response tokens")),
    Signature("guidellm-csv", ("timestamp", "input_length", "output_length")),
    Signature("vidur", ("arrived_at", "num_prefill_tokens", "num_decode_tokens")),
    Signature("vidur-lengths", ("num_prefill_tokens", "num_decode_tokens"), lacks=("arrived_at",)),
    Signature("splitwise", ("request_id", "request_type", "arrival_timestamp", "prompt_size", "token_size")),
    Signature("llmservingsim", ("arrival_time_ns", "input_toks", "output_toks")),
    Signature("blis", ("request_id", "arrival_time_us", "input_tokens", "output_tokens")),
)
JSON_SIGNATURES = (
    Signature("native", ("arrival_time_s", "input_tokens", "output_tokens")),
    Signature("native", ("arrival_time_s", "prompt_token_ids"), lacks=("input_tokens",)),
    Signature("native", ("arrival_time_s", "input_tokens", "output_token_ids"), lacks=("output_tokens",)),
    Signature("bailian", ("chat_id", "parent_chat_id")),
    Signature("mooncake", ("timestamp", "input_length", "output_length", "hash_ids"), lacks=("chat_id",)),
    Signature("guidellm", ("timestamp", "input_length", "output_length"), lacks=("chat_id", "hash_ids")),
    Signature("aiperf", ("delay",), lacks=("timestamp",)),
    Signature("aiperf", ("text_input",), lacks=("input_length",)),
    Signature("weka", ("t", "in", "out")),
    Signature("weka", ("id", "requests")),
    Signature("servegen-offline", ("request_id", "input_length", "duration"), lacks=("timestamp",)),
    Signature("servegen-offline", ("request_id", "input_length", "hash_ids", "img_ids"), lacks=("timestamp",)),
    Signature("llmservingsim", ("input_toks", "output_toks", "arrival_time_ns")),
    Signature("llmservingsim", ("session_id", "sub_requests")),
    Signature("openai-batch", ("custom_id", "method", "url", "body")),
)

# What a file must hold when its format was given rather than found: hash_ids are then free.
_LENGTHS = ("timestamp", "input_length", "output_length")
_JSON_AS_GIVEN = {"mooncake": (Signature("mooncake", _LENGTHS),), "guidellm": (Signature("guidellm", _LENGTHS),)}


def csv_signatures(given: str) -> tuple[Signature, ...]:
    """Those that a header may fit; all of them where `given` is "auto"."""
    return tuple(s for s in CSV_SIGNATURES if given in ("auto", s.format))


def json_signatures(given: str) -> tuple[Signature, ...]:
    """Those that an object's keys may fit; all of them where `given` is "auto"."""
    return _JSON_AS_GIVEN.get(given) or tuple(s for s in JSON_SIGNATURES if given in ("auto", s.format))


def matching(names: Sequence[str], signatures: Sequence[Signature]) -> list[str]:
    """Formats whose signature fits; one that demands strictly more than another wins over it."""
    have = frozenset(names)
    fits = [s for s in signatures if have.issuperset(s.has) and have.isdisjoint(s.lacks)]
    best = [s for s in fits if not any(set(s.has) < set(other.has) for other in fits)]
    return list(dict.fromkeys(s.format for s in best))


def matching_folded(names: Sequence[str], signatures: Sequence[Signature]) -> list[str]:
    """The same without regard to case."""
    plain = [Signature(s.format, tuple(folded(s.has)), tuple(folded(s.lacks))) for s in signatures]
    return matching(folded(names), plain)


def folded(names: Sequence[str]) -> list[str]:
    """Names without regard to case."""
    return [name.casefold() for name in names]
