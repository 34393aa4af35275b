"""A call and what it asks of the simulation: the keys of its body, how many tokens go in, and how many come out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Annotated, Any, Literal, TypeVar, cast
from zlib import crc32

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.responses import Response

from scenarios.assembly.workloads import build_workload
from scenarios.random_draws import stream
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceWorkload
from simulator.request import PromptContent, Request
from simulator.workload import uniform

# The keys of a request's body, OpenAI's and those that vLLM adds, and how a wrong one is refused.

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


# Texts as tokens, and answers as words: a stand-in for the model's tokenizer, which batchlab does not have.
#
# A token is a word of up to eight letters with the blank before it (a longer word is several), up to three digits,
# up to three signs, or blanks: English text comes to about five characters a token, where Llama 3's tokenizer has
# four to five. A client that needs exact counts sends token ids. The id of a token is a checksum of it, so equal
# texts have equal ids, which is all that a prefix cache asks for.

VOCABULARY = 100_000
_TOKEN = re.compile(r" ?[^\W\d_]{1,8}| ?\d{1,3}| ?(?:[^\w\s]|_){1,3}|\s{1,8}")
_TEXT = """
the of and to in is that it was for on are as with they at be this from have or by one had not but what all were when
we there can an your which their if will each about how up out them then she many some so these would other into has
more her two like him see time could no make than first been its who now people my made over did down only way find
use may water long little very after word just where most know get through back much go good new our me man too any
day same right look think also around another came come work three must because does part even place well such here
take why help put years away again off went old number great tell men say small every found still between name should
home big give air line set own under read last never us left end along while might next
"""
_WORDS = _TEXT.split()
_MASK = (1 << 64) - 1


def token_id(piece: str) -> int:
    """The id of a token."""
    return crc32(piece.encode("utf-8", "surrogatepass")) % VOCABULARY


_BEGIN = [token_id(word) for word in _WORDS]
_GO_ON = [token_id(f" {word}") for word in _WORDS]


class Tokenizer:
    """Remembers the tokens it has seen, to turn ids back into text."""

    def __init__(self) -> None:
        self._pieces = dict(zip([*_BEGIN, *_GO_ON], [*_WORDS, *(f" {word}" for word in _WORDS)], strict=True))

    def count(self, text: str) -> int:
        """Count the tokens of a text."""
        return sum(1 for _ in _TOKEN.finditer(text))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        pieces: list[str] = _TOKEN.findall(text)
        ids = [token_id(piece) for piece in pieces]
        self._pieces.update(zip(ids, pieces, strict=True))  # at most one for each id
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of these tokens, with a word for an id that no text had."""
        return "".join([self._pieces.get(each) or f" {_WORDS[each % len(_WORDS)]}" for each in ids])


