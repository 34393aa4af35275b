"""`host:`, `sampling:` and `front_end:`, what a server adds around a step's kernels; by default the engine's own."""

from dataclasses import replace
from typing import Annotated

from annotated_types import doc
from pydantic import Field

from scenarios.schema.base import Strict
from simulator.hardware.models import Model
from simulator.sampling import completed
from simulator.timing.host import Host

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class HostConfig(Strict):
    """The part of the host's work on a step that the GPU waits for, under any kind of cost.

    By default it is that of the policy's engine (`scenarios/servers/`): of vLLM by `version` and, where that is
    given, `async_scheduling`: 1.3 ms and 72 microseconds a request where scheduling is synchronous (the default before
    0.14), 0.3 ms otherwise, and what `sampling` takes; of SGLang and TensorRT-LLM by `async_scheduling`, their overlap
    schedule. `kind: linear` has the host in `base_s`, and a profile that was fitted to whole steps has it
    in itself: there nothing is added by default.
    """

    step_s: Annotated[Seconds | None, doc("time of every step; null: the engine's")] = None
    per_seq_s: Annotated[Seconds | None, doc("time for each request of a step; null: the engine's")] = None

    def over(self, usual: Host) -> Host:
        """Return the host as given, completed by the engine's, with its source where all figures are the engine's."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        found = replace(usual, **given)
        return found if found == usual else replace(found, source="the scenario")


class SamplingConfig(Strict):
    """How requests ask for their next token, as vLLM names it. It matters for the time of a step alone.

    Where top-k or top-p take tokens out, vLLM up to 0.20 looks through the whole vocabulary for each request of a step:
    by a sort up to 0.16, 15 microseconds for 131,072 tokens, and by a kernel of its own from 0.17, 4 microseconds.
    Greedy requests (`temperature: 0`), as benchmarks send them, and other engines take no such time. What is left out
    is as the model's generation_config.json says, which vLLM takes too: of a built-in model, or beside a config.json.
    """

    temperature: Annotated[
        Annotated[float, Field(ge=0, le=100)] | None, doc("0: the likeliest token; null: the model's")
    ] = None
    top_k: Annotated[
        Annotated[int, Field(ge=-1, le=10**7)] | None,
        doc("likeliest tokens to draw from; 0, -1: all; null: the model's"),
    ] = None
    top_p: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        doc("likelihood of the tokens to draw from; 1: all; null: the model's"),
    ] = None
    min_p: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        doc("least share of the likeliest token's likelihood; it takes no time here; null: the model's"),
    ] = None


def filtered(sampling: SamplingConfig | None, model: Model) -> int:
    """Return the tokens that top-k or top-p look through for each request; 0 where they take none out."""
    said = {} if sampling is None else sampling.model_dump()
    return model.vocab if completed(model.name, said).filters else 0


class FrontEndConfig(Strict):
    """The layer between clients and the engine: HTTP, tokenising, detokenising.

    All tokens of a request reach its client later by one delay: `fixed_s`, plus `per_running_s` for each request that
    ran when its first token was sampled, itself included, plus `per_prompt_token_s` for each token of its prompt. TTFT
    and end-to-end latency grow by it; the gaps between tokens do not change. The engine's decisions do not change
    either, unless clients react to answers: then prompts are tokenised one after another before the engine has them.
    `front_end: {}` takes the delay of vLLM 0.15 over HTTP: 4 ms, 67 microseconds, and 10 microseconds a prompt token
    (6 of Llama 3 and gpt-oss, and under TensorRT-LLM).
    """

    fixed_s: Annotated[Seconds | None, doc("delay of every request; null: the engine's")] = None
    per_running_s: Annotated[Seconds | None, doc("delay for each running request; null: the engine's")] = None
    per_prompt_token_s: Annotated[
        Seconds | None, doc("delay for each prompt token; null: the engine's, or 0 where another is given")
    ] = None
