"""Experts that every token uses, computed beside the routed ones: what of their time is left to see.

All three engines compute them on a second CUDA stream while the routed experts run, in batches of up to so many tokens.
vLLM does so since 0.11.1 (VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD, vllm/envs.py), SGLang in its CUDA graphs
(`forward_normal_dual_stream`, DUAL_STREAM_TOKEN_THRESHOLD, models/deepseek_v2.py and qwen2_moe.py), TensorRT-LLM in its
own (`maybe_execute_in_parallel`, models/modeling_deepseekv3.py), which hold 512 requests at most by default here.

A decoder with attention data parallel or with whole experts does as others do: TensorRT-LLM's condition is the graph
alone (`do_multi_stream`, modules/multi_stream_utils.py). SGLang computes the one shared expert of DeepSeek-V3 as a
257th routed one where Triton's kernels divide experts by width, as on Hopper (`determine_num_fused_shared_experts`,
models/deepseek_v2.py; not with experts on each GPU, nor with flashinfer_trtllm, which Blackwell takes): one expert more
beside those that a step reads anyway, so nothing is added for it.

That hides them wholly: DeepSeek-R1 in fp8 with 32 users on 8 B200 went from 23.35 to 22.09 ms a token by it (vLLM pull
request 26440). The 1.26 ms that went are what the tables' products of its shared experts take, 1.2 ms a step.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from simulator.timing.profile.experts import RoutedExperts
from simulator.timing.profile.surface import Curve, make_curve

MOST_BESIDE: Mapping[str, int] = {"vLLM": 256, "SGLang": 1024, "TensorRT-LLM": 512}
"""Tokens of a step up to which an engine overlaps both."""


def seen_beside(shared: Sequence[Curve], routed: RoutedExperts, engine: str) -> Curve:
    """Microseconds of a layer's shared experts by which it lasts longer than with its routed experts alone."""
    most = MOST_BESIDE.get(engine, 0)
    counts = np.unique([most, most + 1, *routed.alone.counts, *(count for curve in shared for count in curve.counts)])
    counts = counts[counts >= 1]
    whole = np.array([sum(curve.at(count) for curve in shared) for count in counts])
    hidden = np.array([routed.us(count) if count <= most else 0.0 for count in counts])
    return make_curve(counts, np.maximum(whole - hidden, 0.0))
