"""The `prefix:` of a class: text that its prompts begin with and share, as system prompts are shared."""

from typing import Annotated

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.popular import SharedName, Zipf
from scenarios.schema.strict import Strict


class Prefix(Strict):
    """One of `groups` shared texts of `tokens` tokens stands before each prompt.

    The text comes on top of the class's `input`, as vLLM's benchmark, AIPerf and inference-perf have it: a prompt is
    `tokens` + a drawn length. One group is a system prompt that all share. Of several, the k-th most popular is drawn
    with a probability proportional to 1 / k^zipf. What is shared shows in a prefix cache
    (`engine.enable_prefix_caching`), and to routers that look at it.
    """

    groups: Annotated[int, Field(ge=1, le=10_000_000), doc("different texts"), Unit("texts")] = 1
    tokens: Annotated[int, Field(ge=1, le=10_000_000), doc("length of each text"), Unit("tokens")]
    zipf: Zipf = 0.0
    name: SharedName = None
