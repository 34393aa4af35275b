"""Cases of LoRA, with prompts as streams of tokens, decided by batchlab's own parts."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.parity.cases import decisions_of

Case = Mapping[str, Any]
_STREAM = 1_000_000


def tokens_of(parts: Sequence[Sequence[int]]) -> list[int]:
    """Token ids of [stream, first, count] parts; stream 0 is always token 0."""
    return [stream * _STREAM + first + i if stream else 0 for stream, first, count in parts for i in range(count)]


def explicit(case: Case) -> dict[str, Any]:
    """The case with its requests' token ids written out."""
    requests = []
    for r in case["requests"]:
        prompt, answer = tokens_of(r["prompt"]), tokens_of([[*r["output"], r["output_len"]]])
        requests.append({**r, "prompt_len": len(prompt), "prompt_token_ids": prompt, "output_token_ids": answer})
    return {**case, "requests": requests}


def lora(case: Case, *, fast_forward: bool | None = None) -> list[dict[str, Any]]:
    """The steps of a replica that serves adapters, which are named by their numbers in the case."""
    count = len(case["requests"])
    fast = count % 2 == 0 if fast_forward is None else fast_forward
    steps = decisions_of(explicit(case), fast_forward=fast, by_id=count % 3 == 0)
    return [{**step, "adapters": sorted(map(int, step["adapters"])), "t_end": step["t_end_s"]} for step in steps]
