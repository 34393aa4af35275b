"""SGLang as a server: its flags, what it takes by the kind of a model, and what it says of itself.

Flags are those of SGLang 0.5, python/sglang/srt/server_args.py. The server of the policy `some_name` is `SOME_NAME`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from scenarios.servers.server import Flag, Launch, Server, Start, Startup, Untabled, arguments_in, as_words, plain
from scenarios.servers.vllm import LIKE_SYNC, drafter_named, drafter_path
from simulator.errors import InputError
from simulator.front_end import FrontEnd
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.host import LATENT_PUBLISHED_S, Host, has_latent_blocks

# ------------------------------------------------------------------------------------------------------------- its host
# By the kind of a model: the host of a step, and kernels of which there are no tables. All by public runs
# (aiconfigurator's silicon samples, docs/served.md), with cells left out in turn.

_RUNS = "SGLang 0.5 with overlap: TPOT less kernels, closed-loop runs of up to 16 users"
_PLAIN = Host(
    0.31e-3,
    0.0,
    "SGLang 0.5 with overlap: one request before a mocked device (tenstorrent/tt-inference-server, issue 3560)",
)
_LINEAR = Host(2.4e-3, 0.0, f"{_RUNS} of Qwen3.5 in five cells: its states are looked after in each step")
_SPARSE = Host(5.0e-3, 0.0, f"{_RUNS} of GLM-5 in three cells: its indexer is prepared in each step")


def host_of(model: Model) -> Host:
    """The host of an asynchronous step."""
    if model.index_topk:
        return _SPARSE
    return _LINEAR if model.linear_layers else _PLAIN


def _untabled(model: Model, gpu: Gpu) -> Untabled | None:
    """FlashInfer's block-scaled products and experts, with which latent attention is served on Blackwell.

    Tables have DeepGEMM's. Prompts of DeepSeek take 1.8 times as long as by these from 1,024 to 8,192 tokens, at TP 4
    and 8, and no longer to launch than was published.
    """
    return Untabled(1.8, LATENT_PUBLISHED_S) if has_latent_blocks(model, gpu) else None


# ------------------------------------------------------------------------------------------------------ flags of drafts
# Defaults are those of python/sglang/srt/arg_groups/speculative_hook.py (SGLang 0.5.23).

_DRAFTS: Final = "engine.speculative_config"
_DRAFT: Final = "engine.speculative_"  # keys of the flags, which only `_joined_drafts` and `_written_drafts` know
_SEQS_WITH_DRAFTS: Final = 48  # where no flag says how many, with drafts (:1091)
_METHODS: Final = {"EAGLE": "eagle", "NEXTN": "mtp", "EAGLE3": "eagle3", "STANDALONE": "draft_model", "NGRAM": "ngram"}
_NGRAM_TOKENS: Final = 12
_USUAL_TREE: Final = (3, 1, 4)
_TREE_OF_LLAMA: Final = (5, 4, 8)  # of LlamaForCausalLM, but for STANDALONE (:1437)


def _method(text: str) -> str:
    if text.upper() not in _METHODS:
        raise ValueError(f"drafts by {text} are not modelled")
    return _METHODS[text.upper()]


def _algorithm(method: Any) -> str:
    return next(name for name, own in _METHODS.items() if own == method)


_DRAFT_FLAGS: Final = (
    Flag("--speculative-algorithm", f"{_DRAFT}method", read=_method, write=_algorithm),
    Flag("--speculative-draft-model-path --speculative-draft-model", f"{_DRAFT}draft_model"),
    Flag("--speculative-num-steps", f"{_DRAFT}num_steps"),
    Flag("--speculative-eagle-topk", f"{_DRAFT}eagle_topk"),
    Flag("--speculative-num-draft-tokens", f"{_DRAFT}num_draft_tokens"),
)


def _joined_drafts(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return `engine.speculative_config` of what the flags say and the name of the model; None without drafts."""
    method = found.get(f"{_DRAFT}method")
    if method is None:
        return None
    steps, branches, tokens = (found.get(f"{_DRAFT}{key}") for key in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if method == "ngram":  # its longest run of drafts is as long as its tree
        return {"method": method, "num_speculative_tokens": (tokens or _NGRAM_TOKENS) - 1}
    if steps is None:
        is_llama = "llama" in str(found.get("model", "")).lower() and method != "draft_model"
        steps, branches, tokens = _TREE_OF_LLAMA if is_llama else _USUAL_TREE
    made: dict[str, Any] = {"method": method, "num_speculative_tokens": steps}
    if method == "draft_model":
        made["draft_model"] = drafter_named(str(found.get(f"{_DRAFT}draft_model") or ""))
    if (branches or 1) > 1:
        made |= {"eagle_topk": branches, "num_draft_tokens": tokens}
    return made


def _written_drafts(config: Any) -> Mapping[str, object]:
    """Return the flags' values for `engine.speculative_config`: what a server does, not how many it accepts."""
    if not config:
        return {}
    method, steps, branches = config["method"], config["num_speculative_tokens"], config.get("eagle_topk", 1)
    tokens = config.get("num_draft_tokens") or steps + 1
    found: dict[str, object] = {f"{_DRAFT}method": method, f"{_DRAFT}num_draft_tokens": tokens}
    if method != "ngram":
        found |= {f"{_DRAFT}num_steps": steps, f"{_DRAFT}eagle_topk": branches}
    if method == "draft_model":
        found[f"{_DRAFT}draft_model"] = drafter_path(config.get("draft_model"))
    elif method in ("eagle", "eagle3"):
        found[f"{_DRAFT}draft_model"] = f"{method.upper()}_HEAD"
    return found


# ------------------------------------------------------------------------------------------------------- flags of ranks
# Flags of data-parallel attention and of expert parallelism are of all ranks together, where a key is of one. Rules are
# those of server_args.py (`_handle_data_parallelism`, `_handle_gpu_memory_settings`) and of `_resolve_max_num_reqs` of
# the model runner. The experts of each rank are priced as whole ones, which `--ep-size` says; without it SGLang cuts
# each expert into as many parts.

_SHARES: Final = "hardware.enable_expert_parallel"
_RANKS: Final = "replicas"
_TENSOR: Final = "hardware.tensor_parallel"
_ATTENTION: Final = "engine.enable_dp_attention"  # these two keys only `_joined_ranks` and `_written_ranks` know
_EXPERTS: Final = "engine.ep_size"
_CONSERVATIVENESS: Final = "engine.schedule_conservativeness"
_EASED: Final = 0.3
_CHUNK: Final = "engine.chunked_prefill_size"
_SEQS: Final = "engine.max_num_seqs"

_RANK_FLAGS: Final = (
    Flag("--dp-size --data-parallel-size --dp", _RANKS),
    Flag("--enable-dp-attention", _ATTENTION, default=False, means=True),
    Flag("--ep-size --expert-parallel-size --ep", _EXPERTS, default=1),
)


def _ranks_of(found: Mapping[str, Any]) -> int:
    """Return the ranks whose attention is data-parallel: 1 without the flag, which one rank alone has no use for."""
    return int(found.get("ranks") or 1) if found.get(_ATTENTION) else 1


def _reserved_mib(found: Mapping[str, Any], graphs: int) -> float:
    """Return the memory that ranks take beside the KV cache for CUDA graphs of up to `graphs` requests, MiB."""
    ranks = _ranks_of(found)
    return 0.0 if ranks == 1 else graphs * ranks * (4.5 if graphs > 300 else 3.0)


def _joined_ranks(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the keys of one rank from the flags of all. InputError where ranks do not divide the GPUs."""
    ranks, gpus = _ranks_of(found), int(found.get(_TENSOR) or 1)
    if ranks == 1:
        return {_SHARES: True} if int(found.get(_EXPERTS) or 1) > 1 else {}
    if gpus % ranks:
        raise InputError(f"--enable-dp-attention: {ranks} ranks do not divide {gpus} GPUs (--tp-size)")
    eased = round(_EASED * found.get(_CONSERVATIVENESS, 1.0), 5)
    divided = [_CHUNK, *([_SEQS] if _SEQS in found["said"] else [])]
    return {
        _SHARES: True,
        _TENSOR: gpus // ranks,
        _CONSERVATIVENESS: eased,
        **{key: max(1, found[key] // ranks) for key in divided if found[key] > 0},
    }


def _written_ranks(values: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the flags' values of all ranks together from the keys of one."""
    ranks, gpus = values.get(_RANKS) or 1, values[_TENSOR]
    if not values[_SHARES]:
        return {}
    if ranks == 1:
        return {_EXPERTS: gpus}
    made = {_ATTENTION: True, _EXPERTS: gpus * ranks, _TENSOR: gpus * ranks}
    made[_CONSERVATIVENESS] = values[_CONSERVATIVENESS] / _EASED
    return made | {key: values[key] * ranks for key in (_CHUNK, _SEQS)}


# ------------------------------------------------------------------------------------------------------------ all flags

_MAX_PREFILL_TOKENS = 16384
_STATIC = "hardware.mem_fraction_static"
FP8 = ("fp8_e4m3", "fp8_e5m2", "fp8")
_ORDERS = {name: name for name in ("fcfs", "lpm", "lof", "dfs-weight")}


_TIERS = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
"""GPUs with less memory (GiB), their chunks, and the largest batch of their CUDA graphs: below four GPUs, and from."""


def _defaults(startup: Startup) -> Mapping[str, object]:
    """Return what depends on the GPU and on what else is said, of 0.5.9 (`_handle_gpu_memory_settings`).

    Of memory, what chunks, CUDA graphs, parallel ranks and drafts take is left to them, 10 GiB at least on large GPUs.
    Requests at a time are bounded by memory: `max_running_requests` is between 2,048 and 4,096, or 48 with drafts.
    """
    given, memory_mib = startup.given, 1024 * startup.memory_gib
    _, usual, few, many = next(tier for tier in _TIERS if startup.memory_gib < tier[0])
    step = given.get("engine.max_num_batched_tokens")
    chunk = given.get("engine.chunked_prefill_size") or step or usual
    prefill = given.get("engine.max_prefill_tokens") or step or _MAX_PREFILL_TOKENS
    drafts = given.get(_DRAFTS) or {}
    drafts = drafts if drafts.get("num_speculative_tokens") else {}
    ranks = given.get("hardware.tensor_parallel", 1)
    graphs = few if ranks < 4 else many
    reserved = 512 + 1.5 * max(chunk if chunk > 0 else prefill, 2048) + 2 * graphs + 128 * ranks
    reserved += _reserved_mib(given, graphs)
    reserved = max(reserved, 10 * 1024) if startup.memory_gib > 60 else reserved
    reserved += {"ngram": 0, "draft_model": 6 * 1024}.get(drafts.get("method", "ngram"), 2 * 1024)
    return {
        "engine.max_num_seqs": _SEQS_WITH_DRAFTS if drafts else 2048,
        "engine.chunked_prefill_size": chunk,
        "engine.max_prefill_tokens": prefill,
        "engine.max_num_batched_tokens": max(chunk, prefill),
        _STATIC: round((memory_mib - reserved) / memory_mib, 3),
    }


def _joined(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Return drafts, and the bound of a step, which SGLang does not have: as wide as its chunks and its prefills."""
    drafts, seqs = _joined_drafts(found), "engine.max_num_seqs"
    made: dict[str, object] = {}
    if drafts is not None and seqs not in found["said"]:
        found = {**found, seqs: _SEQS_WITH_DRAFTS, "said": {*found["said"], seqs}}
        made[seqs] = found[seqs]
    made |= _joined_ranks(found)
    sizes = [{**found, **made}.get(f"engine.{key}") or 0 for key in ("chunked_prefill_size", "max_prefill_tokens")]
    made |= {"engine.max_num_batched_tokens": max(sizes), _DRAFTS: drafts}
    return made


def _written(policy: Any, values: Mapping[str, object]) -> Mapping[str, object]:
    step, chunk = policy.max_num_batched_tokens, policy.chunked_prefill_size or policy.max_num_batched_tokens
    prefill = policy.max_prefill_tokens or step
    own = {
        "engine.chunked_prefill_size": min(step, chunk),
        "engine.max_prefill_tokens": prefill if chunk > 0 else min(step, prefill),
        **_written_drafts(values.get(_DRAFTS)),
    }
    return {**own, **_written_ranks({**values, **own})}


LAUNCH = Launch(
    programs=("python -m sglang.launch_server", "sglang serve", "sglang.launch_server", "dynamo.sglang"),
    images=("/sglang",),
    model="--model-path",
    model_names=("--model",),
    flags=(
        Flag("--tp-size --tensor-parallel-size --tp", "hardware.tensor_parallel", default=1),
        Flag("--max-running-requests", "engine.max_num_seqs"),
        Flag("--chunked-prefill-size", "engine.chunked_prefill_size"),
        Flag("--max-prefill-tokens", "engine.max_prefill_tokens", default=_MAX_PREFILL_TOKENS, always=True),
        Flag("--mem-fraction-static", _STATIC),
        Flag("--schedule-policy", "engine.order", default="fcfs", always=True, words=_ORDERS),
        Flag("--schedule-conservativeness", "engine.schedule_conservativeness", default=1.0, always=True),
        Flag("--enable-mixed-chunk", "engine.enable_mixed_chunk", default=False, means=True),
        Flag("--prefill-max-requests", "engine.prefill_max_requests"),
        Flag("--enable-prefill-delayer", "engine.enable_prefill_delayer", default=False, means=True),
        Flag("--prefill-delayer-max-delay-passes", "engine.prefill_delayer_max_delay_passes", default=30),
        Flag("--prefill-delayer-token-usage-low-watermark", "engine.prefill_delayer_token_usage_low_watermark"),
        Flag("--prefill-delayer-queue-min-ratio", "engine.prefill_delayer_queue_min_ratio"),
        Flag("--prefill-delayer-max-delay-ms", "engine.prefill_delayer_max_delay_ms"),
        Flag("--scheduler-recv-interval", "engine.scheduler_recv_interval", default=1),
        *_DRAFT_FLAGS,
        Flag("--page-size", "engine.block_size", default=1, always=True),
        Flag("--disable-radix-cache", "engine.enable_prefix_caching", default=True, means=False),
        Flag("--disable-overlap-schedule", "engine.async_scheduling", default=True, means=False),
        Flag("--max-queued-requests", "engine.max_queued_requests"),
        *_RANK_FLAGS,
        Flag("--kv-cache-dtype", "model.kv_dtype_bytes", is_written=False,
             words={1: FP8, 2: ("bf16", "bfloat16"), None: ("auto",)}),
        Flag("--quantization", "model.dtype_bytes", is_written=False, words={1: ("fp8", "w8a8_fp8")}),
    ),
    without_effect={
        "how clients reach it": "host port fastapi-root-path grpc-mode api-key admin-api-key served-model-name *ssl-* "
        "skip-server-warmup warmups file-storage-path",
        "how text becomes tokens and answers": "tokenizer* skip-tokenizer-init trust-remote-code chat-template "
        "hf-chat-template-name completion-template reasoning-parser tool-call-parser tool-server sampling-* "
        "preferred-sampling-params grammar-backend constrained-json-* random-seed is-embedding "
        "disable-outlines-disk-cache *tokenizer-batch-*",
        "where the weights come from": "revision load-format model-loader-extra-config download-dir model-checksum "
        "json-model-override-args model-impl weight-* custom-weight-loader remote-instance-*",
        "what is logged and measured": "*log* *metrics* enable-trace otlp-* show-time-cost crash-dump-folder "
        "*-buckets enable-request-time-stats-logging kv-events-config decode-log-interval enable-cache-report",
        "how its processes find each other": "dist-* nccl-port nnodes node-rank base-gpu-id gpu-id-step *watchdog* "
        "sleep-on-idle device numa-node *ipc-name enable-p2p-check stream-interval stream-output enable-memory-saver",
    },
    not_modelled={
        "lengths are bounded by the workload": "context-length max-total-tokens allow-auto-truncate",
        "a replica is one pipeline stage: see `hardware.tensor_parallel`": "pp-* pipeline-parallel-size *cp-size",
        "step times know no CUDA graphs, but for `cost: {kind: profile, cuda_graphs: false}`": "*cuda-graph* "
        "*torch-compile* torchao-config",
        "step times are those of `cost`, whatever the kernels": "*attention-backend *-backend sampling-backend "
        "disable-custom-all-reduce enable-*allreduce* enable-nccl-nvls enable-symm-mem *flashinfer* *deepep* moe-* "
        "*two-batch-overlap tbo-* *eplb* ep-* enable-dp-lm-head "
        "disable-shared-experts-fusion disable-chunked-prefix-cache num-continuous-decode-steps triton-* dtype",
        "of speculative decoding, the number and shape of drafts are modelled": "speculative-*",
        "adapters are not modelled yet": "*lora*",
        "KV outside the GPU, and moving between servers, is not modelled from flags": "*hicache* disaggregation-* "
        "enable-hierarchical-cache enable-lmcache cpu-offload-gb offload-*",
        "prompts of tokens alone are modelled": "*mm-* *multimodal*",
        "this rule of the scheduler is not modelled yet": "*priority* enable-dynamic-chunking min-free-slots-delay "
        "prefill-decode-interval* load-balance-method radix-eviction-policy",
    },
    container="lmsysorg/sglang:latest",
    port=30000,
    defaults=_defaults,
    instead={
        # A step has no bound of its own in SGLang: one that is given is that of its prefills.
        "engine.max_num_batched_tokens": ("engine.chunked_prefill_size", "engine.max_prefill_tokens"),
        "hardware.gpu_memory_utilization": (_STATIC,),
        "hardware.num_gpu_blocks": (_STATIC,),
    },
    joined=_joined,
    written=_written,
)  # fmt: skip
SGLANG = REAL_SGLANG = Server(
    FrontEnd(6.6e-3, 67e-6, 10e-6),
    "the same run over HTTP: TTFT of 9.54 ms less a step; for running requests and prompt tokens assumed as vLLM 0.15",
    synchronous=LIKE_SYNC,
    asynchronous=_PLAIN,
    asynchronous_of=host_of,
    untabled=_untabled,
    launch=LAUNCH,
    kernels="sglang",
    all_to_all=True,
    prompt_graphs=False,
)


def read_log(text: str, place: str) -> Start | None:
    """Return what the log of SGLang's start says; None for another."""
    found = re.search(r"server_args=ServerArgs\((.*)\)", text)
    return start_of(arguments_in(found[1]), place) if found else None


def start_of(info: Mapping[str, Any], place: str) -> Start:
    """Return what a server says of its arguments, at `/get_server_info` or in its log."""
    names = [plain(name).replace("-", "_") for flag in LAUNCH.flags for name in flag.names.split()]
    given = {key: info[key] for key in ("model_path", *names) if info.get(key) not in (None, False)}
    said: dict[str, tuple[object, str]] = {}
    if isinstance(tokens := info.get("max_total_num_tokens"), int):
        said["kv_tokens"] = (tokens, f"{place}: max_total_num_tokens")
    return Start(place, (*LAUNCH.programs[0].split(), *as_words(given)), said=said)
