"""Rules of vLLM's v1 scheduler in earlier versions.

The real scheduler of every minor version from 0.11 to 0.33, in its last patch, has been driven with the same random
cases, and its decisions fall into six groups: 0.11, 0.12 to 0.18, 0.19 to 0.23, 0.24 to 0.30, 0.31 and 0.32, 0.33.
Within a group all versions decided alike on every step; listed here are the differences between groups.

Asynchronous scheduling is the same in all of them as far as it can be seen with two steps in flight: that a victim's
token is delivered late became a rule of its own in 0.33, but that token always was back before the next plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import doc

from simulator.goes_with import ADAPTERS, CADENCE, IMAGES, between


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in which versions differ."""

    passes_over: bool  # without chunked prefill a prompt beyond the budget lets others pass; since 0.12 they wait
    tests_whole_prompt: bool  # admits a prompt only if all of it would fit; before, if its first chunk did
    unknown_blocks_first: bool  # of free blocks, those that no prefix cache knows are taken first; before, the oldest
    spares_lone_request: bool  # no long_prefill_token_threshold for a lone request; before, for every request
    passes_itself: bool  # by priority, requests behind one that preempts itself go on; before, the step was full


def _since(first: str, version: str) -> bool:
    return VERSIONS.index(version) >= VERSIONS.index(first)


def _rules(version: str) -> Rules:
    return Rules(
        passes_over=version == "0.11",
        tests_whole_prompt=_since("0.19", version),
        unknown_blocks_first=_since("0.24", version),
        spares_lone_request=_since("0.31", version),
        passes_itself=_since("0.33", version),
    )


VERSIONS = tuple([f"0.{minor}" for minor in range(11, 34)])
NEWEST = VERSIONS[-1]
RULES = {version: _rules(version) for version in VERSIONS}

if TYPE_CHECKING:
    Version = str
else:
    Version = Annotated[Literal[VERSIONS], doc("the release of vLLM whose scheduling rules are followed")]


def check_loras(version: str, max_loras: int | None, prefill_schedule_interval: int) -> None:
    """Raise ValueError, which begins with the parameter's name, for adapters beside what is not known with them."""
    if max_loras is not None and version != NEWEST:
        raise ValueError(f"max_loras is known as vLLM {NEWEST} has it, and version is {version}")
    if max_loras is not None and prefill_schedule_interval > 1:
        raise ValueError(between(ADAPTERS, CADENCE).in_names)


def check_images(
    version: str, largest: int | None, whole: bool, max_num_batched_tokens: int, prefill_schedule_interval: int
) -> None:
    """Raise ValueError, which begins with the parameter's name, for images that the server would not start with."""
    if largest is None:
        if whole:
            raise ValueError("disable_chunked_mm_input is about images: give max_image_embeddings")
        return
    if version != NEWEST:
        raise ValueError(f"max_image_embeddings is known as vLLM {NEWEST} has it, and version is {version}")
    if prefill_schedule_interval > 1:
        raise ValueError(between(IMAGES, CADENCE).in_names)
    if whole and largest > max_num_batched_tokens:
        what = f"{largest} is more than max_num_batched_tokens, and disable_chunked_mm_input keeps images whole"
        raise ValueError(f"max_image_embeddings: {what}")


def check_intervals(version: str, prefill_schedule_interval: int, max_num_partial_prefills: int) -> None:
    """Raise ValueError, which begins with the parameter's name, for a setting that is not known of the version.

    No v1 scheduler read `max_num_partial_prefills` (vllm-project/vllm, issue 49075): until it was removed, it only
    changed the default of another setting.
    """
    if prefill_schedule_interval > 1 and version != NEWEST:
        raise ValueError(f"prefill_schedule_interval is known as vLLM {NEWEST} has it, and version is {version}")
    if max_num_partial_prefills > 1 and _since("0.27", version):
        what = "max_num_partial_prefills is in vLLM until 0.26, whose scheduler never read it"
        raise ValueError(f"{what}; version is {version}, where any number of prompts share a step")


def check_version(version: str, watermark: float, adaptive: bool, max_num_active_seqs: int | None) -> None:
    """Raise ValueError, which begins with the parameter's name, for a setting that the version does not have."""
    settings: tuple[tuple[str, object, str], ...] = (
        ("watermark", watermark, "0.24"),
        ("long_prefill_token_threshold_adaptive", adaptive, "0.31"),
        ("max_num_active_seqs", max_num_active_seqs, "0.31"),
    )
    for name, value, first in settings:
        if value and not _since(first, version):
            raise ValueError(f"{name} is in vLLM since {first}, and version is {version}")
