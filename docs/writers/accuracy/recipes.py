"""Flags of the servers that were run, from public scripts: InferenceX's (benchmarks/single_node) and NVIDIA's own.

No row says them. What a script had at a date is by perf-changelog.yaml and copies of the scripts of that time. A first
token is sent at once by all three engines, whatever the interval of streaming: SGLang sends a request's first token and
then every n-th (`len(output_ids) % stream_interval == 1`), TensorRT-LLM where `py_decoding_iter` is 1.
"""

from dataclasses import dataclass, replace

from docs.writers.accuracy.served_row import NODE, QWEN, Row

WIDE_CAPTURE = 2048
"""vLLM's --max-cudagraph-capture-size for gpt-oss on Hopper, and with 2 x ISL as --max-num-batched-tokens and without
--max-num-seqs for MiniMax (0.19) and Kimi in fp4 (from pull request 1047 on)."""
PROMPT_GRAPHS = "0.5.10"
"""The version of SGLang from which on graphs hold prompts by default (sgl-project/sglang, issue 18130)."""
PROMPT_GRAPHS_NIGHTLY = "2026-04"
"""Nightly builds from then on are of that version."""
WIDE_SINCE = {"Kimi-K2.5 fp4": "2026-04-17", "MiniMax-M2.5 fp4": "2026-04-08", "MiniMax-M2.5 fp8": "2026-04-01"}
FREE = 0.8
"""`free_gpu_memory_fraction` of the configurations that aiconfigurator writes for TensorRT-LLM (its template
extra_engine_args.1.0.0rc3.yaml.j2): the share of what weights leave. They take 0.4 of an H100 at TP 1."""


OLD_SGLANG_S = 2.5e-3
"""The host of SGLang before 0.5.6: TPOT less kernels of DeepSeek in fp4, rows of November 2025 without a version."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a script says beside the row: None and 0 are the server's defaults.

    `memory` is --gpu-memory-utilization, as far as it is known; `batch_tokens` is --max-num-batched-tokens
    (--chunked-prefill-size), `captured` the largest CUDA graph; `kv_fp8` says whether a model in fp8 keeps KV so;
    `receive_steps` is --scheduler-recv-interval, `batch_wait` are `batch_wait_timeout_iters` and
    `batch_wait_max_tokens_ratio`; `tensor`, `data` and `expert` are the parallel sizes where the row has others;
    `chunks` says whether prompts are cut; `fused` is
    `fuse_allreduce_rms` (`enable_fi_allreduce_fusion` up to 0.11); `requests` are those of a user, `most_requests`
    those of all users together.
    """

    memory: float = 0.95
    batch_tokens: int | None = None
    captured: int | None = None
    kv_fp8: bool = True
    receive_steps: int = 1
    batch_wait: tuple[int, float] | None = None
    tensor: int = 0
    data: int = 0
    expert: int = 0
    chunks: bool = True
    fused: bool | None = None
    requests: int = 10
    most_requests: int = 10**9


def is_old_sglang(row: Row) -> bool:
    """Return whether the run is of SGLang before 0.5.6 (December 2025)."""
    return row.engine == "sglang" and (
        row.version.startswith("0.5.1.") or (not row.version and row.measured < "2025-12")
    )


def recipe_of(row: Row) -> Recipe:
    """The recipe of a run of InferenceX's or of NVIDIA's; an empty one for others."""
    if row.is_nvidias:
        return _nvidia(row)
    if not row.is_inferencex:
        return Recipe(kv_fp8=not (row.system.startswith("h") and row.model == QWEN))
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _tensorrt_llm}[row.engine](row)


def _nvidia(row: Row) -> Recipe:
    """Of NVIDIA's runs of Qwen3-32B on H100 with genai-perf, whose number of requests the digits of the means give.

    A mean of times in nanoseconds times the number of requests is whole: ten for each user under vLLM, 20 under others,
    2,000 at most. aiconfigurator's own script (src/aiconfigurator/eval/benchmarks/genai_perf_runner.py) sends ten a
    user, after two that do not count, of fixed lengths. It writes `enable_chunked_prefill: false` for TensorRT-LLM.
    KV is in fp8 there: 128 requests of 2,176 tokens, none of which waited, would take 71 GB in bf16. A step takes a
    prompt and the decodes (chosen on these runs, docs/served.md): the script's rule would leave room for 1,500 tokens.
    """
    budget = row.isl + row.concurrency
    if row.engine == "vllm":
        return Recipe(0.9, budget, kv_fp8=False)
    if row.engine == "sglang":
        return Recipe(kv_fp8=False, requests=20, most_requests=2000)
    memory = FREE + (1.0 - FREE) * 0.4 / row.tensor_parallel
    return Recipe(memory, budget, chunks=False, requests=20, most_requests=2000)


