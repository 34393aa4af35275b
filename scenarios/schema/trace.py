"""The `workload:` of a scenario that is read from a trace: which, which part of it, and what changes on the way."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from annotated_types import Unit, doc
from pydantic import Field, ValidationInfo, field_validator, model_validator

from scenarios.schema.allowed import formats_schema
from scenarios.schema.arrivals import process_at
from scenarios.schema.base import JsonSchema, Strict, later
from scenarios.schema.engine import Count, Seconds
from scenarios.schema.source.hints import refusal
from simulator.errors import InputError

if TYPE_CHECKING:
    from scenarios.schema.client import ArrivalConfig, ClientConfig, Predictor
    from scenarios.traces.options import TraceOptions
else:
    ArrivalConfig = later("scenarios.schema.client:ArrivalConfig", process_at)
    ClientConfig = later("scenarios.schema.client:ClientConfig")
    Predictor = later("scenarios.schema.client:Predictor")

Scale = Annotated[float, Field(gt=0, le=1e6)]


class TraceConfig(Strict):
    """A trace to replay, the part of it, and changes on the way."""

    path: Annotated[
        str,
        Field(min_length=1, description="the path of a trace file"),
        doc("trace file, gzipped or not; relative to the scenario's file"),
    ]
    format: Annotated[str, JsonSchema(formats_schema), doc("format of the trace")] = "auto"
    rate_scale: Annotated[Scale, doc("factor on the rate of arrivals: times are divided by it")] = 1.0
    start_s: Annotated[Seconds, doc("start of the part to replay, in the trace's time")] = 0.0
    duration_s: Annotated[
        Annotated[float, Field(gt=0, le=1e9)] | None, doc("length of the part to replay; null: to the end")
    ] = None
    limit: Annotated[Count | None, doc("requests to replay; null: all"), Unit("requests")] = None
    sample: Annotated[
        float, Field(gt=0, le=1), doc("probability of keeping a request; a session is kept or left out as a whole")
    ] = 1.0
    loop: Annotated[
        int, Field(ge=1, le=1_000_000), doc("passes over the part, each after the one before"), Unit("passes")
    ] = 1
    copies: Annotated[
        float,
        Field(ge=1, le=1e5),
        doc("copies of the part, laid over each other: each is of other clients; 2.5: the third is a sample of half"),
        Unit("copies"),
    ] = 1.0
    shift_s: Annotated[
        Seconds | None,
        doc("each copy after the first is shifted by a random time below this, around the end; null: anywhere"),
    ] = None
    arrival: Annotated[
        ArrivalConfig | None,
        doc("generated arrivals instead of the recorded ones; null: those of the trace, or all at 0"),
    ] = None
    jitter_s: Annotated[Seconds, doc("each arrival is delayed by a random time below this")] = 0.0
    strict: Annotated[bool, doc("a row that cannot be used is an error; otherwise it is skipped and counted")] = False
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None, doc("unit of bare time stamps; null: the format's, or guessed")
    ] = None
    columns: Annotated[
        dict[str, str] | None, doc("native columns and their names in the file, to read a log of any other layout")
    ] = None
    input_scale: Annotated[Scale, doc("factor on the input tokens")] = 1.0
    output_scale: Annotated[Scale, doc("factor on the output tokens")] = 1.0
    zero_output: Annotated[
        Literal["skip", "one"], doc("rows whose answer has no token, mostly failed requests: left out, or given one")
    ] = "skip"
    image_tokens: Annotated[
        Count | None, doc("tokens of an image where the trace only counts images; null: they count as text")
    ] = None
    sessions: Annotated[
        Literal["recorded", "closed_loop"],
        doc("arrivals of a session's later requests: at recorded times, or after the answer with the trace's pauses"),
    ] = "recorded"

    @field_validator("columns", "format")
    @classmethod
    def _readable(cls, value: Any, key: ValidationInfo) -> Any:
        from scenarios.traces.options import TraceOptions

        try:
            TraceOptions(**{str(key.field_name): value})
        except InputError as error:
            raise refusal(error.message.removeprefix(f"{key.field_name}: "), error.hint) from None
        return value

    @model_validator(mode="after")
    def _either_recorded_or_not(self) -> Self:
        if self.sessions == "closed_loop" and self.arrival is not None:
            raise ValueError("sessions: closed_loop keeps the arrivals that begin them; leave arrival out")
        if self.copies > 1 and self.arrival is not None:
            raise ValueError("copies: they keep the recorded arrivals; leave arrival out, or give it the whole rate")
        if self.image_tokens is not None and self.input_scale != 1.0:
            raise ValueError("image_tokens: images do not grow with the prompts; leave input_scale out")
        if self.shift_s is not None and self.copies == 1:
            raise ValueError("shift_s: there is one copy, and it is not shifted; add copies")
        return self


class TraceWorkload(Strict):
    """Requests read from a trace."""

    trace: Annotated[TraceConfig, doc("trace to replay")]
    max_tokens: Annotated[
        Count | None, doc("cap on the output of requests without their own; null: the trace's largest output")
    ] = None
    client: Annotated[ClientConfig | None, doc("timeouts and retries; null: none")] = None
    predictor: Annotated[Predictor | None, doc("predictions of output lengths; null: those of the trace")] = None

    @property
    def path(self) -> Path:
        """The trace's path: absolute, if the scenario came from `load`."""
        return Path(self.trace.path)

    def options(self, seed: int) -> "TraceOptions":
        """The options of the reader; `seed` is for the sample and the jitter."""
        from scenarios.traces.options import TraceOptions

        settings = self.trace.model_dump(exclude={"path", "arrival", "sessions"})
        return TraceOptions(**settings, seed=seed, max_tokens=self.max_tokens)
