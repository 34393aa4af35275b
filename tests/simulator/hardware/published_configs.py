"""The config.json of each built-in model, as far as it says dimensions."""

from typing import Any

Config = dict[str, Any]


def llama(**fields: object) -> Config:
    """A config.json like those of Llama; fields of None are left out."""
    plain: Config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    }
    return {key: value for key, value in (plain | fields).items() if value is not None}


def qwen(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **fields: object) -> Config:
    """A config.json like those of Qwen 3."""
    shape = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }
    return llama(**{
        "model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
        "rope_scaling": None, "sliding_window": None, "use_sliding_window": False, "max_window_layers": layers,
        **shape, **fields,
    })  # fmt: skip


MISTRAL = {"vocab_size": 32000, "max_position_embeddings": 32768, "rope_scaling": None, "attention_bias": None}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02}
QWEN_2 = {"model_type": "qwen2", "vocab_size": 152064, "max_position_embeddings": 32768, "sliding_window": 131072}
QWEN_MOE = {
    "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
LLAMA_2 = {"vocab_size": 32000, "max_position_embeddings": 4096, "rope_scaling": None, "torch_dtype": "float16"}
GPT2 = {
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "vocab_size": 50257, "activation_function": "gelu_new",
}  # fmt: skip


def gpt_oss(layers: int, experts: int, **fields: Any) -> Config:
    """openai/gpt-oss-20b and -120b: windows in every other layer, experts alone in mxfp4."""
    return {
        "model_type": "gpt_oss", "attention_bias": True, "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880,
        "initial_context_length": 4096, "intermediate_size": 2880, "max_position_embeddings": 131072,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2), "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": layers, "num_key_value_heads": 8, "num_local_experts": experts,
        "quantization_config": {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
            "quant_method": "mxfp4",
        },
        "rope_scaling": {"factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn"},
        "sliding_window": 128, "tie_word_embeddings": False, "vocab_size": 201088, **fields,
    }  # fmt: skip


QWEN_HYBRID: Config = {
    "attention_bias": False, "head_dim": 256, "hidden_size": 2048, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "moe_intermediate_size": 512, "num_attention_heads": 16,
    "num_key_value_heads": 2, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
}  # fmt: skip


