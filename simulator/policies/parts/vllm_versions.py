"""What vLLM's v1 scheduler did in earlier versions.

The rules of 0.33.0 are followed step by step in the tests, beside the real one. Those of the other versions are read
from their sources (0.11.2, 0.15.1, 0.20.2, 0.26.0) and were not run beside them. What they share with 0.33 is taken to
be the same; what is listed here differs.

Asynchronous scheduling is the same in all of them as far as it can be seen with two steps in flight: that a victim's
token is delivered late became a rule of its own in 0.33, but that token always was back before the next plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import doc


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that a version shares with 0.33."""

    tests_whole_prompt: bool  # admits a prompt only if all of it would fit; before, if its first chunk did
    has_watermark: bool
    unknown_blocks_first: bool  # of free blocks, those that no prefix cache knows are taken first; before, the oldest
    spares_lone_request: bool  # no long_prefill_token_threshold for a lone request; before, for every request
    passes_itself: bool  # by priority, requests behind one that preempts itself go on; before, the step was full
    has_adaptive_threshold: bool
    has_max_num_active_seqs: bool


def _since(first: str, version: str) -> bool:
    return VERSIONS.index(version) >= VERSIONS.index(first)


def _rules(version: str) -> Rules:
    newest = version == NEWEST
    return Rules(_since("0.20", version), _since("0.26", version), _since("0.26", version), *[newest] * 4)


VERSIONS = ("0.11", "0.15", "0.20", "0.26", "0.33")
NEWEST = VERSIONS[-1]
RULES = {version: _rules(version) for version in VERSIONS}

if TYPE_CHECKING:
    Version = str
else:
    Version = Annotated[Literal[VERSIONS], doc("the release of vLLM whose scheduling rules are followed")]
"""The parameter `version`: one of `VERSIONS`."""


def check_version(version: str, watermark: float, adaptive: bool, max_num_active_seqs: int | None) -> None:
    """Raise ValueError, which begins with the parameter's name, for a setting that the version does not have."""
    rules = RULES[version]
    settings: list[tuple[str, Any, bool, str]] = [
        ("watermark", watermark, rules.has_watermark, "0.26"),
        ("long_prefill_token_threshold_adaptive", adaptive, rules.has_adaptive_threshold, NEWEST),
        ("max_num_active_seqs", max_num_active_seqs, rules.has_max_num_active_seqs, NEWEST),
    ]
    for name, value, has_it, first in settings:
        if value and not has_it:
            raise ValueError(f"{name} is in vLLM since {first}, and version is {version}")
