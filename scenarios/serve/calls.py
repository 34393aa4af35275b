"""The keys of a request's body, OpenAI's and those that vLLM adds, and how a wrong one is refused."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.responses import Response

# Errors in OpenAI's shape, with vLLM's types: {"error": {"message", "type", "param", "code"}}.

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "BadRequestError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class RefusedError(Exception):
    """A request that gets no answer, with the HTTP status that says why; `param` is the key that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        kind = _TYPES.get(self.status, "APIError")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode()

    def response(self) -> Response:
        """The error as an HTTP response. A client may try again after an overload."""
        headers = {"Retry-After": "1"} if self.status in (429, 503) else None
        return Response(self.body, self.status, headers, "application/json")


MOST_CHOICES = 128
_MOST = 2**31

TokenIds = list[Annotated[int, Field(ge=0, lt=_MOST)]]
_Call = TypeVar("_Call", bound=BaseModel)


class StreamOptions(BaseModel):
    """Options of a stream beside the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Call(BaseModel):
    """The keys that both kinds of completions take."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=_MOST)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=_MOST)] = 0
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    priority: Annotated[int, Field(ge=-_MOST, lt=_MOST)] | None = None
    user: str | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    @model_validator(mode="after")
    def _goes_together(self) -> Call:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream: true")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens must be at most max_tokens = {self.max_tokens}, got {self.min_tokens}")
        return self


class CompletionCall(Call):
    """The body of /v1/completions. `prompt` is a text, token ids, or several of either."""

    prompt: str | TokenIds | list[str] | list[TokenIds]
    max_tokens: Annotated[int, Field(ge=1, lt=_MOST)] | None = 16
    echo: bool = False
    suffix: None = None
    logprobs: None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or several."""
        prompt = self.prompt
        is_one = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        return cast("list[str] | list[list[int]]", [prompt] if is_one else prompt)


class Part(BaseModel):
    """A part of a message."""

    type: Literal["text", "input_text", "refusal"] = "text"
    text: str = ""


class Message(BaseModel):
    """A message of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=100)]
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """The text of all parts."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatCall(Call):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=_MOST)] | None = None
    logprobs: Literal[False] | None = None

    @model_validator(mode="after")
    def _newest_name(self) -> ChatCall:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self

    @property
    def prompt(self) -> str:
        """The conversation as one text that ends where the answer begins."""
        return conversation(self.messages)


class TokenizeCall(BaseModel):
    """The body of /tokenize: a prompt, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeCall:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give one of prompt and messages")
        return self

    @property
    def text(self) -> str:
        """The text to be counted."""
        return self.prompt if self.prompt is not None else conversation(self.messages or [])


class DetokenizeCall(BaseModel):
    """The body of /detokenize."""

    model: str | None = None
    tokens: TokenIds


def conversation(messages: list[Message]) -> str:
    """Write a conversation as one text: each message under its role, then the role whose turn it is."""
    return "".join(f"<|{message.role}|>\n{message.text}\n" for message in messages) + "<|assistant|>\n"


def parsed(kind: type[_Call], body: bytes) -> _Call:
    """Read a body as `kind`. Raises RefusedError for one that is no JSON, or not such a body."""
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not JSON") from None
    if not isinstance(data, dict):
        raise RefusedError(400, "the body must be a JSON object")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        told = first["msg"].removeprefix("Value error, ")
        raise RefusedError(400, f"{param}: {told}" if param else told, param) from None