CONFIGS: dict[str, Config] = {
    "llama-2-7b": llama(**LLAMA_2, intermediate_size=11008, num_key_value_heads=32),
    "llama-2-70b": llama(
        **LLAMA_2, hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_hidden_layers=80
    ),
    "llama-3.1-8b": llama(),
    "llama-3.1-70b": llama(hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_hidden_layers=80),
    "llama-3.1-405b": llama(hidden_size=16384, intermediate_size=53248, num_attention_heads=128, num_hidden_layers=126),
    "mistral-7b": llama(**MISTRAL, model_type="mistral", sliding_window=None),
    "mistral-small-24b": llama(
        **MISTRAL | {"vocab_size": 131072},
        model_type="mistral",
        sliding_window=None,
        head_dim=128,
        hidden_size=5120,
        intermediate_size=32768,
        num_hidden_layers=40,
    ),
    "mixtral-8x7b": llama(**MISTRAL, **MIXTRAL),
    "mixtral-8x22b": llama(
        **MISTRAL | {"vocab_size": 32768, "max_position_embeddings": 65536},
        **MIXTRAL,
        hidden_size=6144,
        intermediate_size=16384,
        num_attention_heads=48,
        num_hidden_layers=56,
    ),
    "qwen2.5-7b": qwen(28, 3584, 18944, 28, 4, **QWEN_2, head_dim=None),
    "qwen2.5-72b": qwen(80, 8192, 29568, 64, 8, **QWEN_2, head_dim=None),
    "qwen3-0.6b": qwen(28, 1024, 3072, 16, 8, tie_word_embeddings=True),
    "qwen3-8b": qwen(36, 4096, 12288, 32, 8),
    "qwen3-14b": qwen(40, 5120, 17408, 40, 8),
    "qwen3-32b": qwen(64, 5120, 25600, 64, 8),
    "qwen3-30b-a3b": qwen(48, 2048, 6144, 32, 4, **QWEN_MOE),
    "qwen3-235b-a22b": qwen(94, 4096, 12288, 64, 4, **QWEN_MOE | {"moe_intermediate_size": 1536}),
    "gpt-oss-20b": gpt_oss(24, 32),
    "gpt-oss-120b": gpt_oss(36, 128),
    "gpt2": GPT2,
    # The language models of Gemma 3 and Qwen3.5 stand beside a vision model.
    "gemma-3-27b": {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text",
            "head_dim": 128,
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "sliding_window": 1024,
            "query_pre_attn_scalar": 168,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    },
    "qwen3-next-80b-a3b": {
        **QWEN_HYBRID,
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "vocab_size": 151936,
        "full_attention_interval": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "intermediate_size": 5120,
    },
    "qwen3.5-35b-a3b": {
        "model_type": "qwen3_5_moe",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            **QWEN_HYBRID,
            "model_type": "qwen3_5_moe_text",
            "num_hidden_layers": 40,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "vocab_size": 248320,
            "mamba_ssm_dtype": "float32",
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        },
    },
    "nemotron-nano-9b-v2": {
        "model_type": "nemotron_h",
        "hidden_size": 4480,
        "intermediate_size": 15680,
        "num_hidden_layers": 56,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "n_groups": 8,
        "mamba_num_heads": 128,
        "mamba_head_dim": 80,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "use_bias": False,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "mamba_ssm_cache_dtype": "float32",
    },
}
DEEPSEEK: Config = {
    "model_type": "deepseek_v3", "attention_bias": False, "first_k_dense_replace": 3, "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
    "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
KIMI: Config = {
    **DEEPSEEK, "model_type": "kimi_k2", "first_k_dense_replace": 1, "max_position_embeddings": 131072,
    "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
    "rope_scaling": {"factor": 32.0, "original_max_position_embeddings": 4096, "type": "yarn"}, "vocab_size": 163840,
}  # fmt: skip
V2: Config = {
    **DEEPSEEK, "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 5120,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "num_hidden_layers": 60, "vocab_size": 102400,
}  # fmt: skip
del V2["quantization_config"], V2["num_nextn_predict_layers"]
CONFIGS |= {
    "deepseek-v3": DEEPSEEK,
    "kimi-k2": KIMI,
    "deepseek-v2": V2,
    "deepseek-v2-lite": {
        **V2, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
        "num_attention_heads": 16, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": None,
    },
}  # fmt: skip


LLAMA_4: Config = {
    "text_config": {
        "attention_bias": False, "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
        "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "max_position_embeddings": 10485760, "model_type": "llama4_text", "num_attention_heads": 40,
        "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
        "rope_scaling": {"factor": 16.0, "rope_type": "llama3"}, "use_qk_norm": True, "vocab_size": 202048,
    },
    "model_type": "llama4", "vision_config": {"hidden_size": 1408},
}  # fmt: skip
MAVERICK = {"interleave_moe_layer_step": 2, "max_position_embeddings": 1048576, "num_local_experts": 128}
GLM: Config = {
    "attention_bias": True, "first_k_dense_replace": 3, "head_dim": 128, "hidden_size": 5120,
    "intermediate_size": 12288, "max_position_embeddings": 131072, "model_type": "glm4_moe",
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 1, "num_attention_heads": 96,
    "num_experts_per_tok": 8, "num_hidden_layers": 92, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5, "use_qk_norm": True, "vocab_size": 151552,
}  # fmt: skip
INT4 = {"weights": {"num_bits": 4, "type": "int", "group_size": 32}, "input_activations": None}
CONFIGS |= {
    "qwen3-coder-480b-a35b": qwen(
        62, 6144, 8192, 96, 8,
        **{**QWEN_MOE, "num_experts": 160, "moe_intermediate_size": 2560, "max_position_embeddings": 262144},
    ),
    "llama-4-scout": LLAMA_4,
    "llama-4-maverick": {**LLAMA_4, "text_config": {**LLAMA_4["text_config"], **MAVERICK, "rope_scaling": None}},
    "glm-4.5": GLM,
    "glm-4.5-air": {
        **GLM, "first_k_dense_replace": 1, "hidden_size": 4096, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_hidden_layers": 46, "use_qk_norm": False,
    },
    "minimax-m2": {
        "head_dim": 128, "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608,
        "model_type": "minimax_m2", "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
        "num_key_value_heads": 8, "num_local_experts": 256, "qk_norm_type": "per_layer", "shared_intermediate_size": 0,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, "use_qk_norm": True,
        "vocab_size": 200064,
    },
    "qwen3.5-397b-a17b": {
        **QWEN_HYBRID, "hidden_size": 4096, "linear_num_value_heads": 64, "mamba_ssm_dtype": "float32",
        "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 1024, "num_attention_heads": 32,
        "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 60,
        "shared_expert_intermediate_size": 1024, "vocab_size": 248320,
    },
    "nemotron-3-nano-30b-a3b": {
        "conv_kernel": 4, "head_dim": 128, "hidden_size": 2688, "intermediate_size": 1856,
        "layers_block_type": [
            {"M": "mamba", "E": "moe", "*": "attention"}[letter]
            for letter in "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
        ],
        "mamba_head_dim": 64, "mamba_num_heads": 64, "mamba_ssm_cache_dtype": "float32",
        "max_position_embeddings": 262144, "model_type": "nemotron_h", "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "n_groups": 8, "n_routed_experts": 128, "n_shared_experts": 1,
        "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2,
        "ssm_state_size": 128, "tie_word_embeddings": False, "vocab_size": 131072,
    },
    "kimi-k2-thinking": {
        "model_type": "kimi_k25",
        "text_config": {
            **KIMI, "max_position_embeddings": 262144, "rope_scaling": None,
            "quantization_config": {
                "config_groups": {"group_0": INT4}, "ignore": ["lm_head", "re:.*self_attn.*"],
                "quant_method": "compressed-tensors",
            },
        },
    },
    "deepseek-v3.2": {
        **DEEPSEEK, "model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048
    },
    "glm-5": {
        **{key: value for key, value in DEEPSEEK.items() if key not in ("quantization_config", "rope_scaling")},
        "model_type": "glm_moe_dsa", "hidden_size": 6144, "index_head_dim": 128, "index_n_heads": 32,
        "index_topk": 2048, "intermediate_size": 12288, "max_position_embeddings": 202752, "num_attention_heads": 64,
        "num_hidden_layers": 78, "num_key_value_heads": 64, "q_lora_rank": 2048, "qk_nope_head_dim": 192,
        "v_head_dim": 256, "vocab_size": 154880,
    },
}  # fmt: skip
