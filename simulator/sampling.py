"""How a server chooses the next token: the parameters that vLLM's requests have, and what models ask for by default.

Greedy requests and those without top-k and top-p take the likeliest or a random token as it is. Top-k and top-p look
through the whole vocabulary of each row first, which some engines do by sorting it (`scenarios.servers.server.Server`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.parameters import CHANGED

FILE = "generation_config.json"
GREEDY_BELOW = 1e-5
"""The temperature below which vLLM takes the likeliest token (`_SAMPLING_EPS`, vllm/sampling_params.py, 0.33)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """vLLM's `SamplingParams` as far as they take time; the defaults keep every token. `top_k` 0 and -1 keep all."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def filters(self) -> bool:
        """Return whether top-k or top-p take tokens out before one is drawn."""
        return self.temperature >= GREEDY_BELOW and (self.top_k > 0 or self.top_p < 1.0)


_LLAMA = Sampling(temperature=0.6, top_p=0.9)
_QWEN_2_5 = Sampling(temperature=0.7, top_k=20, top_p=0.8)
_QWEN_3 = Sampling(temperature=0.6, top_k=20, top_p=0.95)
_DEEPSEEK_V2 = Sampling(temperature=0.3, top_p=0.95)

_BY_MODEL: Mapping[str, Sampling] = {
    **dict.fromkeys(("llama-2-7b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"), _LLAMA),
    **dict.fromkeys(("llama-4-scout", "llama-4-maverick"), _LLAMA),
    **dict.fromkeys(("qwen2.5-7b", "qwen2.5-72b", "qwen3-coder-480b-a35b", "qwen3-next-80b-a3b"), _QWEN_2_5),
    **dict.fromkeys(("qwen3-0.6b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b"), _QWEN_3),
    **dict.fromkeys(("deepseek-v2", "deepseek-v2-lite"), _DEEPSEEK_V2),
    "minimax-m2": Sampling(top_k=40, top_p=0.95),
    "gemma-3-27b": Sampling(top_k=64, top_p=0.95),
}
"""From the generation_config.json beside each model's config.json at Hugging Face. Servers print them when they start
("Using default chat sampling params from model"): public logs of vLLM and SGLang show these values for Llama 3,
Qwen2.5, Qwen3, Gemma 3 and MiniMax-M2. The files of Mistral, Mixtral, gpt-oss and GPT-2 name none of these parameters;
for a model that is not here none are assumed."""


def default_sampling(model: str) -> Sampling:
    """Return what a server takes for requests that say nothing, by a built-in model's name: its generation config."""
    return _BY_MODEL.get(model.removesuffix(CHANGED), Sampling())


def completed(model: str, given: Mapping[str, Any]) -> Sampling:
    """Return the parameters of requests that say some of them, the rest by the model's generation config."""
    return replace(default_sampling(model), **{name: value for name, value in given.items() if value is not None})


def said(generation: object) -> dict[str, Any]:
    """Return the parameters that a generation config says, as vLLM takes them; what is no number says nothing.

    vLLM looks at these alone: `do_sample` does not make a request greedy (`get_diff_sampling_param`,
    vllm/config/model.py, 0.33).
    """
    given = generation if isinstance(generation, Mapping) else {}
    numbers = {each.name: given[each.name] for each in fields(Sampling) if each.name in given}
    return {name: value for name, value in numbers.items()
            if isinstance(value, int if name == "top_k" else (int, float)) and not isinstance(value, bool)}  # fmt: skip


def beside(config: Path) -> dict[str, Any]:
    """Return what the file beside a config.json says; {} where there is none. InputError for what is no JSON."""
    path = config.with_name(FILE)
    if not path.is_file():
        return {}
    try:
        return said(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        raise InputError(f"{path} is not JSON", hint="give `sampling`, or take the file away") from None


def read_generation(text: str) -> dict[str, Any] | None:
    """Return what `--generation-config` says: vLLM's own defaults, or a folder's; None where it is the model's.

    Raises ValueError for a folder without such a file.
    """
    if text == "auto":
        return None
    if text == "vllm":
        return asdict(Sampling())
    if not (Path(text) / FILE).is_file():
        raise ValueError("no such folder here")
    return beside(Path(text) / "config.json")


def read_override(text: str) -> dict[str, Any]:
    """Return what `--override-generation-config` says. Raises ValueError for what is no mapping in JSON."""
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("no mapping")
    return said(given)
