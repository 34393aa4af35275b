"""Commands and manifests that are published, as they stand there less what starts no server: address, text, GPU."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A published source; `suffix` is that of a file. `expected` are keys of the scenario, `refused` part of the error.

    `left` are flags that are said to be left out; `files` lie beside it.
    """

    name: str
    address: str
    text: str
    gpu: str = "h100"
    suffix: str = ""
    expected: dict[str, Any] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    refused: str = ""
    files: dict[str, str] = field(default_factory=dict)


RECIPES = "https://github.com/vllm-project/recipes/blob/main/"
CASES = [
    Case(
        "llama-3.3-70b recipe of vLLM, Hopper",
        RECIPES + "Llama/Llama3.3-70B.md",
        "vllm serve nvidia/Llama-3.3-70B-Instruct-FP8 \\\n  --config Llama3.3_Hopper.yaml \\\n"
        "  --tensor-parallel-size 1 \\\n  --max-num-seqs 512 \\\n  --max-model-len 10240 &",
        expected={
            "model": {"base": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 1}, "engine.max_num_seqs": 512,
            "engine.max_num_batched_tokens": 8192, "engine.async_scheduling": True,
        },
        left=("--max-model-len",),
        files={"Llama3.3_Hopper.yaml": "kv-cache-dtype: fp8\nasync-scheduling: true\nno-enable-prefix-caching: true\n"
               "max-num-batched-tokens: 8192\n"},
    ),
    Case(
        "gpt-oss-120b recipe of vLLM",
        RECIPES + "OpenAI/GPT-OSS.md",
        "vllm serve openai/gpt-oss-120b --tensor_parallel_size 8 --max-model-len 131072 "
        "--max-num-batched-tokens 10240 --max-num-seqs 128 --gpu-memory-utilization 0.85 --no-enable-prefix-caching",
        expected={
            "model": "gpt-oss-120b", "hardware.tensor_parallel": 8, "hardware.gpu_memory_utilization": 0.85,
            "engine.max_num_seqs": 128, "engine.max_num_batched_tokens": 10240, "engine.version": "0.33",
        },
    ),
    Case(
        "gpt-oss-120b recipe of vLLM, MI300x",
        RECIPES + "OpenAI/GPT-OSS.md",
        "export HSA_NO_SCRATCH_RECLAIM=1\nexport VLLM_ROCM_USE_AITER=1\nvllm serve openai/gpt-oss-120b "
        "--tensor-parallel-size=8 --attention-backend ROCM_AITER_UNIFIED_ATTN "
        "-cc.pass_config.fuse_rope_kvcache=True -cc.use_inductor_graph_partition=True "
        "--gpu-memory-utilization 0.95 --block-size=64",
        gpu="mi300x",
        expected={"hardware.tensor_parallel": 8, "engine.block_size": 64, "engine.max_num_batched_tokens": 16384,
                  "engine.max_num_seqs": 1024, "engine.enable_prefix_caching": True},
        left=("--attention-backend", "-cc.pass_config.fuse_rope_kvcache True"),
    ),
    Case(
        "gpt-oss-20b in a container",
        RECIPES + "OpenAI/GPT-OSS.md",
        "docker run --gpus all \\\n    -p 8000:8000 \\\n    --ipc=host \\\n    vllm/vllm-openai \\\n"
        "    --model openai/gpt-oss-20b",
        gpu="a100-80gb",
        expected={"model": "gpt-oss-20b", "hardware.gpu_memory_utilization": 0.92},
    ),
    Case(
        "MiniMax-M2.7 with the quantised weights of a user",
        "https://huggingface.co/lukealonso/MiniMax-M2.7-NVFP4/discussions/10",
        "CUDA_VISIBLE_DEVICES=0,1 \\\nvllm serve lukealonso/MiniMax-M2.7-NVFP4 \\\n  --port 23333 \\\n"
        "  --trust-remote-code \\\n  --tensor-parallel-size 2 \\\n  --enable_expert_parallel \\\n"
        "  --gpu-memory-utilization 0.95 \\\n  --max-num-seqs 8 \\\n  --kv-cache-dtype turboquant_k8v4 \\\n"
        "  --max-model-len 130k",
        gpu="rtx-pro-6000",
        expected={
            "model": {"base": "minimax-m2", "dtype_bytes": 0.5625, "matmul_dtype": "nvfp4"},
            "hardware.enable_expert_parallel": True,
            "engine.max_num_seqs": 8,
        },
        left=("--kv-cache-dtype turboquant_k8v4", "--max-model-len 130k"),
    ),
    Case(
        "production stack, vLLM v1",
        "https://github.com/vllm-project/production-stack/blob/main/tutorials/assets/values-14-vllm-v1.yaml",
        """servingEngineSpec:
  runtimeClassName: ""
  modelSpec:
  - name: "llama3"
    repository: "lmcache/vllm-openai"
    tag: "2025-04-18"
    modelURL: "meta-llama/Llama-3.1-8B-Instruct"
    replicaCount: 1
    requestGPU: 1
    vllmConfig:
      enableChunkedPrefill: false
      enablePrefixCaching: false
      maxModelLen: 4096
      dtype: "bfloat16"
      v1: 1
      extraArgs: ["--disable-log-requests", "--gpu-memory-utilization", "0.8"]
""",
        suffix=".yaml",
        expected={"engine.enable_chunked_prefill": False, "hardware.gpu_memory_utilization": 0.8,
                  "model": "llama-3.1-8b"},
        left=("--max-model-len", "--dtype"),
    ),
    Case(
        "llm-d's model service, prefill and decode apart",
        "https://github.com/llm-d-incubation/llm-d-modelservice/blob/main/examples/values-pd.yaml",
        """multinode: false
modelArtifacts:
  name: facebook/opt-125m
  uri: hf://"{{ .Values.modelArtifacts.name }}"
decode:
  create: true
  replicas: 1
  containers:
  - name: "vllm"
    image: "ghcr.io/llm-d/llm-d-dev:v0.2.0-rc.1"
    modelCommand: vllmServe
    args: ["--enforce-eager", "--kv-transfer-config", '{"kv_connector":"NixlConnector", "kv_role":"kv_both"}']
    resources: {limits: {nvidia.com/gpu: "1"}}
prefill:
  create: true
  replicas: 1
  containers:
  - name: "vllm"
    image: "ghcr.io/llm-d/llm-d-dev:v0.2.0-rc.1"
    modelCommand: vllmServe
    args: ["--enforce-eager"]
""",
        suffix=".yaml",
        refused="the model facebook/opt-125m is not known",
    ),
    Case(
        "LeaderWorkerSet of SGLang",
        "https://github.com/kubernetes-sigs/lws/blob/main/docs/examples/leaderworkerset/basic/sglang.yaml",
        """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: sglang
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - name: sglang-leader
            image: lmsysorg/sglang:v0.5.18
            command: [python3, -m, sglang.launch_server, --model-path, meta-llama/Meta-Llama-3.1-8B-Instruct,
              --tp, "2", --dist-init-addr, "$(LWS_LEADER_ADDRESS):20000", --nnodes, $(LWS_GROUP_SIZE), --node-rank,
              $(LWS_WORKER_INDEX), --trust-remote-code, --host, "0.0.0.0", --port, "40000"]
            resources: {limits: {nvidia.com/gpu: "1"}}
    workerTemplate:
      spec:
        containers:
          - name: sglang-worker
            image: lmsysorg/sglang:v0.5.18
            command: [python3, -m, sglang.launch_server, --model-path, meta-llama/Meta-Llama-3.1-8B-Instruct,
              --tp, "2"]
---
apiVersion: v1
kind: Service
metadata:
  name: sglang-leader
spec:
  ports: [{protocol: TCP, port: 40000}]
""",
        suffix=".yaml",
        expected={"engine.policy": "sglang", "hardware.tensor_parallel": 2, "replicas": 2, "model": "llama-3.1-8b",
                  "engine.chunked_prefill_size": 8192, "engine.enable_prefix_caching": True, "engine.block_size": 1},
    ),
    Case(
        "SGLang by compose",
        "https://github.com/sgl-project/sglang/blob/main/docker/compose.yaml",
        """services:
  sglang:
    image: lmsysorg/sglang:latest
    environment:
      HF_TOKEN: <secret>
    entrypoint: python3 -m sglang.launch_server
    command:
      --model-path meta-llama/Meta-Llama-3.1-8B-Instruct
      --host 0.0.0.0
      --port 30000
    deploy:
      resources:
        reservations:
          devices:
            - {driver: nvidia, device_ids: ['0'], capabilities: [gpu]}
""",
        suffix=".yaml",
        gpu="b200",
        expected={"engine.policy": "sglang", "engine.chunked_prefill_size": 16384, "model": "llama-3.1-8b"},
    ),
    Case(
        "llama-3.3-70b guide of TensorRT-LLM",
        "https://github.com/NVIDIA/TensorRT-LLM/blob/main/docs/source/deployment-guide/",
        "trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP8 --host 0.0.0.0 --port 8000 --max_batch_size 1024 "
        "--max_num_tokens 2048 --max_seq_len 2048 --kv_cache_free_gpu_memory_fraction 0.9 --tp_size 1 --ep_size 1 "
        "--trust_remote_code --extra_llm_api_options config.yml",
        gpu="h200",
        expected={
            "engine.policy": "tensorrt_llm", "engine.max_num_seqs": 1024, "engine.max_num_batched_tokens": 2048,
            "model": {"base": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 1}, "engine.async_scheduling": True,
            "engine.enable_chunked_prefill": False,
        },
        left=("--max_seq_len", "--kv_cache_free_gpu_memory_fraction", "cuda_graph_config.max_batch_size"),
        files={"config.yml": "enable_attention_dp: false\ncuda_graph_config:\n  enable_padding: true\n"
               "  max_batch_size: 1024\nkv_cache_config:\n  dtype: fp8\n"},
    ),
    Case(
        "Dynamo's graph with vLLM",
        "https://github.com/ai-dynamo/dynamo/blob/main/examples/backends/vllm/deploy/agg.yaml",
        """apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata:
  name: vllm-agg
spec:
  services:
    Frontend:
      componentType: frontend
      replicas: 1
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:my-tag
    worker:
      componentType: worker
      replicas: 1
      resources: {limits: {gpu: "1"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:my-tag
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-0.6B]
""",
        suffix=".yaml",
        expected={"model": "qwen3-0.6b", "engine.max_num_seqs": 1024},
    ),
]  # fmt: skip
