"""vLLM's `--speculative-config`: what it says, and how it is written (vllm/config/speculative.py, 0.33)."""

import json
from collections.abc import Mapping
from typing import Any

from simulator.hardware.models import HUGGING_FACE, MODELS, SAME_DIMENSIONS

_TAKEN = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting",
          "disable_lookahead_block_hashes", "disable_eagle_block_drop")  # fmt: skip
_METHODS = {"ngram_gpu": "ngram"}
_UNKNOWN = "DRAFT_MODEL"


def read_speculative(text: str) -> Mapping[str, Any]:
    """Return `engine.speculative_config` of the JSON that vLLM is given.

    vLLM's synthetic acceptance becomes the law of acceptance. Models with MTP of several names are one method. Raises
    ValueError for what is no such JSON, and for drafters that are not modelled.
    """
    given = json.loads(text)
    if not isinstance(given, dict) or not isinstance(given.get("num_speculative_tokens", 1), int):
        raise ValueError("no mapping with a number of drafts")
    model = str(given.get("model") or "")
    method = str(given.get("method") or _inferred(model))
    method = "mtp" if method.endswith("mtp") else _METHODS.get(method, method)
    if method not in ("ngram", "draft_model", "eagle", "eagle3", "mtp"):
        raise ValueError(f"drafts by {method} are not modelled")
    found: dict[str, Any] = {"method": method, "num_speculative_tokens": 1}
    found |= {name: given[name] for name in _TAKEN if given.get(name) not in (None, False)}
    if method == "draft_model":
        found["draft_model"] = drafter_named(model)
    if (rates := given.get("synthetic_acceptance_rates")) is not None:
        found["acceptance"] = {"rates": rates}
    elif (length := given.get("synthetic_acceptance_length")) is not None:
        found["acceptance"] = {"mean_length": length}
    return found


def _names() -> Mapping[str, str]:
    return {**{own: name for name, own in SAME_DIMENSIONS.items()}, **{name: name for name in MODELS}, **HUGGING_FACE}


def drafter_named(model: str) -> str:
    """Return our name of a draft model, or the given one where it is not known."""
    return next((own for own, name in _names().items() if name == model), None) or model


def drafter_path(own: object) -> str:
    """Return the Hugging Face name of a draft model, or a word in its place."""
    return HUGGING_FACE.get(own, _UNKNOWN) if isinstance(own, str) else _UNKNOWN


def _inferred(model: str) -> str:
    """The method that vLLM infers from a draft model's name."""
    name = model.lower()
    if model in ("ngram", "[ngram]"):
        return "ngram"
    if "eagle3" in name:
        return "eagle3"
    if "eagle" in name:
        return "eagle"
    return "draft_model" if model else "mtp"


def write_speculative(value: Any) -> str:
    """Return the JSON of `engine.speculative_config`: what a server does, not how many drafts it accepts."""
    found = {name: value[name] for name in ("method", *_TAKEN) if name in value}
    if value["method"] == "draft_model":
        found["model"] = drafter_path(value.get("draft_model"))
    elif value["method"] in ("eagle", "eagle3"):
        found["model"] = f"{value['method'].upper()}_HEAD"
    return json.dumps(found)
