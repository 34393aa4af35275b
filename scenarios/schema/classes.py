"""What a class of a workload says of its requests beside their lengths: shared texts, adapters, sessions, images."""

from typing import Annotated, Literal, Self

from annotated_types import Unit, doc
from pydantic import Discriminator, Field, Tag, model_validator

from scenarios.schema.base import Strict
from scenarios.schema.distributions import Length, LengthConfig, TimeConfig

# What a class says of things that its requests choose among by popularity: shared texts, adapters.

Zipf = Annotated[float, Field(ge=0, le=100), doc("exponent of their popularity; 0: all equally popular, 1: Zipf's law")]
SharedName = Annotated[
    Annotated[str, Field(min_length=1)] | None,
    doc("what their names begin with: classes that give the same share them; null: the class's own name"),
]


# The `prefix:` of a class: text that its prompts begin with and share, as system prompts are shared.


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


# The `lora:` of a class: adapters that its requests ask for.


class LoraConfig(Strict):
    """Each request asks for one of `adapters`; the k-th most popular with a probability proportional to 1 / k^zipf.

    A session keeps its adapter. The engine's `max_loras` bounds how many of them a batch uses at once.
    """

    adapters: Annotated[int, Field(ge=1, le=1_000_000), doc("different adapters"), Unit("adapters")]
    zipf: Zipf = 0.0
    name: SharedName = None

    def adapter(self, class_name: str, rank: int) -> str:
        """Return the name of the adapter of this rank, from 1 for the most popular, of a class of this name."""
        return f"{self.name or class_name}-{rank}"


# The `session:` of a class: several requests, each of which waits for the answer to the one before.

MOST_TURNS = 10_000
MOST_DEPTH = 4

Count = Annotated[int, Field(ge=1, le=MOST_TURNS)]
CountConfig = Annotated[
    Annotated[Count, Tag("<number>")] | Annotated[LengthConfig, Tag("<mapping>")],
    Discriminator(lambda value: "<number>" if isinstance(value, (int, float, str)) else "<mapping>"),
    Field(description=f"a whole number from 1 to {MOST_TURNS}, or a distribution of whole numbers"),
]


class SubagentsConfig(Strict):
    """Agents that an agent starts in place of a tool, all at once. Its next step waits for the last of them.

    Each has a conversation of its own, which begins with the class's `prefix` and `input` new tokens and grows as the
    agent's does, with the same outputs, tools and limit of context. What they return is the agent's `tool_tokens`. With
    a `depth` above 1 they start agents of their own, in the same way.
    """

    share: Annotated[float, Field(gt=0, le=1), doc("share of the tool calls that start agents instead")]
    count: Annotated[CountConfig, doc("agents started at once"), Unit("agents")]
    steps: Annotated[CountConfig, doc("requests of such an agent")]
    input: Annotated[LengthConfig, doc("new tokens of its first request"), Unit("tokens")]
    depth: Annotated[int, Field(ge=1, le=MOST_DEPTH), doc("levels of agents below the agent")] = 1


class SessionConfig(Strict):
    """Requests that follow one another: what the class's arrivals begin is a session.

    The next turn comes after the answer and a think time. With `context: accumulate` its prompt is the conversation so
    far (the last prompt and its whole answer) and `input` new tokens, and a prefix cache finds exactly that
    conversation. A turn may have several `steps`: between them an agent runs a tool for `tool_time_s`, whose result
    adds `tool_tokens`. Such a turn is a task, from its first request to its last answer. A session ends early where a
    request is given up.
    """

    turns: Annotated[CountConfig, doc("questions of a session"), Unit("turns")]
    think_time_s: Annotated[TimeConfig, doc("time between an answer and the next question")] = 0.0
    context: Annotated[Literal["accumulate", "independent"], doc("a prompt contains the conversation so far")] = (
        "accumulate"
    )
    steps: Annotated[CountConfig, doc("requests of a turn, each but the last ending in a tool call")] = 1
    tool_time_s: Annotated[TimeConfig, doc("time that a tool call takes")] = 0.0
    tool_tokens: Annotated[
        LengthConfig | None, doc("new tokens after a tool call; null: as `input`"), Unit("tokens")
    ] = None
    subagents: Annotated[SubagentsConfig | None, doc("agents that it starts and waits for; null: none")] = None
    max_context_tokens: Annotated[
        Length | None, doc("largest prompt and answer together; a session ends before a longer request; null: no limit")
    ] = None

    @model_validator(mode="after")
    def _steps_have_tools(self) -> Self:
        if self.steps == 1 and (self.tool_time_s != 0.0 or self.tool_tokens is not None or self.subagents is not None):
            raise ValueError("tool_time_s, tool_tokens and subagents do nothing with steps: 1")
        return self


# The `images:` of a class: images in its prompts.


class ImagesConfig(Strict):
    """Images that stand before the text of a prompt, behind its shared prefix; their tokens come on top of `input`.

    The engine's `max_image_embeddings` says how large they may be. Its encoder finds equal images in its cache again; a
    prefix cache finds them only in a trace with token ids.
    """

    count: Annotated[CountConfig, doc("images of a request"), Unit("images")] = 1
    tokens: Annotated[LengthConfig, doc("tokens of an image"), Unit("tokens")]
    share: Annotated[float, Field(gt=0, le=1), doc("share of the requests that have images")] = 1.0
    different: Annotated[
        Annotated[int, Field(ge=1, le=1_000_000)] | None,
        doc("different images, all equally popular and each of one size; null: every image is its request's own"),
        Unit("images"),
    ] = None
