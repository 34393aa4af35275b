"""The `session:` of a class: several requests, each of which waits for the answer to the one before."""

from typing import Annotated, Literal, Self

from annotated_types import Unit, doc
from pydantic import Discriminator, Field, Tag, model_validator

from scenarios.schema.durations import TimeConfig
from scenarios.schema.lengths import Length, LengthConfig
from scenarios.schema.strict import Strict

MOST_TURNS = 10_000

Count = Annotated[int, Field(ge=1, le=MOST_TURNS)]
CountConfig = Annotated[
    Annotated[Count, Tag("<number>")] | Annotated[LengthConfig, Tag("<mapping>")],
    Discriminator(lambda value: "<number>" if isinstance(value, (int, float, str)) else "<mapping>"),
    Field(description=f"a whole number from 1 to {MOST_TURNS}, or a distribution of whole numbers"),
]


class SessionConfig(Strict):
    """Requests that follow one another: what the class's arrivals begin is a session.

    The next turn comes after the answer and a think time. With `context: accumulate` its prompt is the conversation so
    far (the last prompt and its whole answer) and `input` new tokens, and a prefix cache finds exactly that
    conversation. A turn may have several `steps`: between them an agent runs a tool for `tool_time_s`, whose result
    adds `tool_tokens`. A session ends early where a request is given up.
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
    max_context_tokens: Annotated[
        Length | None, doc("largest prompt and answer together; a session ends before a longer request; null: no limit")
    ] = None

    @model_validator(mode="after")
    def _steps_have_tools(self) -> Self:
        if self.steps == 1 and (self.tool_time_s != 0.0 or self.tool_tokens is not None):
            raise ValueError("tool_time_s and tool_tokens do nothing with steps: 1")
        return self
