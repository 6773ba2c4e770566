"""The tiny models of tests/data/models: what each is, and what a wrong loader would get wrong.

`config` is spelt as transformers 4 wrote it, because that is what people's directories hold; the maker derives the
spelling of transformers 5 from it (config_v5.json). `breaks` lists changes of the config that stand for a loader's
likely mistakes: the maker refuses a fixture whose logits would not show them.
"""

from dataclasses import dataclass, field

VOCAB = 64
END_OF_TEXT = VOCAB - 1
TOKENS = 24  # longer than every sliding window below


@dataclass
class Spec:
    name: str
    what: str  # for the README
    config: dict
    dtype: str = "bfloat16"  # of the stored weights; the golden is computed in f32 from these values
    breaks: dict = field(default_factory=dict)  # mistake -> config changes
    gguf: str | None = None  # --outtype of llama.cpp's converter; None where GGUF cannot carry the model
    shards: int = 1
    seed: int = 0  # another draw, where the first magnifies rounding


def base(architecture: str, model_type: str, **changes) -> dict:
    """The keys every architecture has. A value of `...` removes a key, as in a file that relies on the default."""
    config = {
        "architectures": [architecture],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": END_OF_TEXT,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 32,
        "max_position_embeddings": 256,
        "model_type": model_type,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 0.01,  # large, so that ignoring it shows
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": VOCAB,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def llama(**changes) -> dict:
    return base("LlamaForCausalLM", "llama", **{"mlp_bias": False, "pretraining_tp": 1, **changes})


def rope(**scaling) -> dict:
    return {"rope_scaling": scaling}


LLAMA3_SCALING = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,  # of the 8 frequencies: one kept, one blended, six divided
    "rope_type": "llama3",
}
NO_SCALING = {"RoPE scaling ignored": {"rope_scaling": None}}
EPS = {"rms_norm_eps ignored": {"rms_norm_eps": 1e-6}}
THETA = {"rope_theta ignored": {"rope_theta": 2000.0}}

GEMMA2 = dict(
    attention_bias=False,
    cache_implementation="hybrid",
    head_dim=16,
    hidden_act="gelu_pytorch_tanh",
    hidden_activation="gelu_pytorch_tanh",
    pad_token_id=0,
    rope_scaling=...,
    sliding_window=8,
    tie_word_embeddings=...,  # real files leave it out: Gemma's default is tied
    attn_logit_softcapping=3.0,
    final_logit_softcapping=6.0,
)
GEMMA2_BREAKS = {
    "attention soft-cap ignored": {"attn_logit_softcapping": None},
    "final soft-cap ignored": {"final_logit_softcapping": None},
    "window ignored": {"sliding_window": 256},
    "window off by one": {"sliding_window": 7},
    "windows on the odd layers": {"layer_types": ["full_attention", "sliding_attention"]},
    "GELU by erf": {"hidden_activation": "gelu", "hidden_act": "gelu"},
    **EPS,
    **THETA,
}
GEMMA3 = dict(
    attn_logit_softcapping=None,
    cache_implementation="hybrid",
    final_logit_softcapping=None,
    head_dim=8,
    hidden_act=...,
    hidden_activation="gelu_pytorch_tanh",
   
    pad_token_id=0,
    rope_local_base_freq=10000.0,
    rope_theta=1000000.0,
    sliding_window=6,
    tie_word_embeddings=...,
)