class Answer:
    """The words of an answer, one a token: `key` decides which. Made as they are asked for."""

    __slots__ = ("_end", "_key")

    def __init__(self, key: int, *, end: int | None = None) -> None:
        self._key = key
        self._end = end  # where a stop string cuts the text off, in characters

    def _word(self, place: int) -> int:
        mixed = (self._key + (place + 1) * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        return (mixed >> 32) % len(_WORDS)

    def text(self, start: int, stop: int) -> str:
        """The text of tokens `start` to `stop` (excluded)."""
        text = self._whole(start, stop)
        return text if self._end is None else text[: max(0, self._end - len(self._whole(0, start)))]

    def _whole(self, start: int, stop: int) -> str:
        text = " ".join([_WORDS[self._word(place)] for place in range(start, stop)])
        return f" {text}" if start and text else text

    def ids(self, tokens: int) -> tuple[int, ...]:
        """The ids of its first tokens, as `Tokenizer.encode` has them."""
        return tuple([(_GO_ON if place else _BEGIN)[self._word(place)] for place in range(tokens)])

    def stopped(self, stops: Sequence[str], tokens: int, min_tokens: int) -> tuple[Answer, int] | None:
        """The answer cut off before the first stop string among its first tokens, and how many tokens that takes.

        None where there is none. A stop string that is complete within `min_tokens` does not count.
        """
        ends = list(accumulate(len(self._whole(place, place + 1)) for place in range(tokens)))
        text = self._whole(0, tokens)
        found = []
        for stop in stops:
            begin = text.find(stop)
            while begin >= 0:
                needed = next(place for place, end in enumerate(ends, 1) if end >= begin + len(stop))
                if needed > min_tokens:
                    found.append((begin, needed))
                    break
                begin = text.find(stop, begin + 1)
        if not found:
            return None
        begin, needed = min(found)
        return Answer(self._key, end=begin), needed


_POOL = 2048  # requests drawn of a closed loop


class Lengths:
    """Draws the lengths of answers, before any cap, from those of a class or of all requests.

    Equal seeds and keys make equal lengths. `adapters` are the names of those that the scenario's requests ask for.
    """

    def __init__(self, scenario: Scenario) -> None:
        workload = build_workload(scenario)
        parts = [workload, *(loop.draw(_POOL) for loop in workload.loops)]
        self.classes = tuple(dict.fromkeys(name for part in parts for name in part.class_names))
        self._priorities = {
            name: int(part.priority[part.class_index == index][:1].sum())
            for part in reversed(parts)
            for index, name in enumerate(part.class_names)
        }
        self._of_all = np.sort(np.concatenate([part.output_tokens for part in parts]))
        of_class = {name: [part for part in parts if name in part.class_names] for name in self.classes}
        self._of_class = {
            name: np.sort(np.concatenate([p.output_tokens[p.class_index == p.class_names.index(name)] for p in own]))
            for name, own in of_class.items()
        }
        self._stream = int(stream(scenario.seed, "", "answers").integers(2**63))
        asked = {lora for part in parts for lora in part.lora or () if lora is not None}
        for entry in () if isinstance(scenario.workload, TraceWorkload) else scenario.workload.classes or ():
            if entry.lora is not None:
                asked |= {entry.lora.adapter(entry.name, rank + 1) for rank in range(entry.lora.adapters)}
        self.adapters = tuple(sorted(asked))

    def priority(self, class_name: str | None) -> int:
        """Return the priority of the first request of a class; 0 for no class."""
        return 0 if class_name is None else self._priorities[class_name]

    def draw(self, key: int, class_name: str | None) -> int:
        """Return the length of an answer in tokens, at least 1."""
        of_class = () if class_name is None else self._of_class[class_name]
        lengths = of_class if len(of_class) else self._of_all
        return max(1, int(lengths[int(uniform(self._stream, key) * len(lengths))]))


def key_of(*what: object) -> int:
    """Return a key that belongs to these values."""
    return int.from_bytes(sha256(repr(what).encode("utf-8", "surrogatepass")).digest()[:8], "little")


_NAME = re.compile(r"[\w.:/+=@-]{1,200}")


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a call. `tokens` are all that it will have."""

    prompt_tokens: int
    tokens: int
    finish_reason: str
    answer: Answer
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A call as the simulation takes it: a request for each choice, prompt after prompt. `name` is the answer's id."""

    name: str
    requests: Sequence[Request]
    choices: Sequence[Choice]
    prompts: int


class Reader:
    """Makes submissions of calls. `model_name` is the model that is served, `adapters` are its LoRA adapters."""

    def __init__(self, scenario: Scenario, model_name: str) -> None:
        self.model_name = model_name
        self.max_model_len = scenario.resolve_model().max_model_len
        self.tokenizer = Tokenizer()
        self._lengths = Lengths(scenario)
        self.adapters = self._lengths.adapters
        self._seed = scenario.seed
        routed = scenario.num_replicas > 1 and "block_size" in scenario.routing.resolved()
        groups = [scenario.engine, *(group.engine for group in scenario.fleet or ())]
        self._keeps_content = routed or any(_caches(engine) for engine in groups)
        self._ranks = scenario.num_replicas if scenario.routing.kind == "vllm_dp" else 0
        self._given: dict[str, int] = {}  # names that clients gave, and how often

    def check_model(self, name: str | None) -> None:
        """Refuse what is neither the model that is served nor one of its adapters."""
        if name is not None and name != self.model_name and name not in self.adapters:
            raise RefusedError(404, f"The model `{name}` does not exist.", "model")

    def read(self, call: CompletionCall | ChatCall, row: int, headers: Mapping[str, str]) -> Submission:
        """Turn a call into requests, the first in this row. Raises RefusedError for a call that cannot be answered."""
        self.check_model(call.model)
        prompts = call.prompts if isinstance(call, CompletionCall) else [call.prompt]
        if not prompts:
            raise RefusedError(400, "prompt: there is none", "prompt")
        name = self._name("chatcmpl" if isinstance(call, ChatCall) else "cmpl", row, headers)
        session, rank = headers.get("x-session-id", ""), self._rank(headers)
        requests: list[Request] = []
        choices: list[Choice] = []
        alone = len(prompts) * call.n == 1
        for prompt in prompts:
            ids = self._ids(prompt)
            count = self.tokenizer.count(prompt) if isinstance(prompt, str) else len(prompt)
            cap = self._cap(call, count)
            for _ in range(call.n):
                place = len(choices)
                choice = self._choice(call, prompt, count, cap, row + place, place)
                choices.append(choice)
                content = None
                if ids is not None:
                    answer = choice.answer.ids(choice.tokens)
                    content = PromptContent(prompt_token_ids=tuple(ids), output_token_ids=answer)
                requests.append(
                    Request(
                        row=0,
                        request_id=name if alone else f"{name}-{place}",
                        arrival_s=0.0,
                        input_tokens=count,
                        output_tokens=choice.tokens,
                        max_tokens=cap,
                        priority=self._priority(call),
                        class_name=self._class(call) or "default",
                        session_id=session if _NAME.fullmatch(session) else None,
                        content=content,
                        data_parallel_rank=rank,
                        lora=call.model if call.model in self.adapters else None,
                    )
                )
        return Submission(name, requests, choices, len(prompts))

    def _rank(self, headers: Mapping[str, str]) -> int | None:
        """Return the rank that the client asks for; None if it does not, or the replicas are no ranks of one server."""
        given = headers.get("x-data-parallel-rank", "")
        if not self._ranks or not re.fullmatch(r"-?\d{1,9}", given):  # vLLM passes over what is no number
            return None
        if not 0 <= int(given) < self._ranks:
            raise RefusedError(400, f"data_parallel_rank {given} is out of range [0, {self._ranks}).")
        return int(given)

    def _name(self, kind: str, row: int, headers: Mapping[str, str]) -> str:
        """Return a unique id of the answer: with the client's own X-Request-Id, or the number of the request."""
        given = headers.get("x-request-id", "")
        if not _NAME.fullmatch(given):
            return f"{kind}-{row}"
        times = self._given[given] = self._given.get(given, 0) + 1
        return f"{kind}-{given}" if times == 1 else f"{kind}-{given}#{times}"

    def _ids(self, prompt: str | list[int]) -> list[int] | None:
        """Return the token ids of a prompt; None where nothing depends on them."""
        if not self._keeps_content:
            return None
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _cap(self, call: Call, prompt_tokens: int) -> int:
        """Return the most tokens that the answer may have."""
        if prompt_tokens == 0:
            raise RefusedError(400, "prompt: it has no token", "prompt")
        room = self.max_model_len - prompt_tokens
        asked = call.max_tokens
        if room < 1 or (asked is not None and asked > room):
            wants = f"{asked} in the completion" if asked is not None else "at least 1 in the completion"
            what = f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
            raise RefusedError(400, f"{what}{prompt_tokens} tokens in the messages and {wants}.", "max_tokens")
        return room if asked is None else asked

    def _class(self, call: Call) -> str | None:
        """Return the scenario's class that the call's `user` names; None for any other."""
        return call.user if call.user in self._lengths.classes else None

    def _priority(self, call: Call) -> int:
        """Return the call's own priority, else that of its class."""
        return self._lengths.priority(self._class(call)) if call.priority is None else call.priority

    def _choice(
        self, call: Call, prompt: str | list[int], prompt_tokens: int, cap: int, row: int, place: int
    ) -> Choice:
        # The same call gets the same answer where the client asks for that: by a seed, or without a temperature.
        same = call.seed is not None or call.temperature == 0
        key = key_of(self._seed, call.seed, prompt, place) if same else key_of(self._seed, row)
        tokens, reason = cap, "length"
        if not call.ignore_eos:
            drawn = max(self._lengths.draw(key, self._class(call)), min(call.min_tokens, cap))
            if drawn < cap:
                tokens, reason = drawn, "stop"
        answer = Answer(key)
        if call.stops and (stopped := answer.stopped(call.stops, tokens, call.min_tokens)) is not None:
            (answer, tokens), reason = stopped, "stop"
        echo = ""
        if isinstance(call, CompletionCall) and call.echo:
            echo = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        return Choice(prompt_tokens, tokens, reason, answer, echo)


def _caches(engine: object) -> bool:
    if isinstance(engine, Mapping):
        return bool(engine.get("enable_prefix_caching"))
    return bool(getattr(engine, "enable_prefix_caching", False))
