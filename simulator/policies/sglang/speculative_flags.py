"""SGLang's flags of speculative decoding: what they say, and how they are written.

Defaults are those of python/sglang/srt/arg_groups/speculative_hook.py (SGLang 0.5.23).
"""

from collections.abc import Mapping
from typing import Any, Final

from simulator.policies.parts.vllm_speculative import drafter_named, drafter_path
from simulator.servers import Flag

KEY: Final = "engine.speculative_config"
_AT: Final = "engine.speculative_"  # keys of the flags, which only `joined` and `written` know
MAX_RUNNING_REQUESTS: Final = 48  # where no flag says how many, with drafts (:1091)
_METHODS: Final = {"EAGLE": "eagle", "NEXTN": "mtp", "EAGLE3": "eagle3", "STANDALONE": "draft_model", "NGRAM": "ngram"}
_NGRAM_TOKENS: Final = 12
_USUAL: Final = (3, 1, 4)
_OF_LLAMA: Final = (5, 4, 8)  # of LlamaForCausalLM, but for STANDALONE (:1437)


def _method(text: str) -> str:
    if text.upper() not in _METHODS:
        raise ValueError(f"drafts by {text} are not modelled")
    return _METHODS[text.upper()]


def _algorithm(method: Any) -> str:
    return next(name for name, own in _METHODS.items() if own == method)


FLAGS: Final = (
    Flag("--speculative-algorithm", f"{_AT}method", read=_method, write=_algorithm),
    Flag("--speculative-draft-model-path --speculative-draft-model", f"{_AT}draft_model"),
    Flag("--speculative-num-steps", f"{_AT}num_steps"),
    Flag("--speculative-eagle-topk", f"{_AT}eagle_topk"),
    Flag("--speculative-num-draft-tokens", f"{_AT}num_draft_tokens"),
)


def joined(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return `engine.speculative_config` of what the flags say and the name of the model; None without drafts."""
    method = found.get(f"{_AT}method")
    if method is None:
        return None
    steps, branches, tokens = (found.get(f"{_AT}{key}") for key in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if method == "ngram":  # its longest run of drafts is as long as its tree
        return {"method": method, "num_speculative_tokens": (tokens or _NGRAM_TOKENS) - 1}
    if steps is None:
        is_llama = "llama" in str(found.get("model", "")).lower() and method != "draft_model"
        steps, branches, tokens = _OF_LLAMA if is_llama else _USUAL
    made: dict[str, Any] = {"method": method, "num_speculative_tokens": steps}
    if method == "draft_model":
        made["draft_model"] = drafter_named(str(found.get(f"{_AT}draft_model") or ""))
    if (branches or 1) > 1:
        made |= {"eagle_topk": branches, "num_draft_tokens": tokens}
    return made


def written(config: Any) -> Mapping[str, object]:
    """Return the flags' values for `engine.speculative_config`: what a server does, not how many it accepts."""
    if not config:
        return {}
    method, steps, branches = config["method"], config["num_speculative_tokens"], config.get("eagle_topk", 1)
    tokens = config.get("num_draft_tokens") or steps + 1
    found: dict[str, object] = {f"{_AT}method": method, f"{_AT}num_draft_tokens": tokens}
    if method != "ngram":
        found |= {f"{_AT}num_steps": steps, f"{_AT}eagle_topk": branches}
    if method == "draft_model":
        found[f"{_AT}draft_model"] = drafter_path(config.get("draft_model"))
    elif method in ("eagle", "eagle3"):
        found[f"{_AT}draft_model"] = f"{method.upper()}_HEAD"
    return found