SPECS = [
    Spec("llama2", "Llama 2: as many KV heads as heads, no `rope_theta` in the file (its default), untied output",
         llama(num_key_value_heads=4, rope_theta=..., attention_bias=..., mlp_bias=...),
         breaks=EPS | {"rope_theta not 10000": {"rope_theta": 500000.0}}),
    Spec("llama3", "Llama 3: RoPE base 500000, grouped KV heads, FFN twice as wide as the model",
         llama(rope_theta=500000.0, intermediate_size=64), gguf="f16", breaks=EPS | THETA),
    Spec("llama31", "Llama 3.1: `llama3` RoPE scaling (in GGUF: the tensor rope_freqs.weight), `head_dim` not d / heads",
         llama(rope_theta=500000.0, head_dim=16, rope_scaling=LLAMA3_SCALING), gguf="bf16",
         breaks=NO_SCALING | {"high_freq_factor ignored": rope(**LLAMA3_SCALING | {"high_freq_factor": 8.0})}),
    Spec("llama32", "Llama 3.2: tied output and `llama3` RoPE scaling with factor 32",
         llama(rope_theta=500000.0, head_dim=8, tie_word_embeddings=True,
               rope_scaling=LLAMA3_SCALING | {"factor": 32.0}), breaks=NO_SCALING | EPS),
    Spec("llama_linear", "linear RoPE scaling, in the oldest spelling (`type`, not `rope_type`); weights stored f16",
         llama(rope_scaling={"factor": 4.0, "type": "linear"}, tie_word_embeddings=True), dtype="float16", gguf="f16",
         seed=1, breaks=NO_SCALING),
    Spec("llama_yarn", "YaRN with every default (attention factor 0.1 ln s + 1, beta 32 and 1, truncated range)",
         llama(head_dim=16, num_hidden_layers=1, tie_word_embeddings=True,
               rope_scaling={"factor": 4.0, "original_max_position_embeddings": 64, "rope_type": "yarn"}), gguf="bf16",
         breaks=NO_SCALING | {"attention factor ignored": rope(
             factor=4.0, original_max_position_embeddings=64, rope_type="yarn", attention_factor=1.0)}),
    Spec("llama_yarn_factor", "YaRN with an explicit `attention_factor` and betas",
         llama(tie_word_embeddings=True, head_dim=16, num_hidden_layers=1, rope_scaling={
             "attention_factor": 1.3, "beta_fast": 2.0, "beta_slow": 0.25, "factor": 4.0,
             "original_max_position_embeddings": 64, "rope_type": "yarn"}),
         breaks=NO_SCALING | {
             "attention_factor ignored": rope(factor=4.0, original_max_position_embeddings=64, rope_type="yarn",
                                              beta_fast=2.0, beta_slow=0.25),
             "betas ignored": rope(factor=4.0, original_max_position_embeddings=64, rope_type="yarn",
                                   attention_factor=1.3)}),
    Spec("llama_yarn_mscale", "YaRN with `mscale` / `mscale_all_dim` and `truncate: false`",
         llama(tie_word_embeddings=True, head_dim=16, num_hidden_layers=1, rope_scaling={
             "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 0.5, "original_max_position_embeddings": 64,
             "rope_type": "yarn", "truncate": False}),
         breaks=NO_SCALING | {
             "mscale ignored": rope(factor=4.0, original_max_position_embeddings=64, rope_type="yarn", truncate=False),
             "truncate ignored": rope(factor=4.0, mscale=2.0, mscale_all_dim=0.5, original_max_position_embeddings=64,
                                      rope_type="yarn")}),
    Spec("llama_bias", "Llama with `attention_bias` (Q, K, V and O) and `mlp_bias`",
         llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), gguf="bf16", breaks=EPS),
    Spec("mistral", "Mistral 0.1: sliding window 8 in every layer (GGUF has no key for it); `head_dim` left out",
         base("MistralForCausalLM", "mistral", sliding_window=8, attention_bias=..., rope_scaling=...),
         breaks={"window ignored": {"sliding_window": None}, "window off by one": {"sliding_window": 9}} | THETA),
    Spec("mistral_nemo", "Mistral 0.3 and Nemo: no window, `head_dim` that is not d / heads; GGUF architecture `llama`",
         base("MistralForCausalLM", "mistral", sliding_window=None, head_dim=16, attention_bias=..., rope_scaling=...,
                            rope_theta=1000000.0), gguf="bf16", breaks=EPS | THETA),
    Spec("smollm2", "SmolLM2: Llama with tied output and the harmless extra keys of its real config; weights stored f32",
         llama(num_hidden_layers=1, rope_theta=100000.0, tie_word_embeddings=True,
               is_llama_config=True, rope_interleaved=False,
               pad_token_id=2, **{"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16", "q4f16": "float16"}}}),
         dtype="float32", gguf="f32", breaks=EPS | THETA),
    Spec("qwen2", "Qwen2.5: biases on Q, K and V; a `sliding_window` that `use_sliding_window: false` switches off",
         base("Qwen2ForCausalLM", "qwen2", attention_bias=..., rope_scaling=..., tie_word_embeddings=True,
              max_window_layers=1, sliding_window=8, use_sliding_window=False, rope_theta=1000000.0), gguf="bf16",
         breaks={"window used though switched off": {"use_sliding_window": True}} | THETA),
    Spec("qwen2_window", "Qwen2 with windows on the layers from `max_window_layers` on; two shards and an index",
         base("Qwen2ForCausalLM", "qwen2", attention_bias=..., rope_scaling=..., max_window_layers=1, sliding_window=8,
              use_sliding_window=True), shards=2,
         breaks={"window ignored": {"use_sliding_window": False}, "window on every layer": {"max_window_layers": 0},
                 "window on layers below max_window_layers": {
                     "layer_types": ["sliding_attention", "full_attention"]}}),
    Spec("qwen3", "Qwen3: RMSNorm on each head of Q and K, explicit `head_dim`, no biases",
         base("Qwen3ForCausalLM", "qwen3", head_dim=16, max_window_layers=2, sliding_window=None,
              use_sliding_window=False, rope_theta=1000000.0, tie_word_embeddings=True), gguf="bf16",
         breaks=EPS | THETA),
    Spec("olmo2", "OLMo-2: norms after attention and FFN only, QK-norm over the full width",
         base("Olmo2ForCausalLM", "olmo2", pad_token_id=0, rope_theta=500000.0), gguf="bf16", breaks=EPS | THETA),
    Spec("gemma2", "Gemma-2 as the 2B and 9B: windows on even layers, soft-caps, GeGLU, embedding scale, norms 1 + w",
         base("Gemma2ForCausalLM", "gemma2", query_pre_attn_scalar=16, **GEMMA2), gguf="bf16", breaks=GEMMA2_BREAKS),
    Spec("gemma2_scalar", "Gemma-2 as the 27B: `query_pre_attn_scalar` that is not head_dim (GGUF has no key for it)",
         base("Gemma2ForCausalLM", "gemma2", query_pre_attn_scalar=8, **GEMMA2),
         breaks={"query_pre_attn_scalar ignored": {"query_pre_attn_scalar": 16}}),
    Spec("gemma3", "Gemma-3 as the 4B: QK-norm, five windowed layers to one, two RoPE bases, linear scaling on the global",
         base("Gemma3ForCausalLM", "gemma3_text", num_hidden_layers=6, query_pre_attn_scalar=8,
              sliding_window_pattern=6, **GEMMA3 | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
         gguf="bf16",
         breaks=NO_SCALING | THETA | EPS | {
             "local base ignored": {"rope_local_base_freq": 1000000.0},
             "scaling on the local layers too": {"rope_scaling": None, "rope_parameters": {
                 kind: {"rope_type": "linear", "factor": 8.0, "rope_theta": theta}
                 for kind, theta in [("full_attention", 1e6), ("sliding_attention", 1e4)]}},
             "window ignored": {"sliding_window": 256},
             "every layer windowed": {"sliding_window_pattern": 7}}),
    Spec("gemma3_pattern", "Gemma-3 as late transformers 4 spelt it: `layer_types` out of step, `dtype`, final soft-cap",
         base("Gemma3ForCausalLM", "gemma3_text", num_hidden_layers=3, query_pre_attn_scalar=5, dtype="bfloat16",
              _sliding_window_pattern=6, use_bidirectional_attention=False,
              layer_types=["full_attention", "sliding_attention", "full_attention"],
              **GEMMA3 | {"final_logit_softcapping": 6.0}),
         breaks={"layer_types ignored": {"layer_types": None, "sliding_window_pattern": 6},
                 "query_pre_attn_scalar ignored": {"query_pre_attn_scalar": 8},
                 "final soft-cap ignored": {"final_logit_softcapping": None}}),
    Spec("skip_middle", "Skip-Middle's block, gates at zero: RMSNorm before and after both branches and on the embedding",
         base("SkipMiddleForCausalLM", "skip_middle", attention_bias=..., attention_dropout=..., 
              block_norm="sandwich", embedding_norm=True),
         breaks={"embedding norm left out": {"embedding_norm": False}, "norms before only": {"block_norm": "before"}}
         | EPS | THETA),
]
