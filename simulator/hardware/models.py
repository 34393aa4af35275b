"""Model dimensions, and the figures derived from them: parameters, bytes of weights, bytes of KV cache.

Dimensions are those of each model's published `config.json`. The derived parameter counts are tested against those
that the makers state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Literal

from annotated_types import Unit, doc

from simulator.errors import InputError
from simulator.hardware.dimensions import check_choice, fields_from

EXPERT_BYTES: Mapping[str, float] = {
    "bf16": 2, "fp8": 1, "fp8_block": 1, "int4": 0.5 + 2 / 128, "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32, "mxfp4_mxfp8": 0.5 + 1 / 32,
}  # fmt: skip
"""Bytes of a weight with its scales: int4 one of 2 bytes for 128 values, nvfp4 one of a byte for 16, mxfp4 for 32."""


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer by its dimensions.

    With `kv_lora_rank` > 0 (multi-head latent attention) the cache holds one latent of that width and one rope key of
    `rope_head_dim` a token, whatever the number of heads.
    """

    name: Annotated[str, doc("name in reports")]
    layers: Annotated[int, doc("transformer layers")]
    hidden: Annotated[int, doc("width of the residual stream")]
    intermediate: Annotated[int, doc("width of the feed-forward, or of one expert")]
    heads: Annotated[int, doc("query heads")]
    kv_heads: Annotated[int, doc("key and value heads")]
    head_dim: Annotated[int, doc("width of a head; default: hidden / heads")]
    vocab: Annotated[int, doc("rows of the embedding table")]
    max_model_len: Annotated[int, doc("longest context"), Unit("tokens")]
    experts: Annotated[int, doc("routed experts of a layer; 0: a dense model")] = 0
    active_experts: Annotated[int, doc("routed experts that a token uses")] = 0
    shared_experts: Annotated[int, doc("experts that every token uses")] = 0
    dense_layers: Annotated[int, doc("leading layers with a plain feed-forward instead of experts")] = 0
    dense_intermediate: Annotated[int, doc("width of the feed-forward in those layers")] = 0
    q_lora_rank: Annotated[int, doc("width of the query's bottleneck (multi-head latent attention)")] = 0
    kv_lora_rank: Annotated[int, doc("width of the cached latent; above 0: multi-head latent attention")] = 0
    rope_head_dim: Annotated[int, doc("width of the cached rope key (multi-head latent attention)")] = 0
    tie_embeddings: Annotated[bool, doc("input and output embeddings are one table")] = False
    qkv_bias: Annotated[bool, doc("query, key and value projections have biases")] = False
    qk_norm: Annotated[bool, doc("queries and keys are normalised, with a weight for each of head_dim")] = False
    qk_norm_whole: Annotated[
        bool, doc("that norm is over all heads at once, whose GPUs add up its squares (MiniMax)")
    ] = False
    gated_mlp: Annotated[bool, doc("three feed-forward matrices (SwiGLU), otherwise two")] = True
    biases: Annotated[bool, doc("every matrix and norm has a bias (GPT-2)")] = False
    positions: Annotated[int, doc("rows of a learned position table")] = 0
    dtype_bytes: Annotated[
        float,
        doc("bytes of a weight: 1, 2, 4, or a fraction with the scales of quantised ones; embeddings have at least 2"),
    ] = 2
    kv_dtype_bytes: Annotated[int, doc("bytes of a cached value: 1, 2 or 4")] = 2
    matmul_dtype: Annotated[
        Literal["auto", "bf16", "fp8", "fp8_block", "nvfp4", "fp4"],
        doc("precision of products; auto: fp8 where a weight is a byte, else bf16; nvfp4 (or fp4): 0.5625 bytes"),
    ] = "auto"
    sliding_window: Annotated[
        int, doc("tokens that a query sees in layers with a window; 0: all. The cache keeps all tokens in any case")
    ] = 0
    full_attention_layers: Annotated[int, doc("layers without that window")] = 0
    expert_dtype: Annotated[
        Literal["auto", "bf16", "fp8", "fp8_block", "int4", "nvfp4", "mxfp4", "mxfp4_mxfp8"],
        doc("precision of routed experts' weights; auto: that of the other weights; mxfp4_mxfp8: tokens in mxfp8"),
    ] = "auto"
    index_topk: Annotated[int, doc("keys that a query attends to, chosen by an indexer (sparse attention); 0: all")] = 0
    attention_gate: Annotated[bool, doc("attention's output is multiplied by a gate, projected with the queries")] = (
        False
    )
    linear_layers: Annotated[int, doc("layers with linear attention (gated delta net), which keep a state")] = 0
    linear_key_heads: Annotated[int, doc("key heads of linear attention")] = 0
    linear_value_heads: Annotated[int, doc("value heads of linear attention")] = 0
    linear_head_dim: Annotated[int, doc("width of a head of linear attention")] = 128
    num_nextn_predict_layers: Annotated[
        int, doc("layers for multi-token prediction (MTP), which take part in speculative decoding alone")
    ] = 0

    @property
    def embedding_bytes(self) -> float:
        """Bytes of a weight of the embedding tables, the head among them: quantisers leave these in 16 bits.

        In vLLM `Fp8Config` and ModelOpt's apply to linear layers alone, and published files list `lm_head` as ignored.
        """
        return max(self.dtype_bytes, 2)

    @property
    def expert_bytes(self) -> float:
        """Bytes of a weight of a routed expert, scales included."""
        return self.dtype_bytes if self.expert_dtype == "auto" else EXPERT_BYTES[self.expert_dtype]

    @property
    def multiplied_in(self) -> str:
        """The precision of matrix products: weights of other widths than a byte are widened to bf16 unless told."""
        if self.matmul_dtype == "fp4":
            return "nvfp4"
        if self.matmul_dtype != "auto":
            return self.matmul_dtype
        return "fp8" if self.dtype_bytes == 1 else "bf16"

    @property
    def experts_multiplied_in(self) -> str:
        """The precision of routed experts' products: 4-bit weights beside bf16 tokens are widened on the way."""
        if self.expert_dtype == "auto":
            return self.multiplied_in
        return {"int4": "bf16", "nvfp4": "nvfp4", "mxfp4": "bf16", "mxfp4_mxfp8": "fp8"}.get(
            self.expert_dtype, self.expert_dtype
        )

    @property
    def windowed_layers(self) -> int:
        """Layers whose queries see a window of the context."""
        return self.layers - self.full_attention_layers if self.sliding_window else 0

    @property
    def num_parameters(self) -> int:
        """All parameters, embeddings included (tied ones once)."""
        return self._parameters(self.experts, 1, self.kv_heads, embeddings=1 if self.tie_embeddings else 2)

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses: those of `active_experts` instead of all experts; embeddings as above."""
        return self._parameters(self.active_experts, 1, self.kv_heads, embeddings=1 if self.tie_embeddings else 2)

    @property
    def moe_layers(self) -> int:
        """Layers whose feed-forward is made of experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert of one layer."""
        return self._mlp(self.intermediate, 1)

    def kv_bytes_per_token(self, tensor_parallel: int = 1) -> int:
        """Bytes of KV cache of a token on each GPU: keys and values of all layers, for the rank's own heads.

        A rank holds at least one KV head: beyond `kv_heads` GPUs the cache is replicated. A latent cache is never
        divided. Raises InputError where `tensor_parallel` does not fit the heads.
        """
        local = self.local_kv_heads(tensor_parallel)
        width = self.kv_lora_rank + self.rope_head_dim if self.kv_lora_rank else 2 * local * self.head_dim
        return (self.layers - self.linear_layers) * width * self.kv_dtype_bytes

    def weight_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of weights on each GPU: matrices are divided; norms, routers, positions, replicated KV heads not.

        A fraction of a GPU (an uneven vocabulary) counts as the larger part. Raises InputError as above.
        """
        local = self.local_kv_heads(tensor_parallel)
        routed = self.moe_layers * self.experts * self._mlp(self.intermediate, tensor_parallel)
        rest = self._parameters(self.experts, tensor_parallel, local, embeddings=0) - routed
        tables = (1 if self.tie_embeddings else 2) * self.table_parameters(tensor_parallel)
        return ceil(rest * self.dtype_bytes + routed * self.expert_bytes + tables * self.embedding_bytes)

    def layer_parameters(self, tensor_parallel: int = 1) -> int:
        """Parameters on each GPU that every token of a step uses: all layers, without embeddings and routed experts."""
        return self._parameters(0, tensor_parallel, self.local_kv_heads(tensor_parallel), embeddings=0)

    def table_parameters(self, tensor_parallel: int = 1) -> int:
        """Parameters of one embedding table on each GPU; the head is as large."""
        return -(-self.vocab // tensor_parallel) * self.hidden

    def local_kv_heads(self, tensor_parallel: int) -> int:
        """KV heads on each of `tensor_parallel` GPUs; InputError where the heads cannot be divided, as in vLLM."""
        if tensor_parallel < 1 or self.heads % tensor_parallel:
            raise self._cannot_split(tensor_parallel, f"its {self.heads} attention heads")
        if self.kv_lora_rank:
            return self.kv_heads
        if self.kv_heads % tensor_parallel and tensor_parallel % self.kv_heads:
            raise self._cannot_split(tensor_parallel, f"its {self.kv_heads} KV heads")
        return max(1, self.kv_heads // tensor_parallel)

    def tensor_parallel_choices(self) -> list[int]:
        """The sizes that `local_kv_heads` accepts, ascending."""
        return [
            n
            for n in range(1, self.heads + 1)
            if self.heads % n == 0 and (self.kv_lora_rank or self.kv_heads % n == 0 or n % self.kv_heads == 0)
        ]

    def _cannot_split(self, tensor_parallel: int, what: str) -> InputError:
        allowed = ", ".join(str(n) for n in self.tensor_parallel_choices())
        return InputError(
            f"tensor_parallel {tensor_parallel} does not divide {what} ({self.name})", hint=f"allowed: {allowed}"
        )

    # ------------------------------------------------------------------------------------------------------- counting

    def _parameters(self, experts: int, ranks: int, kv_heads: int, embeddings: int) -> int:
        """Parameters on each of `ranks` GPUs, for so many routed experts, KV heads of a rank, embedding tables."""
        norm = self.hidden * (2 if self.biases else 1)
        layer = self._attention(ranks, kv_heads) + 2 * norm
        routed = self._mlp(self.intermediate, ranks)
        if self.experts:
            router = self.hidden * self.experts
            total = self.moe_layers * (layer + router + (experts + self.shared_experts) * routed)
            total += self.dense_layers * (layer + self._mlp(self.dense_intermediate, ranks))
        else:
            total = self.layers * (layer + routed)
        total += self.linear_layers * (self._linear_attention(ranks) - self._attention(ranks, kv_heads))
        return total + norm + embeddings * self.table_parameters(ranks) + self.positions * self.hidden

    def _attention(self, ranks: int, kv_heads: int) -> int:
        heads = self.heads // ranks
        if self.kv_lora_rank:
            query_width = heads * (self.head_dim + self.rope_head_dim)
            query = self.hidden * query_width
            if self.q_lora_rank:  # through a bottleneck, with a norm
                query = self.q_lora_rank * (self.hidden + 1 + query_width)
            down = self.hidden * (self.kv_lora_rank + self.rope_head_dim) + self.kv_lora_rank
            up = self.kv_lora_rank * heads * 2 * self.head_dim
            return query + down + up + heads * self.head_dim * self.hidden
        query_key_value = ((2 if self.attention_gate else 1) * heads + 2 * kv_heads) * self.head_dim
        total = self.hidden * query_key_value + heads * self.head_dim * self.hidden
        if self.qkv_bias or self.biases:
            total += query_key_value
        if self.biases:
            total += self.hidden
        if self.qk_norm:
            total += 2 * self.head_dim
        return total

    def _linear_attention(self, ranks: int) -> int:
        """Projections of queries, keys, values, gate, decay and rate, a convolution of four tokens, and the output."""
        heads = self.linear_key_heads, self.linear_value_heads
        keys, values = (count * self.linear_head_dim // ranks for count in heads)
        projected = self.hidden * (2 * keys + 3 * values + 2 * self.linear_value_heads // ranks)
        return projected + 4 * (2 * keys + values)

    def _mlp(self, intermediate: int, ranks: int) -> int:
        local = -(-intermediate // ranks)
        total = (3 if self.gated_mlp else 2) * self.hidden * local
        return total + local + self.hidden if self.biases else total


# Each model under its Hugging Face name, with the dimensions of the config.json there. `max_model_len` is
# its max_position_embeddings: Llama 3.1 128 Ki, Mistral 7B v0.2 (v0.1 has a sliding window) and Mixtral 32 Ki,
# Qwen2.5-Instruct 32 Ki without YaRN, Qwen3 40 Ki without YaRN, Llama 2 4 Ki, GPT-2 1 Ki.
_LLAMA_3_VOCAB = 128256
_QWEN_3_VOCAB = 151936
_LATENT: Mapping[str, Any] = {"kv_lora_rank": 512, "rope_head_dim": 64}
_FP8_BLOCKS: Mapping[str, Any] = {"dtype_bytes": 1, "matmul_dtype": "fp8_block"}
_TABLE: Mapping[str, Model] = {
    "meta-llama/Llama-2-7b-chat-hf":
        Model("llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000, 4096),
    "meta-llama/Llama-2-70b-chat-hf":
        Model("llama-2-70b", 80, 8192, 28672, 64, 8, 128, 32000, 4096),
    "meta-llama/Llama-3.1-8B-Instruct":
        Model("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, _LLAMA_3_VOCAB, 131072),
    "meta-llama/Llama-3.1-70B-Instruct":
        Model("llama-3.1-70b", 80, 8192, 28672, 64, 8, 128, _LLAMA_3_VOCAB, 131072),
    "meta-llama/Llama-3.1-405B-Instruct":
        Model("llama-3.1-405b", 126, 16384, 53248, 128, 8, 128, _LLAMA_3_VOCAB, 131072),
    "mistralai/Mistral-7B-Instruct-v0.2":
        Model("mistral-7b", 32, 4096, 14336, 32, 8, 128, 32000, 32768),
    "mistralai/Mixtral-8x7B-Instruct-v0.1":
        Model("mixtral-8x7b", 32, 4096, 14336, 32, 8, 128, 32000, 32768, experts=8, active_experts=2),
    "mistralai/Mixtral-8x22B-Instruct-v0.1":
        Model("mixtral-8x22b", 56, 6144, 16384, 48, 8, 128, 32768, 65536, experts=8, active_experts=2),
    "Qwen/Qwen2.5-7B-Instruct":
        Model("qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, 32768, qkv_bias=True),
    "Qwen/Qwen2.5-72B-Instruct":
        Model("qwen2.5-72b", 80, 8192, 29568, 64, 8, 128, 152064, 32768, qkv_bias=True),
    "Qwen/Qwen3-0.6B":
        Model("qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, _QWEN_3_VOCAB, 40960, tie_embeddings=True, qk_norm=True),
    "Qwen/Qwen3-8B":
        Model("qwen3-8b", 36, 4096, 12288, 32, 8, 128, _QWEN_3_VOCAB, 40960, qk_norm=True),
    "Qwen/Qwen3-32B":
        Model("qwen3-32b", 64, 5120, 25600, 64, 8, 128, _QWEN_3_VOCAB, 40960, qk_norm=True),
    "Qwen/Qwen3-30B-A3B": Model(
        "qwen3-30b-a3b", 48, 2048, 768, 32, 4, 128, _QWEN_3_VOCAB, 40960,
        experts=128, active_experts=8, qk_norm=True,
    ),
    "Qwen/Qwen3-235B-A22B": Model(
        "qwen3-235b-a22b", 94, 4096, 1536, 64, 4, 128, _QWEN_3_VOCAB, 40960,
        experts=128, active_experts=8, qk_norm=True,
    ),
    # Biases of the output projection, the router and the experts, and the sinks, are not counted: 0.04 %.
    "openai/gpt-oss-20b": Model(
        "gpt-oss-20b", 24, 2880, 2880, 64, 8, 64, 201088, 131072, experts=32, active_experts=4, qkv_bias=True,
        sliding_window=128, full_attention_layers=12, expert_dtype="mxfp4",
    ),
    "openai/gpt-oss-120b": Model(
        "gpt-oss-120b", 36, 2880, 2880, 64, 8, 64, 201088, 131072, experts=128, active_experts=4, qkv_bias=True,
        sliding_window=128, full_attention_layers=18, expert_dtype="mxfp4",
    ),
    "openai-community/gpt2": Model(
        "gpt2", 12, 768, 3072, 12, 12, 64, 50257, 1024,
        tie_embeddings=True, gated_mlp=False, biases=True, positions=1024,
    ),
    # In the precision in which they are published, without the layers for multi-token prediction. DeepSeek-R1 has all
    # dimensions of DeepSeek-V3.
    "deepseek-ai/DeepSeek-V3": Model(
        "deepseek-v3", 61, 7168, 2048, 128, 128, 128, 129280, 163840, experts=256, active_experts=8, shared_experts=1,
        dense_layers=3, dense_intermediate=18432, q_lora_rank=1536, **_LATENT, **_FP8_BLOCKS,
        num_nextn_predict_layers=1,
    ),
    "moonshotai/Kimi-K2-Instruct": Model(
        "kimi-k2", 61, 7168, 2048, 64, 64, 128, 163840, 131072, experts=384, active_experts=8, shared_experts=1,
        dense_layers=1, dense_intermediate=18432, q_lora_rank=1536, **_LATENT, **_FP8_BLOCKS,
    ),
    "deepseek-ai/DeepSeek-V2-Chat": Model(
        "deepseek-v2", 60, 5120, 1536, 128, 128, 128, 102400, 163840, experts=160, active_experts=6, shared_experts=2,
        dense_layers=1, dense_intermediate=12288, q_lora_rank=1536, **_LATENT,
    ),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": Model(
        "deepseek-v2-lite", 27, 2048, 1408, 16, 16, 128, 102400, 163840, experts=64, active_experts=6,
        shared_experts=2, dense_layers=1, dense_intermediate=10944, **_LATENT,
    ),
}  # fmt: skip

MODELS: dict[str, Model] = {model.name: model for model in _TABLE.values()}
"""The built-in models by name, in the order in which they are listed."""
HUGGING_FACE: Mapping[str, str] = {model.name: name for name, model in _TABLE.items()}
"""The Hugging Face name of each built-in model, which servers take."""

SAME_DIMENSIONS: Mapping[str, str] = {
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b", "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3-70B-Instruct": "llama-3.1-70b", "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3", "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b",
}  # fmt: skip
"""Other models with the dimensions of a built-in one: by their config.json they differ in weights and context alone."""


NVFP4_BYTES = 0.5625  # bytes of a weight in nvfp4: 4 bits, and a byte of scale for each 16 weights
FEWEST_WEIGHT_BYTES = 0.1  # weights of a bit have 0.125 bytes

REQUIRED = ("layers", "hidden", "intermediate", "heads", "kv_heads", "vocab", "max_model_len")
"""The dimensions that a mapping without a `base` must give."""


def find_model(name: str) -> Model:
    """The built-in model of that name; InputError with the nearest names otherwise."""
    return MODELS[check_choice(name, MODELS, "model")]


def custom_model(mapping: Mapping[str, object]) -> Model:
    """A model from a mapping of dimensions (the YAML's `model: {...}`), keyed like the fields of `Model`.

    With `base: NAME` the built-in model of that name gives every dimension that the mapping leaves out. Without it
    those of `REQUIRED` must be there; `head_dim` is hidden / heads unless given. InputError on unknown, missing,
    mistyped or contradictory values.
    """
    defaults: dict[str, object] = {"name": "custom"}
    hidden, heads = mapping.get("hidden"), mapping.get("heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0:
        defaults["head_dim"] = hidden // heads
    model = fields_from(Model, mapping, defaults, find_model, "model")
    _check(model)
    return model


def _check(model: Model) -> None:
    positive = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "max_model_len")
    for field in (*positive, "kv_dtype_bytes"):
        if getattr(model, field) < 1:
            raise InputError(f"model: {field} must be at least 1, not {getattr(model, field)}")
    for field in Model.__slots__:
        value = getattr(model, field)
        if isinstance(value, int) and value < 0:
            raise InputError(f"model: {field} must not be negative, but is {value}")
    if model.kv_dtype_bytes not in (1, 2, 4):
        raise InputError(f"model: kv_dtype_bytes must be 1 (fp8), 2 (bf16) or 4 (fp32), not {model.kv_dtype_bytes}")
    if not (FEWEST_WEIGHT_BYTES <= model.dtype_bytes <= 2 or model.dtype_bytes == 4):
        raise InputError(
            f"model: dtype_bytes must be 1 (fp8), 2 (bf16), 4 (fp32) or a fraction of at least {FEWEST_WEIGHT_BYTES}"
            f" and below 2 (quantised, scales included), not {model.dtype_bytes:g}"
        )
    if model.heads % model.kv_heads:
        raise InputError(f"model: kv_heads ({model.kv_heads}) must divide heads ({model.heads})")
    if model.experts and not 1 <= model.active_experts <= model.experts:
        raise InputError(f"model: active_experts must be 1 to {model.experts} (experts), not {model.active_experts}")
    if not model.experts and model.expert_dtype != "auto":
        raise InputError("model: expert_dtype needs experts")
    if not model.experts and (model.active_experts or model.shared_experts or model.dense_layers):
        raise InputError("model: active_experts, shared_experts and dense_layers need experts")
    if model.full_attention_layers and not model.sliding_window:
        raise InputError("model: full_attention_layers needs sliding_window, which the other layers have")
    if model.full_attention_layers > model.layers:
        raise InputError(
            f"model: full_attention_layers ({model.full_attention_layers}) is more than layers ({model.layers})"
        )
    if model.dense_layers > model.layers:
        raise InputError(f"model: dense_layers ({model.dense_layers}) is more than layers ({model.layers})")
    if bool(model.dense_layers) != bool(model.dense_intermediate):
        raise InputError("model: dense_layers and dense_intermediate come together")
    if bool(model.linear_layers) != bool(model.linear_key_heads and model.linear_value_heads):
        raise InputError("model: linear_layers, linear_key_heads and linear_value_heads come together")
    if model.linear_layers >= model.layers or (model.linear_layers and (model.sliding_window or model.kv_lora_rank)):
        what = f"model: linear_layers ({model.linear_layers}) must be below layers ({model.layers})"
        raise InputError(f"{what}, and beside them is plain attention, without a window")
    if (model.q_lora_rank or model.rope_head_dim) and not model.kv_lora_rank:
        raise InputError("model: q_lora_rank and rope_head_dim need kv_lora_rank (multi-head latent attention)")
