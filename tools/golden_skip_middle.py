"""Skip-Middle's dense block in plain PyTorch: the golden for an architecture that transformers does not have.

A Llama block (grouped KV heads, RoPE on halves, SwiGLU, no biases) with RMSNorm before and after each branch and one
on the embedding. With every gate at zero, g = 1: the gates leave no trace, so they are not here.
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: torch.Tensor, theta: float) -> torch.Tensor:
    """x: (heads, T, head_dim); dimension i turns with dimension i + head_dim / 2."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)  # (half)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequency  # (T, half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attention(x: torch.Tensor, w: dict, config: dict) -> torch.Tensor:
    """x: (T, d), already normed."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    length = x.shape[0]
    q, k, v = ((x @ w[f"self_attn.{name}_proj.weight"].T).view(length, count, -1).transpose(0, 1)
               for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
    q, k = rotate(q, config["rope_theta"]), rotate(k, config["rope_theta"])
    k, v = (t.repeat_interleave(heads // kv_heads, dim=0) for t in (k, v))  # (heads, T, head_dim)
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    return mixed.transpose(0, 1).reshape(length, -1) @ w["self_attn.o_proj.weight"].T


def feed_forward(x: torch.Tensor, w: dict) -> torch.Tensor:
    gate, up = x @ w["mlp.gate_proj.weight"].T, x @ w["mlp.up_proj.weight"].T
    return (torch.nn.functional.silu(gate) * up) @ w["mlp.down_proj.weight"].T


def logits(weights: dict, config: dict, ids: torch.Tensor) -> torch.Tensor:
    """(T, vocab). `block_norm: before` and `embedding_norm: false` exist only to show that the golden would notice."""
    eps = config["rms_norm_eps"]
    after = rms_norm if config["block_norm"] == "sandwich" else lambda x, weight, eps: x
    h = weights["model.embed_tokens.weight"][ids]
    if config["embedding_norm"]:
        h = rms_norm(h, weights["model.embed_norm.weight"], eps)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        w = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        branch = attention(rms_norm(h, w["input_layernorm.weight"], eps), w, config)
        h = h + after(branch, w["post_attention_layernorm.weight"], eps)
        branch = feed_forward(rms_norm(h, w["pre_feedforward_layernorm.weight"], eps), w)
        h = h + after(branch, w["post_feedforward_layernorm.weight"], eps)
    return rms_norm(h, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T


def shapes(config: dict) -> dict:
    d, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    result = {"model.embed_tokens.weight": (vocab, d), "model.embed_norm.weight": (d,), "model.norm.weight": (d,),
              "lm_head.weight": (vocab, d)}
    for layer in range(config["num_hidden_layers"]):
        block = {"self_attn.q_proj": (d, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d),
                 "self_attn.o_proj": (d, d), "mlp.gate_proj": (ffn, d), "mlp.up_proj": (ffn, d),
                 "mlp.down_proj": (d, ffn)}
        block |= {f"{norm}_layernorm": (d,) for norm in
                  ("input", "post_attention", "pre_feedforward", "post_feedforward")}
        result |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return result
