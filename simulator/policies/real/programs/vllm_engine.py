"""vLLM's v1 scheduler (0.11 and later, forks too) without model and GPU: see `serve` for what is asked of it.

Real are the scheduler, its queues and its block pool. The forward pass is not: a request that has computed all of its
tokens is given the next one. Imported in the user's own Python alone.
"""

from __future__ import annotations  # the Python may be older than batchlab's

import dataclasses
import importlib
import inspect
import logging
import os
from collections import deque
from types import SimpleNamespace
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
os.environ.setdefault("VLLM_USE_V1", "1")
logging.disable(logging.WARNING)


def _from(module: str, *names: str) -> Any:
    """Objects of a module of vLLM: one alone, or several."""
    found = importlib.import_module(f"vllm.{module}")
    return getattr(found, names[0]) if len(names) == 1 else [getattr(found, name) for name in names]


# Without a device vLLM finds no platform; that of the CPU must be set before anything asks for one.
platforms: Any = importlib.import_module("vllm.platforms")
platforms._current_platform = _from("platforms.cpu", "CpuPlatform")()

CacheConfig, SchedulerConfig, VllmConfig = _from("config", "CacheConfig", "SchedulerConfig", "VllmConfig")
KVCacheConfig, KVCacheGroupSpec, FullAttentionSpec = _from(
    "v1.kv_cache_interface", "KVCacheConfig", "KVCacheGroupSpec", "FullAttentionSpec"
)
make_hasher, init_none_hash = _from("v1.core.kv_cache_utils", "get_request_block_hasher", "init_none_hash")
Request, RequestStatus = _from("v1.request", "Request", "RequestStatus")
ModelRunnerOutput = _from("v1.outputs", "ModelRunnerOutput")
SamplingParams = _from("sampling_params", "SamplingParams")
sha256 = _from("utils.hashing", "sha256")

NAME = "vllm"
VERSION = importlib.import_module("importlib.metadata").version("vllm")
STOP = 0  # the token that ends an answer before its max_tokens
_LONGEST = 10_000_000  # max_model_len: batchlab's requests have no other bound than the memory
_OWN = 1 << 60  # where tokens begin that no other request has
_NEUTRAL = (None, False, 0, 1)  # values that ask nothing of a version without the setting


class Model:
    """A model without any special ability, for a scheduler that asks for some."""

    runner_type = "generate"
    skip_tokenizer_init = True

    def __init__(self, max_model_len: int) -> None:
        self.max_model_len = max_model_len

    def __getattr__(self, name: str) -> bool:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


def _given(cls: Any, **wanted: Any) -> Any:
    """An instance of `cls`, made with those of `wanted` that its constructor takes in this version."""
    known = inspect.signature(cls).parameters
    return cls(**{name: value for name, value in wanted.items() if name in known})


def _scheduler_config(settings: dict[str, Any], refusal: Any) -> Any:
    """The scheduler's settings. Raises a `refusal` of one that this version does not have."""
    known = inspect.signature(SchedulerConfig).parameters
    settings = dict(settings)
    in_chunks = settings.pop("enable_chunked_prefill")
    asynchronous = settings.pop("async_scheduling")
    if "scheduler_reserve_full_isl" not in known:
        settings.pop("scheduler_reserve_full_isl", None)  # batchlab says by `version` what was done before it
    for name, value in list(settings.items()):
        if name not in known:
            if value is True or value not in _NEUTRAL:
                raise refusal(name, f"it has no setting {name}, which is {value!r} here")
            del settings[name]
    try:
        config = _given(SchedulerConfig, max_model_len=_LONGEST, is_encoder_decoder=False, **settings)
    except ValueError as error:
        words = " ".join(str(error).split())
        raise refusal(next((name for name in settings if name in words), "policy"), words) from error
    # Without chunks the constructor wants max_model_len below the budget: a model's bound, which batchlab's are not.
    for name in ("enable_chunked_prefill", "chunked_prefill_enabled"):
        if hasattr(config, name):
            object.__setattr__(config, name, in_chunks)
    object.__setattr__(config, "async_scheduling", asynchronous)
    return config