def _vllm(row: Row) -> Recipe:
    name = row.model.rpartition("/")[2]
    if "gpt-oss" in name and row.system.startswith("h"):
        return Recipe(0.9, 8192, WIDE_CAPTURE)
    if "Llama" in name and not row.version:
        # Images of vLLM 0.10 and 0.11, scripts 70b_fp8_*: B200's alone fuse. On H100 KV was in bf16: at TP 2 64 users
        # of 1,024 and 8,192 tokens waited for 31 s, and 32 of 8,192 and 1,024 for 6.5 s; in fp8 none of them would.
        return Recipe(0.9, 8192, kv_fp8=row.system != "h100_sxm", fused=not row.system.startswith("h"))
    if name == "MiniMax-M2.5" and row.version == "0.17.0":  # --enable-expert-parallel in all runs
        return Recipe(0.95, 8192, 512, kv_fp8=False, expert=row.tensor_parallel)
    fused = True if name.startswith("Kimi") and row.system == "b200_sxm" else None  # kimik2.5_*_b200.sh
    since = WIDE_SINCE.get(f"{name} {row.precision}") if row.system.startswith("b") else None
    if since is None or row.measured < since:
        memory = 0.95 if row.precision == "int4" else 0.9
        return Recipe(memory, 8192, kv_fp8=name != "MiniMax-M2.5" or row.precision != "fp8", fused=fused)
    wide = Recipe(0.9, 2 * row.isl, WIDE_CAPTURE, fused=fused)
    if row.data_parallel == 1:
        return wide
    # The row has the sizes twice: its name says tp2_ep2. The script for fp8 leaves DP_ATTENTION aside, that for fp4
    # makes data parallel ranks of the tensor parallel size.
    tensor, data = (row.tensor_parallel, 1) if row.precision == "fp8" else (1, row.data_parallel)
    return replace(wide, tensor=tensor, data=data, expert=tensor * data)


def _sglang(row: Row) -> Recipe:
    hopper, many = row.system.startswith("h"), row.concurrency >= 16
    if "Qwen3.5" in row.model:
        if row.precision == "fp4" and row.system == "b200_sxm":
            return Recipe(batch_tokens=16384, captured=16384, receive_steps=30 if row.concurrency > 4 else 10)
        captured = 32768 if row.version.startswith(PROMPT_GRAPHS) else None
        return Recipe(batch_tokens=16384) if hopper else Recipe(0.95, 32768, captured, receive_steps=30 if many else 10)
    if "GLM" in row.model and row.measured >= PROMPT_GRAPHS_NIGHTLY:
        return Recipe(batch_tokens=32768, captured=32768)
    if "DeepSeek" not in row.model or hopper:
        return Recipe(batch_tokens=32768, kv_fp8=not hopper)
    if row.precision == "fp8" and row.tensor_parallel == 4:
        return Recipe(batch_tokens=8192, receive_steps=10)
    return Recipe(0.95, 16384 if row.precision == "fp4" else 32768, receive_steps=30 if many else 10)


def _tensorrt_llm(row: Row) -> Recipe:
    even = (row.isl, row.osl) == (1024, 1024)
    if "Llama" in row.model:
        return Recipe(batch_tokens=16384, batch_wait=(20, 0.9) if even and row.tensor_parallel < NODE else None)
    if "gpt-oss" in row.model:
        return Recipe(0.95, 20000)
    fp8 = not row.system.startswith("h")
    budget = max(8192, row.concurrency + row.isl)
    captured = budget if _is_piecewise(row) else None
    waits = (40, 0.8) if row.precision == "fp8" and captured and even else None
    return Recipe(0.95, budget, captured, kv_fp8=fp8, batch_wait=waits)


def _is_piecewise(row: Row) -> bool:
    """Return whether the script asks for piecewise CUDA graphs of prompts (`enable_piecewise_cuda_graph`, 2026)."""
    if row.measured < "2026" or not row.system.startswith("b") or row.data_parallel > 1:
        return False
    if row.precision == "fp4":
        return (row.isl, row.osl) == (1024, 1024) and row.moe_expert == NODE
    return row.concurrency >= (128 if row.osl > row.isl else 64)
