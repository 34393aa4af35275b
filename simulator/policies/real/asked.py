"""A real scheduler in a process of its own: what it is told, asked and answers."""

import json
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, Self, cast

from simulator.division import cdiv
from simulator.errors import InputError
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.parameters import parameters_of
from simulator.plan import Chunk, Preemption, StepPlan, View
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.sglang import Sglang
from simulator.request import Request, RequestView
from simulator.speculative import Drafting, DraftingView

# A real scheduler in a process of its own: a user's Python that has vLLM, asked over a pipe.
#
# Nothing of the engine is imported here, and nothing of batchlab there: `programs/` holds what that Python runs.

EngineName = Literal["vllm", "sglang"]
VLLM: Final = "vllm"
SGLANG: Final = "sglang"
TITLES: Mapping[str, str] = {VLLM: "vLLM", SGLANG: "SGLang"}
_PROGRAM = Path(__file__).with_name("programs") / "serve.py"
_PATIENCE_S = 20.0  # for the process to end when its pipe is closed


class EngineProcess:
    """The process; `engine` and `version` are what its Python has. InputError where it has no such engine."""

    def __init__(self, python: str, engine: EngineName) -> None:
        self.python = python
        found = shutil.which(python)
        if found is None:
            raise InputError(no_program(python))
        # A file and not a pipe: what an engine prints there would fill it.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed with the process
        self._process = subprocess.Popen(
            [found, str(_PROGRAM), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
        )
        self.close = weakref.finalize(self, _end, self._process, self._errors)
        first = self._read()
        if "error" in first:
            hint = f"install it there, or name another Python: {first['error']}"
            raise InputError(f"{python} has no {TITLES[engine]} that can be asked", hint=hint)
        self.engine: EngineName = first["engine"]
        self.version: str = first["version"]

    @property
    def title(self) -> str:
        """The engine's name and version."""
        return f"{TITLES[self.engine]} {self.version}"

    def start(self, settings: Mapping[str, object]) -> None:
        """Make a new scheduler. InputError for a setting that this version does not have."""
        self._ask({"start": settings})

    def step(
        self,
        *,
        aborted: Sequence[str] = (),
        results: Sequence[Mapping[str, object]] = (),
        arrived: Sequence[Mapping[str, object]] = (),
        plan: bool = True,
    ) -> dict[str, Any]:
        """Tell the scheduler what happened since its last plan, and ask for the next.

        `results` are those of the oldest steps in flight, each as `told_results` has it. Returns who finished with them
        (`finished`), the free blocks then (`free_before`), and of the plan `scheduled` and `admitted` (tokens, and
        cached tokens, by request), `preempted` (with the tokens that the step had given them) and `free`; `waiting` and
        `running` unless the settings say `brief`; further entries are those of the engine's program. InputError if the
        scheduler fails.
        """
        return self._ask({"aborted": aborted, "results": results, "arrived": arrived, "plan": plan})

    def _ask(self, told: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(told) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        found = self._read()
        if "error" in found:
            raise SchedulerError(f"{self.title}: {found['error']}", found.get("key"))
        return found

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            found = json.loads(line)
        except ValueError:
            raise self._ended() from None
        assert isinstance(found, dict)
        return found

    def _ended(self) -> InputError:
        """The error for a process that no longer answers, with its own last words."""
        self._errors.seek(0)
        words = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return InputError(f"{self.python} ended without an answer: {words[-1] if words else 'it said nothing'}")


def has_sglang_alone(python: str) -> bool:
    """Whether the environment of this Python has SGLang and no vLLM, by the folders of its packages. It is not run."""
    found = shutil.which(python)
    places = [] if found is None else list(Path(found).parents[1].glob("lib/python3*/site-packages"))
    return any((place / SGLANG).is_dir() for place in places) and not any((place / VLLM).is_dir() for place in places)


class SchedulerError(InputError):
    """The scheduler refuses a setting, which `key` names with the engine's word, or fails in a step."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def told_results(
    ended: Sequence[str] = (), tokens: Mapping[str, int] | None = None, drafts: Mapping[str, int] | None = None
) -> dict[str, object]:
    """A step's results for `EngineProcess.step`: answers that `ended` with it, tokens where not one, new drafts."""
    more = {name: count for name, count in (tokens or {}).items() if count > 1}
    return {"ended": ended, "tokens": more, "drafts": {name: count for name, count in (drafts or {}).items() if count}}


def no_program(python: str) -> str:
    """The message for an interpreter that is not there."""
    return f"python names no program that can be run: {python}"


def _end(process: subprocess.Popen[str], errors: IO[str]) -> None:
    """Close the pipe, at which the program ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it has ended already
        process.stdin.close()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    errors.close()


# A real scheduler that is asked for plans: its settings and tokens, what it is told of a replica, and its answers.

# Tokens for a real scheduler: its prefix cache finds what batchlab's finds, as equal blocks have equal tokens.


class TokenBlocks:
    """Names for the blocks of requests: small numbers from 1 on, equal where the blocks' keys are."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._chains = Chains()
        self._names: dict[Hashable, int] = {}

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> Self | None:
        """Names as a scheduler with these settings takes them; None where it caches no prefixes."""
        return cls(settings["name_size"]) if settings["enable_prefix_caching"] else None

    def of(self, request: Request) -> list[int]:
        """The names of its leading blocks that other requests may have too; the others are its own."""
        keys = BlockKeys(request, self._size, self._chains)
        # A block more than it fills: with asynchronous scheduling one token too many is computed.
        count = min(keys.num_shared, cdiv(request.input_tokens + request.output_tokens, self._size) + 1)
        return [self._names.setdefault(key, len(self._names) + 1) for key in keys.first(count)[:count]]


# A scenario's engine in the words of a real scheduler.

# batchlab's key -> the engine's; None: no setting of the engine.
_VLLM: Mapping[str, str | None] = {
    "order": "policy",
    "reserve_full_isl": "scheduler_reserve_full_isl",
    "version": None,
    "dp_sync_interval": None,  # of ranks, which are asked one by one
}
_SGLANG: Mapping[str, str | None] = {
    "order": "schedule_policy",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": None,
}


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory of a replica: `num_blocks` usable blocks, without vLLM's null block."""

    num_blocks: int
    block_size: int
    caches_prefixes: bool


def engine_settings(
    engine: EngineName,
    policy: object,
    memory: Memory,
    further: Mapping[str, object] | None = None,
    drafting: Drafting | None = None,
) -> dict[str, Any]:
    """The settings of `EngineProcess.start` for a policy: its parameters of these names, else their defaults.

    `further` are settings of the engine's own. `name_size` is the tokens of a named block (`TokenBlocks`): one where a
    block's hash covers tokens behind it.
    """
    owner, names = (Sglang, _SGLANG) if engine == SGLANG else (ChunkedPrefill, _VLLM)
    found: dict[str, Any] = {}
    for key, parameter in parameters_of(owner).items():
        name = names.get(key, key)
        if name is not None:
            found[name] = getattr(policy, key, parameter.default)
    if engine == SGLANG:
        # Where SGLang has numbers of its own, the policy has the budget of a step.
        step = int(getattr(policy, "max_num_batched_tokens", 8192))
        chunk, begin = found["chunked_prefill_size"], found["max_prefill_tokens"]
        whole = chunk == -1
        found["chunked_prefill_size"] = -1 if whole else min(step, int(chunk or step))
        found["max_prefill_tokens"] = min(int(begin or step), step) if whole else int(begin or step)
        found["max_running_requests"] = min(step, int(found["max_running_requests"]))
    found |= {
        "async_scheduling": bool(found["async_scheduling"]),
        "block_size": memory.block_size,
        "num_gpu_blocks": memory.num_blocks + 1,
        "enable_prefix_caching": memory.caches_prefixes,
        "name_size": memory.block_size,
        "brief": False,
    }
    if drafting is not None:
        found |= {"speculative_config": asdict(drafting.config), "max_model_len": drafting.max_model_len}
        found["name_size"] = 1 if drafting.config.num_hash_lookahead_tokens else memory.block_size
    return {**found, **(further or {})}


def scenario_key(key: str) -> str:
    """The scenario's key for a setting of the engine."""
    return next((own for own, name in (*_VLLM.items(), *_SGLANG.items()) if name == key), key)


# What the scheduler is told, and its answers.


class Asked:
    """The scheduler of one replica, started with the first plan; see `simulator.policy_traits.Companion`.

    It is asked exactly once for each step. A step's results are told before the first plan that may know them: the
    next one, or with `depth` 2 (asynchronous scheduling) the one after.
    """

    def __init__(self, python: str, engine: EngineName, depth: int) -> None:
        self._python = python
        self._engine = engine
        self._depth = depth
        self._process: EngineProcess | None = None
        self._tokens: TokenBlocks | None = None
        self._arrived: list[tuple[Request, RequestView]] = []
        self._views: dict[int, RequestView] = {}  # the requests that the scheduler has, by row
        self._by_id: dict[str, RequestView] = {}
        self._in_flight = 0  # steps whose results it has not been told
        self._finished: list[RequestView] = []
        self._outputs: dict[int, int] = {}  # tokens of answers that it has been told, by row, where drafts are verified
        self._aborted: list[str] = []
        self._computed: list[tuple[RequestView, int]] = []  # by those admitted in the last step, when it is over

    def arrived(self, request: Request, view: RequestView) -> None:
        """See `Companion`."""
        self._arrived.append((request, view))

    def ended(self, row: int, *, aborted: bool) -> None:
        """See `Companion`."""
        view = self._views.pop(row, None)
        if view is None:  # it came and went between two plans
            self._arrived = [(request, view) for request, view in self._arrived if request.row != row]
            return
        del self._by_id[view.request_id]
        if aborted:
            self._aborted.append(view.request_id)
            self._outputs.pop(row, None)
        else:
            self._finished.append(view)

    def plan(self, view: View, policy: object, further: Mapping[str, object] | None) -> StepPlan:
        """The scheduler's plan. InputError where it finds another prefix in its cache than batchlab's cache has."""
        self._check_prefixes(view)
        told = self._told(view, policy, further)
        if told is None:
            return _NOTHING
        assert self._process is not None
        found = self._process.step(**told)
        if not told["plan"]:
            return _NOTHING
        self._in_flight += 1
        return self._plan(view, found)

    def _told(self, view: View, policy: object, further: Mapping[str, object] | None) -> dict[str, Any] | None:
        """What happened since the last plan; None if there is nothing to tell and nothing to plan."""
        if not (self._views or self._arrived or self._in_flight):
            return None
        if self._process is None:
            self._process = EngineProcess(self._python, self._engine)
            memory = Memory(view.num_blocks, view.block_size, view.caches_prefixes)
            settings = engine_settings(self._engine, policy, memory, further, view.drafting)
            self._process.start({**settings, "brief": True})
            self._tokens = TokenBlocks.of_settings(settings)
        # A server at rest has seen all results.
        settled = max(0, self._in_flight - self._depth + 1) if self._views else self._in_flight
        results = [told_results() for _ in range(settled)]
        if results:
            verified = {} if view.drafting is None else self._verified()
            results[0] = told_results([live.request_id for live in self._finished], **verified)
            self._finished = []
            self._in_flight -= settled
        aborted, self._aborted = self._aborted, []
        arrived = []
        for request, live in self._arrived:
            self._views[request.row] = self._by_id[request.request_id] = live
            arrived.append(told_request(request, self._tokens))
        self._arrived = []
        return {"aborted": aborted, "results": results, "arrived": arrived, "plan": bool(self._views)}

    def _verified(self) -> dict[str, dict[str, int]]:
        """The tokens of the oldest step in flight, and drafts for the next one."""
        outputs, tokens, drafts = self._outputs, {}, {}
        for live in (*self._finished, *self._views.values()):
            told = outputs.get(live.row, 0)
            outputs[live.row] = known = live.output_tokens_so_far
            tokens[live.request_id] = known - told
            ahead = live.num_tokens_to_compute - live.num_tokens + live.num_computed_tokens
            drafts[live.request_id] = ahead - cast(DraftingView, live).num_output_placeholders
        for live in self._finished:
            del outputs[live.row]
        return {"tokens": tokens, "drafts": drafts}

    def _plan(self, view: View, found: Mapping[str, Any]) -> StepPlan:
        requests, scheduled = self._by_id, found["scheduled"]
        preempt = tuple(
            [Preemption(requests[request_id], scheduled_tokens=given) for request_id, given in found["preempted"]]
        )
        victims = {preemption.request for preemption in preempt}
        if view.drafting is not None:  # each request that computes has a chunk
            parts = tuple([Chunk(requests[request_id], tokens) for request_id, tokens in scheduled.items()])
            passed = tuple([requests[request_id] for request_id in found["passed"]])
            self._note_computed(view, found)
            return StepPlan(preempt=preempt, prefill=parts, decode=False, paused=passed)
        chunks = [
            Chunk(requests[request_id], tokens)
            for request_id, tokens in scheduled.items()
            if not requests[request_id].is_decoding or requests[request_id] in victims
        ]
        paused: tuple[RequestView, ...] = ()
        if len(scheduled) - len(chunks) < view.num_decoding:
            paused = tuple(
                [
                    request
                    for request in view.running
                    if request.is_decoding and request.request_id not in scheduled and request not in victims
                ]
            )
        self._note_computed(view, found)
        return StepPlan(preempt=preempt, prefill=tuple(chunks), paused=paused)

    def _note_computed(self, view: View, found: Mapping[str, Any]) -> None:
        """Note what the admitted requests will have computed at the next plan, as the scheduler sees it.

        The padding of an admission is rejected by then, unless results come a step later.
        """
        if view.caches_prefixes:
            cached, scheduled = found["admitted"], found["scheduled"]
            padding = found.get("spec", {}) if self._depth == 1 else {}
            self._computed = [
                (self._by_id[name], tokens + scheduled[name] - padding.get(name, 0)) for name, tokens in cached.items()
            ]

    def _check_prefixes(self, view: View) -> None:
        """Hold the cached tokens of the last admissions against batchlab's own cache."""
        for request, tokens in self._computed:
            if request.row in self._views and request.num_computed_tokens != tokens:
                assert self._process is not None
                raise InputError(
                    f"{self._process.title} has computed or cached {tokens:,} tokens of request {request.request_id} "
                    f"at {round(view.now_s, 6)} s, and batchlab {request.num_computed_tokens:,}: their prefix caches "
                    "differ; the run goes on with enable_prefix_caching: false"
                )
        self._computed = []


_NOTHING = StepPlan(decode=False)


def told_request(request: Request, tokens: TokenBlocks | None) -> dict[str, object]:
    """A request as `EngineProcess.step` takes it."""
    return {
        "id": request.request_id,
        "prompt_tokens": request.input_tokens,
        "max_tokens": request.max_tokens,
        "priority": request.priority,
        "blocks": [] if tokens is None else tokens.of(request),
    }


# Answers of SGLang's scheduler as plans.


class AskedSglang(Asked):
    """SGLang's scheduler of one replica. Its plans say too what its radix tree was asked, which evicts by last use."""

    def _plan(self, view: View, found: Mapping[str, Any]) -> StepPlan:
        requests, scheduled = self._by_id, found["scheduled"]
        victims = [requests[request_id] for request_id, _ in found["preempted"]]
        batch = [requests[request_id] for request_id in scheduled]
        prompts = [request for request in batch if not request.is_decoding]
        stay = [request for request in view.running if request not in victims] if victims else list(view.running)
        decoding = len(batch) - len(prompts)
        paused = []
        if decoding and decoding < view.num_decoding:
            paused = [request for request in stay if request.is_decoding and request.request_id not in scheduled]
        after = [*stay, *[request for request in prompts if request not in view.running]]
        # Prompts join the batch at its end; the decodes move only where SGLang has them in another order.
        place = after[-len(batch) :] if prompts else [request for request in after if request.request_id in scheduled]
        tried = found["tried"]
        self._note_computed(view, found)
        return StepPlan(
            preempt=tuple([Preemption(request) for request in victims]),
            prefill=tuple([Chunk(request, scheduled[request.request_id]) for request in prompts]),
            decode=decoding > 0,
            paused=tuple(paused),
            tried=None if tried is None else tuple([requests[request_id] for request_id in tried]),
            to_end=() if place == batch else tuple(batch),
            withheld=found["withheld"],
        )