def _speculative_config(told: dict[str, Any], refusal: Any) -> Any:
    """vLLM's SpeculativeConfig with what batchlab has checked. Its constructor would want the models themselves."""
    given = dict(told)
    modules, runner = given.pop("num_nextn_predict_layers"), given.pop("model_runner")
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    cls = _from("config", "SpeculativeConfig")
    config = object.__new__(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name, field in fields.items():
        value: Any = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = None if value is dataclasses.MISSING else value
        object.__setattr__(config, name, value.get_default() if hasattr(value, "get_default") else value)
    drafter = SimpleNamespace(hf_config=SimpleNamespace(num_nextn_predict_layers=modules, n_predict=modules))
    ranges = given["num_speculative_tokens_per_batch_size"]
    given["num_speculative_tokens_per_batch_size"] = [tuple(each) for each in ranges] if ranges else None
    for name, value in {**given, "draft_model_config": drafter}.items():
        if name in fields:
            object.__setattr__(config, name, value)
        elif value not in _NEUTRAL:
            raise refusal("speculative_config", f"its SpeculativeConfig has no {name}, which is {value!r} here")
    return config


class Engine:
    """A scheduler of vLLM with these settings, and its steps in flight. `refusal` is the error for a setting."""

    def __init__(self, settings: dict[str, Any], refusal: Any) -> None:
        settings = dict(settings)
        size, blocks = settings.pop("block_size"), settings.pop("num_gpu_blocks")
        caching = settings.pop("enable_prefix_caching")
        self.brief, self.name_size = settings.pop("brief"), settings.pop("name_size")
        drafts, longest = settings.pop("speculative_config", None), settings.pop("max_model_len", _LONGEST)
        wanted = _scheduler_config(settings, refusal)
        config = VllmConfig(scheduler_config=wanted, cache_config=CacheConfig())
        # The platform of the CPU has changed some of it.
        given = {name: getattr(wanted, name) for name in (*settings, "async_scheduling") if hasattr(wanted, name)}
        given |= {name: settings[name] for name in given if name in settings}
        for name, value in given.items():
            object.__setattr__(config.scheduler_config, name, value)
        for name, value in {"block_size": size, "num_gpu_blocks": blocks, "enable_prefix_caching": caching}.items():
            object.__setattr__(config.cache_config, name, value)
        object.__setattr__(config, "model_config", Model(longest))
        drops = False
        if drafts is not None:
            speculative = _speculative_config(drafts, refusal)
            object.__setattr__(config, "speculative_config", speculative)
            drops = bool(getattr(speculative, "use_eagle_block_drop", speculative.use_eagle)())
        torch = importlib.import_module("torch")
        spec = _given(
            FullAttentionSpec, block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32, use_mla=False
        )
        group = _given(KVCacheGroupSpec, layer_names=["layer"], kv_cache_spec=spec, is_eagle_group=drops)
        kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group])
        kind = ("async_scheduler", "AsyncScheduler") if settings["async_scheduling"] else ("scheduler", "Scheduler")
        managed = _from("v1.structured_output", "StructuredOutputManager")(config)
        known = inspect.signature(_from("v1.core.sched.scheduler", "Scheduler")).parameters
        parts = {"block_size": size, "structured_output_manager": managed, "log_stats": False}
        self.scheduler: Any = _from(f"v1.core.sched.{kind[0]}", kind[1])(
            vllm_config=config,
            kv_cache_config=kv,
            **{name: value for name, value in parts.items() if name in known},
        )
        init_none_hash(sha256)
        ahead = getattr(config, "num_hash_lookahead_tokens", 0)
        self.hasher = make_hasher(size, sha256, *([ahead] if ahead else [])) if caching else None
        # With asynchronous scheduling the scheduler itself sets places for drafts.
        self.tells_drafts = drafts is not None and not settings["async_scheduling"]
        self.flight: deque[tuple[Any, set[str]]] = deque()
        self.blocks: dict[str, tuple[int, list[int]]] = {}  # of unfinished requests: their number, their blocks' names
        self.added = 0
        self.given: dict[str, int] = {}  # tokens that this step has given a request so far
        self.preempted: list[tuple[str, int]] = []
        self.lacking = ""  # the last request whose blocks were not there
        self.passed: list[str] = []  # victims without tokens of another request
        self._watch()

    def _watch(self) -> None:
        """Note who is preempted, and which tokens the step had given it by then: no output tells."""
        scheduler, memory = self.scheduler, self.scheduler.kv_cache_manager
        allocate = memory.allocate_slots

        def allocate_slots(request: Any, num_new_tokens: int, *more: Any, **named: Any) -> Any:
            found = allocate(request, num_new_tokens, *more, **named)
            if found is None:
                self.lacking = request.request_id
            else:
                self.given[request.request_id] = num_new_tokens
            return found

        memory.allocate_slots = allocate_slots
        # Before 0.13 nothing but the queue is told.
        owner, name = scheduler, "_preempt_request"
        if not hasattr(scheduler, name):
            owner, name = scheduler.waiting, "prepend_request"
        tell = getattr(owner, name)

        def told(request: Any, *more: Any, **named: Any) -> Any:
            if owner is scheduler or request.status == RequestStatus.PREEMPTED:
                self._preempts(request.request_id)
            return tell(request, *more, **named)

        setattr(owner, name, told)

    def _preempts(self, request_id: str) -> None:
        if request_id in self._running:  # else a waiting one that goes back to its place
            self.preempted.append((request_id, self.given.pop(request_id, 0)))
            if not self.preempted[-1][1] and request_id != self.lacking:
                self.passed.append(request_id)

    @property
    def free(self) -> int:
        """Free blocks, cached ones that nobody uses included."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def _tokens(self, request_id: str, first: int, end: int) -> list[int]:
        """The tokens from place `first` to before `end`: named blocks have the tokens of that name everywhere."""
        number, names = self.blocks[request_id]
        size, found = self.name_size, []
        for place in range(first, end):
            block = place // size
            found.append(names[block] * size + place % size if block < len(names) else _OWN + (number << 28) + place)
        return found

    def add(self, told: dict[str, Any]) -> None:
        """A request arrives."""
        request_id, tokens = told["id"], told["prompt_tokens"]
        self.added += 1
        self.blocks[request_id] = self.added, told["blocks"]
        prompt = [1] * tokens if self.hasher is None else self._tokens(request_id, 0, tokens)
        params = SamplingParams(max_tokens=told["max_tokens"], ignore_eos=True, temperature=0.0, stop_token_ids=[STOP])
        made = _given(
            Request,
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            eos_token_id=None,
            arrival_time=float(self.added),  # unique, in order
            priority=told["priority"],
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(made)

    def abort(self, request_id: str) -> None:
        """A client has given up."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self.blocks.pop(request_id, None)

    def rest(self) -> None:
        """There is nothing to plan."""

    def settle(self, told: dict[str, Any]) -> list[str]:
        """The results of the oldest step in flight, as `serve` has them. Returns who has finished."""
        output, sampled = self.flight.popleft()
        requests = self.scheduler.requests
        ids = list(output.num_scheduled_tokens)
        there = [request_id for request_id in ids if request_id in requests]
        stops = set(told["ended"])
        tokens: list[Any] = []
        for request_id in ids:
            given = []
            if request_id in sampled:
                given = [STOP]
                if request_id in requests:
                    place = requests[request_id].num_tokens
                    given = self._tokens(request_id, place, place + told["tokens"].get(request_id, 1))
                    if request_id in stops:
                        given[-1] = STOP
            tokens.append(given)
        kind = str(inspect.signature(ModelRunnerOutput).parameters["sampled_token_ids"].annotation)
        if "ndarray" in kind:
            numpy = importlib.import_module("numpy")
            tokens = [numpy.array(each, dtype=numpy.int64) for each in tokens]
        result = _given(
            ModelRunnerOutput,
            req_ids=ids,
            req_id_to_index={request_id: place for place, request_id in enumerate(ids)},
            sampled_token_ids=tokens,
            spec_token_ids=None,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.scheduler.update_from_output(output, result)
        if self.tells_drafts and ids:
            drafts = [[1] * told["drafts"].get(request_id, 0) for request_id in ids]
            self.scheduler.update_draft_token_ids(_from("v1.outputs", "DraftTokenIds")(ids, drafts))
        gone = [request_id for request_id in there if request_id not in requests]
        for request_id in gone:
            self.blocks.pop(request_id, None)
        return gone

    def plan(self) -> dict[str, Any]:
        """Schedule a step: its tokens and cached tokens by request, its victims, and queues and memory after it.

        `passed`: victims without tokens that left for another request. `spec`: the drafts that requests verify.
        """
        scheduler = self.scheduler
        self._running = {request.request_id for request in scheduler.running}
        self.given, self.preempted, self.passed = {}, [], []
        output = scheduler.schedule()
        requests, scheduled = scheduler.requests, dict(output.num_scheduled_tokens)
        computed = {request_id: requests[request_id].num_computed_tokens for request_id in scheduled}
        sampled = {request_id for request_id in scheduled if computed[request_id] >= requests[request_id].num_tokens}
        self.flight.append((output, sampled))
        found = {
            "scheduled": scheduled,
            "admitted": {
                request_id: computed[request_id] - tokens
                for request_id, tokens in scheduled.items()
                if request_id not in self._running
            },
            "preempted": self.preempted,
            "passed": self.passed,
            "spec": {name: len(each) for name, each in output.scheduled_spec_decode_tokens.items() if each},
            "free": self.free,
        }
        if not self.brief:
            found["waiting"] = [request.request_id for request in scheduler.waiting]
            found["running"] = [request.request_id for request in scheduler.running]
        return found
