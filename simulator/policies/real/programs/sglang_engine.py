"""SGLang's scheduler (0.5.23) without model and GPU: see `serve` for what is asked of it.

Real are `get_next_batch_to_run` and all below it (policy, adder, radix tree, pools, retraction) and the processor of
results. The constructor, which wants a model, the sockets and the forward pass are not. Imported in the user's Python.
"""

from __future__ import annotations  # the Python may be older than batchlab's

import importlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import warnings
from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
torch: Any = importlib.import_module("torch")
for name in ("torch._inductor.runtime.triton_heuristics", "torch.utils.flop_counter"):
    importlib.import_module(name)  # finds no triton before there is a stand-in

# Packages of a GPU server that the scheduler imports, and never calls.
_UNUSED = ("triton", "IPython", "tvm_ffi", "torchvision", "compressed_tensors", "gguf")


class Kind(type):
    """A class with every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name=name)


class Thing(metaclass=Kind):
    """For isinstance, and to derive from; made with anything."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass


class StandIn(MagicMock):
    """A module of a package that is not installed: everything is in it, and does nothing."""

    __path__: ClassVar[list[str]] = []
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name in ("runtime", "driver"):
            raise AttributeError(name)  # asked for to learn what machine this is
        if name[:1].isupper():
            return Kind(name, (Thing,), {})
        return super().__getattr__(name)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class Finder:
    """Finds packages that are not installed."""

    def __init__(self, roots: list[str]) -> None:
        self._roots = roots

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A spec for a module of such a package, else None."""
        if name.partition(".")[0] not in self._roots:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type] # loads as one

    def create_module(self, spec: Any) -> Any:
        return StandIn(name=spec.name)

    def exec_module(self, module: Any) -> None:
        """There is nothing to execute."""


sys.meta_path.append(Finder([name for name in _UNUSED if importlib.util.find_spec(name) is None]))


def _from(module: str, *names: str) -> Any:
    """Objects of a module of SGLang: one alone, or several."""
    found = importlib.import_module(f"sglang.srt.{module}")
    return getattr(found, names[0]) if len(names) == 1 else [getattr(found, name) for name in names]


Req, ScheduleBatch = _from("managers.schedule_batch", "Req", "ScheduleBatch")
Scheduler = _from("managers.scheduler", "Scheduler")
SchedulePolicy = _from("managers.schedule_policy", "SchedulePolicy")
Results = _from("managers.scheduler_components.batch_result_processor", "SchedulerBatchResultProcessor")
Ratio = _from("managers.scheduler_components.new_token_ratio_tracker", "NewTokenRatioTracker")
Result = _from("managers.utils", "GenerationBatchResult")
Paged, Unpaged = _from("mem_cache.allocator", "PagedTokenToKVPoolAllocator", "TokenToKVPoolAllocator")
CacheInit = _from("mem_cache.cache_init_params", "CacheInitParams")
ReqPool = _from("mem_cache.memory_pool", "ReqToTokenPool")
Component = _from("mem_cache.unified_cache.components", "ComponentType")
Tree = _from("mem_cache.unified_radix_cache", "UnifiedRadixCache")
context, schedule = _from("runtime_context", "get_context", "get_schedule")
SamplingParams = _from("sampling.sampling_params", "SamplingParams")
Speculative = _from("speculative.spec_info", "SpeculativeAlgorithm")
Disaggregation = _from("disaggregation.utils", "DisaggregationMode")

NAME = "sglang"
VERSION = importlib.import_module("importlib.metadata").version("sglang")
STOP = 0  # the token that ends an answer before its max_tokens
_LONGEST = 10_000_000  # context length: batchlab's requests have no other bound than the memory
_VOCABULARY = 1 << 62
_OWN = 1 << 60  # where tokens begin that no other request has


def _same(batch: Any, **named: Any) -> Any:
    return batch


class OnCpu(Scheduler):  # type: ignore[misc, valid-type] # SGLang's own class
    """A scheduler put together here; what is not named has the value None."""

    def __init__(self, settings: dict[str, Any], caching: bool) -> None:
        size, page = settings["max_total_tokens"], settings["page_size"]
        slots = settings["max_running_requests"]
        self.req_to_token_pool = ReqPool(slots, size + page + 8, "cpu", False)
        if page == 1:
            memory = Unpaged(size, torch.float16, "cpu", None, False)
        else:
            memory = Paged(size, page, torch.float16, "cpu", None, False)
            memory.use_triton_kernels = False
        self.token_to_kv_pool_allocator = memory
        self.tree_cache = Tree(
            CacheInit(
                disable=not caching,
                req_to_token_pool=self.req_to_token_pool,
                token_to_kv_pool_allocator=memory,
                page_size=page,
                tree_components=(Component.FULL,),
            )
        )
        self.model_config = SimpleNamespace(
            vocab_size=_VOCABULARY, is_encoder_decoder=False, is_multimodal=False, context_len=_LONGEST,
            self_opened_think_start_ids=None, think_end_ids=None,
        )  # fmt: skip
        given = schedule()
        self.page_size, self.max_total_num_tokens, self.max_req_len = page, size, min(_LONGEST - 1, size - 1)
        self.kv_shard_widening = 1
        self.max_running_requests, self.max_prefill_tokens = slots, settings["max_prefill_tokens"]
        self.device = "cpu"
        self.spec_algorithm = Speculative.from_string(None)
        self.disaggregation_mode = Disaggregation.NULL
        self.schedule_policy = given.schedule_policy
        self.enable_overlap = self.enable_skip_finishing_decode = not given.disable_overlap_schedule
        self.priority_scheduling_preemption_threshold = 0
        chunk = given.chunked_prefill_size
        self.chunked_prefill_size = chunk if chunk is not None and chunk > 0 else None
        self.is_mixed_chunk = self.chunked_prefill_size is not None and given.enable_mixed_chunk
        self.prefill_decode_interval = self._prefill_decode_interval_remaining = 0
        self.policy = SchedulePolicy(self.schedule_policy, self.tree_cache, False, False, False)
        self.new_token_ratio_tracker = Ratio.from_config()
        self.max_prefill_bs = self.forward_ct = self.processed_tokens_counter = 0
        self.waiting_queue: list[Any] = []
        self.running_batch = ScheduleBatch(reqs=[], batch_is_full=False)
        self.result_queue: deque[Any] = deque()
        self.grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False, grammar_queue=[])
        self.dllm_manager = SimpleNamespace(any_staging_reqs=lambda: False)
        self.beam_coordinator = SimpleNamespace(
            pending_member_rows=lambda batch: 0, commit_decode=lambda batch: set(), retire_group=lambda req: None
        )
        self.dp_attn_adapter = SimpleNamespace(maybe_prepare_mlp_sync_batch=_same, maybe_convert_decode_to_extend=_same)
        self.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=_same)
        self.load_inquirer = SimpleNamespace(_get_num_pending_tokens=lambda **named: 0)
        self.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False))
        self.metrics_reporter = MagicMock(num_generated_tokens=0, forward_ct_decode=0, enable_metrics=False)
        self.batch_result_processor = Results(
            is_generation=True, disaggregation_mode=self.disaggregation_mode, enable_overlap=self.enable_overlap,
            enable_overlap_mlx=False, model_config=self.model_config, token_to_kv_pool_allocator=memory,
            tree_cache=self.tree_cache, hisparse_coordinator=None, req_to_token_pool=self.req_to_token_pool,
            decode_offload_manager=None, metrics_collector=None, metrics_reporter=self.metrics_reporter,
            draft_worker=None, model_worker=None, logprob_result_processor=MagicMock(), output_streamer=MagicMock(),
            beam_coordinator=self.beam_coordinator, abort_request=None,
        )  # fmt: skip
        self.retracted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def _abort_on_queued_limit(self, req: Any) -> bool:
        return False

    def _prefetch_kvcache(self, req: Any) -> None:
        pass

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        if is_retracted:
            self.retracted.append(req.rid)
        super()._add_request_to_queue(req, is_retracted)

    def send_abort_output(self, message: Any, req: Any) -> None:
        """No client listens."""


class Engine:
    """A scheduler of SGLang with these settings, and its steps in flight. `refusal` is the error for a setting."""

    _override: ClassVar[Any] = None  # SGLang's settings are those of the process

    def __init__(self, settings: dict[str, Any], refusal: Any) -> None:
        settings = dict(settings)
        caching, self.brief = settings.pop("enable_prefix_caching"), settings.pop("brief")
        self.overlap, self.ignore_eos = settings.pop("async_scheduling"), settings.pop("ignore_eos")
        page = settings["page_size"] = settings.pop("block_size")
        del settings["name_size"]  # that of a page
        settings["max_total_tokens"] = (settings.pop("num_gpu_blocks") - 1) * page
        if settings["enable_prefill_delayer"]:
            raise refusal("enable_prefill_delayer", "the delayer follows a server's clock, and is not asked here")
        mine = {
            key: value for key, value in settings.items() if key not in ("max_total_tokens", "max_running_requests")
        }
        if Engine._override is not None:
            Engine._override.restore()
        try:
            Engine._override = context().override_server_args(
                device="cpu", attention_backend="torch_native", skip_tokenizer_init=True,
                disable_radix_cache=not caching, disable_overlap_schedule=not self.overlap,
                pp_max_micro_batch_size=settings["max_running_requests"], **mine,
            )  # fmt: skip
            Engine._override.install()
            self.scheduler = OnCpu(settings, caching)
        except (TypeError, ValueError, AttributeError) as error:
            words = str(error)
            key = "schedule_policy" if repr(mine["schedule_policy"]) in words else "policy"
            raise refusal(next((name for name in mine if name in words), key), words) from error
        self.caching, self.page = caching, page
        self.blocks: dict[str, tuple[int, list[int]]] = {}
        self.added = 0
        self.seen: set[str] = set()  # admitted since they last entered the queue
        self.flight: deque[tuple[Any, set[str]]] = deque()
        self.tried: list[str] | None = None  # requests whose prefixes a plan looked up; None: it left the queue alone
        self._watch()

    def _watch(self) -> None:
        """Note when the queue is sorted."""
        sort = self.scheduler.policy.calc_priority

        def calc_priority(*given: Any, **named: Any) -> Any:
            self.tried = []
            return sort(*given, **named)

        self.scheduler.policy.calc_priority = calc_priority

    @property
    def free(self) -> int:
        """Free pages, cached ones that nobody uses included."""
        s = self.scheduler
        tokens = s.token_to_kv_pool_allocator.available_size() + s.tree_cache.evictable_size()
        return int(tokens // self.page)

    def _tokens(self, request_id: str, first: int, end: int) -> array[int]:
        """The tokens from place `first` to before `end`: named blocks have the tokens of that name everywhere."""
        number, names = self.blocks[request_id]
        page, found = self.page, array("q")
        while first < end:
            block = first // page
            named = block < len(names)
            last = min(end, (block + 1) * page) if named else end
            start = names[block] * page + first % page if named else _OWN + (number << 28) + first
            found.extend(range(start, start + last - first))
            first = last
        return found

    def add(self, told: dict[str, Any]) -> None:
        """A request arrives."""
        request_id = told["id"]
        self.added += 1
        self.blocks[request_id] = self.added, told["blocks"]
        params = SamplingParams(
            max_new_tokens=told["max_tokens"], temperature=0.0, ignore_eos=self.ignore_eos, stop_token_ids={STOP}
        )
        params.normalize(None)
        tokens = self._tokens(request_id, 0, told["prompt_tokens"])
        req = Req(request_id, "", tokens, params, vocab_size=_VOCABULARY)
        look = req.init_next_round_input

        def init_next_round_input(tree: Any = None, *more: Any, **named: Any) -> Any:
            if tree is not None and self.tried is not None:
                self.tried.append(request_id)
            return look(tree, *more, **named)

        req.init_next_round_input = init_next_round_input
        self.scheduler.init_req_max_new_tokens(req)
        self.scheduler._add_request_to_queue(req)

    def abort(self, request_id: str) -> None:
        """SGLang lets a running request go on to its next result, which batchlab does not model."""
        raise ValueError(f"request {request_id} was aborted, which SGLang's scheduler is not told here")

    def rest(self) -> None:
        """There is nothing to compute: the loop looks once more, and the server is idle (`on_idle`)."""
        batch = self._next()
        self.flight.clear()
        if batch is not None:
            raise ValueError(f"SGLang computes {[req.rid for req in batch.reqs]} where batchlab rests")
        if self.scheduler.is_fully_idle():
            self.scheduler.new_token_ratio_tracker.reset()

    def settle(self, told: dict[str, Any]) -> list[str]:
        """The results of the oldest step in flight; the answers of `ended` end with it. Returns who has finished."""
        stops = set(told["ended"])
        if self.overlap and len(self.flight) == 1 and self.flight[0][0] is not None:
            self._next()  # no step is planned behind it: the loop looked, and found nothing
            if self.flight[-1][0] is not None:
                raise ValueError(f"SGLang computes {[req.rid for req in self.flight[-1][0].reqs]} where batchlab rests")
            self.flight.pop()
        batch, sampled = self.flight.popleft()
        if batch is None:
            return []
        tokens = []
        for req in batch.reqs:
            token = STOP
            if req.rid in sampled and req.rid not in stops and not req.finished():
                place = len(req.origin_input_ids) + len(req.output_ids)
                token = self._tokens(req.rid, place, place + 1)[0]
            tokens.append(token)
        result = Result(next_token_ids=torch.tensor(tokens, dtype=torch.int64))
        processor = self.scheduler.batch_result_processor
        before = {req.rid for req in batch.reqs if not req.finished()}
        if batch.forward_mode.is_decode():
            processor.process_batch_result_decode(batch, result)
        else:
            processor.process_batch_result_prefill(batch, result)
        self._tell_queue()
        gone = [req.rid for req in batch.reqs if req.rid in before and req.finished()]
        for request_id in gone:
            self.blocks.pop(request_id)
        return gone

    def _tell_queue(self) -> None:
        self.scheduler.result_queue = deque((batch, None) for batch, _ in self.flight if batch is not None)

    def plan(self) -> dict[str, Any]:
        """Schedule a step; see `vllm_engine`. The running requests are not told: SGLang has them in several places.

        `tried`: the waiting requests whose prefixes it looked up, or None if it left the queue alone. `withheld`: the
        decodes lacked memory, and none was retracted. Requests are scheduled in the order of SGLang's batch.
        """
        s = self.scheduler
        self.tried = None
        Memory.lacked = False
        batch = self._next()
        scheduled: dict[str, int] = {}
        admitted: dict[str, int] = {}
        self.seen.difference_update(s.retracted)
        if batch is not None:
            ids = [req.rid for req in batch.reqs]
            if batch.forward_mode.is_decode():
                scheduled = dict.fromkeys(ids, 1)
            else:
                scheduled = dict(zip(ids, batch.extend_lens, strict=True))
                cached = zip(ids, batch.prefix_lens, strict=False)
                admitted = {request_id: tokens for request_id, tokens in cached if request_id not in self.seen}
            self.seen.update(admitted)
        found = {
            "scheduled": scheduled,
            "admitted": admitted,
            "preempted": [(request_id, 0) for request_id in s.retracted],
            "free": self.free,
            "tried": self.tried,
            "withheld": Memory.lacked and not s.retracted,
        }
        s.retracted = []
        if not self.brief:
            found["waiting"] = [req.rid for req in s.waiting_queue]
        return found

    def _next(self) -> Any:
        """The next batch, put in flight; None if there is nothing to compute."""
        s = self.scheduler
        made = s.get_next_batch_to_run(running_batch=s.running_batch, last_batch=s.last_batch)
        s.running_batch, batch = made.running_batch, made.batch_to_run or None
        sampled: set[str] = set()
        if batch is not None:
            extends = batch.forward_mode.is_extend()
            sampled = {
                req.rid for req in batch.reqs if not extends or req.extend_end >= len(req.full_untruncated_fill_ids)
            }
            s.forward_ct += 1
            batch.forward_iter = s.forward_ct
        self.flight.append((batch.copy() if self.overlap and batch is not None else batch, sampled))
        self._tell_queue()
        s.last_batch = batch
        return batch


class Memory:
    """Whether the memory lacked for the decodes of a step."""

    lacked = False


def _watch_memory() -> None:
    check = ScheduleBatch.check_decode_mem

    def check_decode_mem(self: Any, *given: Any, **named: Any) -> Any:
        found = check(self, *given, **named)
        Memory.lacked = Memory.lacked or not found
        return found

    ScheduleBatch.check_decode_mem = check_decode_mem


_watch_memory()
