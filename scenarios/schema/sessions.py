"""The `session:` of a class: several requests, each of which waits for the answer to the one before."""

from typing import Annotated, Literal, Self

from annotated_types import Unit, doc
from pydantic import Discriminator, Field, Tag, model_validator

from scenarios.schema.durations import TimeConfig
from scenarios.schema.lengths import Length, LengthConfig
from scenarios.schema.strict import Strict

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
