"""Dimensions of a model, kinds of layers, precisions, and what follows: parameters, bytes of weights and KV."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Final, Literal

from annotated_types import Unit, doc

from simulator.errors import InputError
from simulator.parameters import check_choice

# Kinds of layers of a model, a letter each.
#
# The letters are those of Nemotron-H's `hybrid_override_pattern`, and W, C, G beside them. A pattern goes on from
# its start where the model has more layers than it has letters.

FULL, WINDOW, CHUNK, GATED_DELTA, MAMBA, DENSE, EXPERTS = "*WCGM-E"
LAYER_WORDS: Final = {
    FULL: "full_attention", WINDOW: "sliding_attention", CHUNK: "chunked_attention", GATED_DELTA: "linear_attention",
    MAMBA: "mamba", DENSE: "mlp", EXPERTS: "moe",
}  # fmt: skip
"""Letters with the words of `layer_types` in a config.json."""
ATTENTION: Final = FULL + WINDOW + CHUNK
STATES: Final = GATED_DELTA + MAMBA
FEED_FORWARD: Final = DENSE + EXPERTS
GATED_DELTA_CHECKPOINT = 64
"""Tokens at whose multiples FlashInfer's kernel of gated delta nets can save a state, on Hopper and Blackwell."""


def repeated(pattern: str, layers: int) -> str:
    """The pattern, repeated until it has so many letters."""
    return (pattern * -(-layers // len(pattern)))[:layers]


def shortest(letters: str) -> str:
    """The shortest pattern that is `letters` when repeated."""
    return next(letters[:n] for n in range(1, len(letters) + 1) if repeated(letters[:n], len(letters)) == letters)


def from_words(words: Sequence[object]) -> str:
    """The pattern of a config.json's `layer_types`. InputError on a word that is not known."""
    letters = {word: letter for letter, word in LAYER_WORDS.items()}
    for word in words:
        if word not in letters:
            raise InputError(
                f"config.json: layer_types has {word!r}, which is not simulated", hint=f"known: {', '.join(letters)}"
            )
    return shortest("".join([letters[str(word)] for word in words])) if words else ""


# Model dimensions, and the figures derived from them: parameters, bytes of weights, bytes of KV cache.

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
    v_head_dim: Annotated[int, doc("width of a value head (multi-head latent attention); 0: head_dim")] = 0
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
    sliding_window: Annotated[int, doc("tokens that a query sees in layers with a window; 0: all")] = 0
    full_attention_layers: Annotated[int, doc("layers without that window; layer_types says it too")] = 0
    expert_dtype: Annotated[
        Literal["auto", "bf16", "fp8", "fp8_block", "int4", "nvfp4", "mxfp4", "mxfp4_mxfp8"],
        doc("precision of routed experts' weights; auto: that of the other weights; mxfp4_mxfp8: tokens in mxfp8"),
    ] = "auto"
    expert_group_size: Annotated[int, doc("values that share a scale in int4 experts; 0: 128")] = 0
    index_topk: Annotated[int, doc("keys that a query attends to, chosen by an indexer (sparse attention); 0: all")] = 0
    index_heads: Annotated[int, doc("query heads of that indexer")] = 64
    index_head_dim: Annotated[int, doc("width of its heads; its keys are cached in fp8, with a scale each")] = 128
    attention_gate: Annotated[bool, doc("attention's output is multiplied by a gate, projected with the queries")] = (
        False
    )
    linear_layers: Annotated[int, doc("layers with linear attention (gated delta net), which keep a state")] = 0
    linear_key_heads: Annotated[int, doc("key heads of linear attention; groups of Mamba 2")] = 0
    linear_value_heads: Annotated[int, doc("value heads of linear attention; heads of Mamba 2")] = 0
    linear_head_dim: Annotated[int, doc("width of a head of linear attention; the state size of Mamba 2")] = 128
    linear_value_head_dim: Annotated[int, doc("width of a value head of linear attention; 0: as above")] = 0
    encoder_parameters: Annotated[float, doc("parameters of the encoder of images, in bf16; 0: none")] = 0.0
    encoder_patches: Annotated[int, doc("patches of an image that one token stands for")] = 4
    num_nextn_predict_layers: Annotated[
        int, doc("layers for multi-token prediction (MTP), which take part in speculative decoding alone")
    ] = 0
    layer_types: Annotated[
        str,
        doc("kinds of layers, a pattern: * full, W window, C chunked, G gated delta net, M Mamba 2, - MLP, E experts"),
    ] = ""
    attention_chunk_size: Annotated[int, doc("tokens of a chunk in layers with chunked local attention")] = 0
    linear_conv_kernel_dim: Annotated[int, doc("tokens that the convolution before linear attention sees")] = 4
    state_dtype_bytes: Annotated[int, doc("bytes of a value of its recurrent state: 1, 2 or 4")] = 2

    @property
    def embedding_bytes(self) -> float:
        """Bytes of a weight of the embedding tables, the head among them: quantisers leave these in 16 bits.

        In vLLM `Fp8Config` and ModelOpt's apply to linear layers alone, and published files list `lm_head` as ignored.
        """
        return max(self.dtype_bytes, 2)

    @property
    def expert_bytes(self) -> float:
        """Bytes of a weight of a routed expert, scales included."""
        if self.expert_dtype == "int4" and self.expert_group_size:
            return 0.5 + 2 / self.expert_group_size
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
    def kinds_of_layers(self) -> str:
        """The letters of all layers. Without `layer_types`, those with a window or a state come first."""
        if not self.layer_types:
            windowed, linear = self.windowed_layers, self.linear_layers
            return WINDOW * windowed + GATED_DELTA * linear + FULL * (self.layers - windowed - linear)
        return repeated(self.layer_types, self.layers)

    @property
    def num_parameters(self) -> int:
        """All parameters, embeddings included (tied ones once)."""
        return self._parameters(self.experts, 1, self.kv_heads, embeddings=1 if self.tie_embeddings else 2)

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses: those of `active_experts` instead of all experts; embeddings as above."""
        return self._parameters(self.active_experts, 1, self.kv_heads, embeddings=1 if self.tie_embeddings else 2)

    @property
    def has_states(self) -> bool:
        """Return whether some layers keep a state of fixed size instead of tokens."""
        return self.linear_layers > 0 or any(letter in self.layer_types for letter in STATES)

    @property
    def state_layers(self) -> int:
        """Layers that keep a state of fixed size."""
        return sum([letter in STATES for letter in self.kinds_of_layers])

    @property
    def sublayers(self) -> int:
        """Mixers and feed-forwards of all layers; each has a norm, and under tensor parallelism an all-reduce."""
        return self.layers if self._feeds_apart else 2 * self.layers

    @property
    def dense_share(self) -> float:
        """The part of the layers with a feed-forward that is not made of experts."""
        if self._feeds_apart:
            return self.kinds_of_layers.count(DENSE) / self.layers
        return 1.0 - self.moe_layers / self.layers

    @property
    def value_head_dim(self) -> int:
        """Width of a value head of linear attention."""
        return self.linear_value_head_dim or self.linear_head_dim

    @property
    def has_kv_groups(self) -> bool:
        """Return whether its layers keep different things of a request, or not all tokens."""
        kinds = set(self.kinds_of_layers) - set(FEED_FORWARD)
        return kinds != {FULL}

    @property
    def attention_layers(self) -> int:
        """Layers with attention, whose keys and values the cache holds."""
        return sum([letter in ATTENTION for letter in self.kinds_of_layers])

    @property
    def moe_layers(self) -> int:
        """Layers whose feed-forward is made of experts."""
        if self._feeds_apart:
            return self.kinds_of_layers.count(EXPERTS)
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def _feeds_apart(self) -> bool:
        """Return whether feed-forwards are layers of their own."""
        return any(letter in self.layer_types for letter in FEED_FORWARD)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert of one layer."""
        return self._mlp(self.intermediate, 1)

    def kv_bytes_per_token(self, tensor_parallel: int = 1) -> int:
        """Bytes of KV cache of a token on each GPU: keys and values of all attention layers, for the rank's own heads.

        A rank holds at least one KV head: beyond `kv_heads` GPUs the cache is replicated. A latent cache is never
        divided. Raises InputError where `tensor_parallel` does not fit the heads.
        """
        local = self.local_kv_heads(tensor_parallel)
        width = self.kv_lora_rank + self.rope_head_dim if self.kv_lora_rank else 2 * local * self.head_dim
        return self.attention_layers * (width * self.kv_dtype_bytes + self.index_bytes_per_token)

    @property
    def index_bytes_per_token(self) -> int:
        """Bytes of an indexer's key of one layer: fp8 with a scale of 4 bytes for 128 (vLLM 0.33, deepseek_v2.py)."""
        return self.index_head_dim + self.index_head_dim // 128 * 4 if self.index_topk else 0

    def weight_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of weights on each GPU: matrices are divided; norms, routers, positions, replicated KV heads not.

        A fraction of a GPU (an uneven vocabulary) counts as the larger part. Raises InputError as above.
        """
        local = self.local_kv_heads(tensor_parallel)
        routed = self.moe_layers * self.experts * self._mlp(self.intermediate, tensor_parallel)
        rest = self._parameters(self.experts, tensor_parallel, local, embeddings=0) - routed
        tables = (1 if self.tie_embeddings else 2) * self.table_parameters(tensor_parallel)
        encoder = 2 * self.encoder_parameters / tensor_parallel
        return ceil(rest * self.dtype_bytes + routed * self.expert_bytes + tables * self.embedding_bytes + encoder)

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
        found = Counter(self.kinds_of_layers)
        mixers = self.attention_layers * self._attention(ranks, kv_heads)
        mixers += sum([found[letter] * self._linear_attention(letter, ranks) for letter in STATES])
        dense = found[DENSE] if self._feeds_apart else self.layers - self.moe_layers
        plain = self._mlp(self.dense_intermediate or self.intermediate, ranks)
        routed = (experts + self.shared_experts) * self._mlp(self.intermediate, ranks)
        total = mixers + self.moe_layers * (self.hidden * self.experts + routed) + dense * plain
        return (
            total
            + (self.sublayers + 1) * norm
            + embeddings * self.table_parameters(ranks)
            + self.positions * self.hidden
        )

    def _linear_attention(self, letter: str, ranks: int) -> int:
        """Parameters of a layer with a state: projections, convolution, and what scales the state.

        (transformers' `Qwen3NextGatedDeltaNet` and `NemotronHMamba2Mixer`)
        """
        keys = self.linear_key_heads * self.linear_head_dim
        values = self.linear_value_heads * self.value_head_dim
        heads, channels = self.linear_value_heads, 2 * keys + values
        if letter == MAMBA:  # one decay for each head; the convolution has a bias
            total = self.hidden * (channels + values + heads) + channels + 3 * heads + values
        else:
            total = self.hidden * (channels + values + 2 * heads) + 2 * heads + self.value_head_dim
        return -(-(total + channels * self.linear_conv_kernel_dim + values * self.hidden) // ranks)

    def _attention(self, ranks: int, kv_heads: int) -> int:
        heads = self.heads // ranks
        if self.kv_lora_rank:
            query_width = heads * (self.head_dim + self.rope_head_dim)
            query = self.hidden * query_width
            if self.q_lora_rank:  # through a bottleneck, with a norm
                query = self.q_lora_rank * (self.hidden + 1 + query_width)
            down = self.hidden * (self.kv_lora_rank + self.rope_head_dim) + self.kv_lora_rank
            values = self.v_head_dim or self.head_dim
            up = self.kv_lora_rank * heads * (self.head_dim + values)
            return query + down + up + heads * values * self.hidden + self._indexer()
        query_key_value = (heads + 2 * kv_heads) * self.head_dim
        total = self.hidden * query_key_value + heads * self.head_dim * self.hidden
        if self.attention_gate:
            total += self.hidden * heads * self.head_dim
        if self.qkv_bias or self.biases:
            total += query_key_value
        if self.biases:
            total += self.hidden
        if self.qk_norm:
            total += (heads + kv_heads) * self.head_dim if self.qk_norm_whole else 2 * self.head_dim
        return total

    def _indexer(self) -> int:
        """Parameters of a layer's indexer, which is whole on each GPU: its queries, its key, their weights, a norm."""
        if not self.index_topk:
            return 0
        width = self.index_head_dim
        return self.q_lora_rank * self.index_heads * width + self.hidden * (width + self.index_heads) + 2 * width

    def _mlp(self, intermediate: int, ranks: int) -> int:
        local = -(-intermediate // ranks)
        total = (3 if self.gated_mlp else 2) * self.hidden * local
        return total + local + self.hidden if self.biases else total


# Precisions by name, as vLLM's `--quantization` and `--kv-cache-dtype` have them: what they mean for a model.

NVFP4_BYTES = EXPERT_BYTES["nvfp4"]

BF16: Mapping[str, Any] = {"dtype_bytes": 2, "matmul_dtype": "auto", "expert_dtype": "auto"}
FP8: Mapping[str, object] = {"dtype_bytes": 1}
FP8_BLOCK: Mapping[str, Any] = {"dtype_bytes": 1, "matmul_dtype": "fp8_block"}
NVFP4: Mapping[str, object] = {"dtype_bytes": NVFP4_BYTES, "matmul_dtype": "nvfp4"}
FP8_CACHE: Mapping[str, object] = {"kv_dtype_bytes": 1}

PRECISION_WORDS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "quantization": {
        "none": {"dtype_bytes": 2, "expert_dtype": "auto"}, "fp8": {**FP8, "expert_dtype": "auto"},
        "fp8_block": {**FP8_BLOCK, "expert_dtype": "auto"}, "nvfp4": {**NVFP4, "expert_dtype": "auto"},
        "int4": {"dtype_bytes": EXPERT_BYTES["int4"], "matmul_dtype": "bf16", "expert_dtype": "auto"},
    },
    "kv_cache_dtype": {"bfloat16": {"kv_dtype_bytes": 2}, "fp8": FP8_CACHE},
}  # fmt: skip
"""Fields of `Model` that a word stands for, by the key of a mapping that takes it."""


def spelled_out(mapping: Mapping[str, object]) -> dict[str, object]:
    """Return a mapping of dimensions with the fields of `Model` in place of `quantization` and `kv_cache_dtype`.

    All weights take a `quantization`, those of experts too. Raises InputError for an unknown word, and for a word
    beside a field that it stands for.
    """
    found = {key: value for key, value in mapping.items() if key not in PRECISION_WORDS}
    for key in PRECISION_WORDS.keys() & mapping.keys():
        fields = dict(PRECISION_WORDS[key][check_choice(str(mapping[key]), PRECISION_WORDS[key], key)])
        if key == "quantization":
            fields = {"matmul_dtype": "auto", **fields}
        if both := sorted(fields.keys() & mapping.keys()):
            raise InputError(f"model: {key} says the precision, as {both[0]} does", hint=f"leave {both[0]} out")
        found |= fields
    return found
