#!/usr/bin/env python3
"""Writes tests/data/gradients: outputs and gradients by PyTorch (2.6, in f64) and transformers (5.22).

<op>.safetensors: its inputs by name, r (what the output is multiplied with: the loss is the sum of out · r; losses have
none), out, and d_<input>. Run from the repository's root: python3 tools/make_gradient_goldens.py
"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

OUT = pathlib.Path("tests/data/gradients")


def normal(*shape, scale=1.0):
    """Values that f32 holds exactly, as f64."""
    return (torch.randn(*shape) * scale).float().double()


def golden(name, inputs, constants, run, loss=False):
    """inputs: differentiated. constants: i32, or f64 without a gradient."""
    leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}
    out = run(**leaves, **constants)
    tensors = {**inputs, **constants, "out": out.detach().reshape(-1) if loss else out.detach()}
    if loss:
        out.backward()
    else:
        tensors["r"] = normal(*out.shape)
        (out * tensors["r"]).sum().backward()
    for key, leaf in leaves.items():
        tensors["d_" + key] = leaf.grad
    save(name, tensors)


def save(name, tensors):
    as_stored = {k: v.detach().float() if v.is_floating_point() else v.to(torch.int32) for k, v in tensors.items()}
    save_file({k: v.contiguous() for k, v in as_stored.items()}, OUT / f"{name}.safetensors")


def rope(x, positions, inverse_frequency):
    angle = (positions[:, None].float() * inverse_frequency.float()).double()[:, None, :]  # its rounding is the model's
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def attention(q, k, v, key_bias, positions, sequence):
    """Scale 0.3, logits capped at 2, causal within each sequence; two query heads share a key head."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = 2.0 * torch.tanh(0.3 * torch.einsum("ihd,jhd->hij", q, k) / 2.0) + key_bias
    visible = (sequence[:, None] == sequence) & (positions[:, None] >= positions)
    weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v).reshape(q.shape[0], -1)


def llama_block():
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                         rms_norm_eps=1e-5, rope_theta=100.0, attn_implementation="eager")
    layer = LlamaDecoderLayer(config, 0).double().train()
    for key, weight in layer.named_parameters():
        weight.data = 1 + normal(*weight.shape, scale=0.2) if "norm" in key else normal(*weight.shape, scale=0.3)
        weight.data = weight.data.float().double()
    rows = 6
    h, r = normal(rows, 16).requires_grad_(), normal(rows, 16)
    positions = torch.arange(rows)[None]
    rotary = LlamaRotaryEmbedding(config)
    inverse_frequency = rotary.inv_freq
    angle = positions[0][:, None].double() * inverse_frequency.double()
    angle = torch.cat([angle, angle], -1)[None]
    mask = torch.full((rows, rows), -torch.inf).double().triu(1)[None, None]
    out = layer(h[None], attention_mask=mask, position_ids=positions, position_embeddings=(angle.cos(), angle.sin()))[0]
    out = out.reshape(rows, 16)
    (out * r).sum().backward()
    tensors = {"h": h, "r": r, "out": out, "d_h": h.grad, "inverse_frequency": inverse_frequency}
    for key, weight in layer.named_parameters():
        tensors[key] = weight
        tensors["d_" + key] = weight.grad
    save("llama_block", tensors)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(4)
    golden("rms_norm", {"x": normal(5, 24), "weight": normal(24)}, {}, lambda x, weight: F.rms_norm(x, (24,), weight, 1e-5))
    golden("rope", {"x": normal(6, 2, 16)}, {"positions": torch.tensor([0, 1, 2, 7, 100, 1000]),
           "inverse_frequency": (100.0 ** -(torch.arange(8) / 8)).float().double()}, rope)
    pair = {"gate": normal(4, 19, scale=2.0), "up": normal(4, 19)}
    golden("silu_product", pair, {}, lambda gate, up: F.silu(gate) * up)
    golden("gelu_product", pair, {}, lambda gate, up: F.gelu(gate, approximate="tanh") * up)
    golden("soft_cap", {"x": normal(3, 21, scale=6.0)}, {}, lambda x: 5.0 * torch.tanh(x / 5.0))
    weights = torch.rand(7).float().double()
    golden("cross_entropy", {"logits": normal(7, 33, scale=3.0)}, {"targets": torch.randint(0, 33, (7,)), "weights": weights},
           lambda logits, targets, weights: (F.cross_entropy(logits, targets, reduction="none") * weights).sum(), True)
    golden("kl_divergence", {"student": normal(7, 33, scale=2.0)}, {"teacher": normal(7, 33, scale=3.0), "weights": weights},
           lambda student, teacher, weights: (F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="none",
                                                       log_target=True).sum(-1) * weights).sum(), True)
    bias = normal(9)
    bias[2] = -torch.inf  # a key that nobody sees
    sequence = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])
    golden("attention", {"q": normal(9, 4, 8), "k": normal(9, 2, 8), "v": normal(9, 2, 8), "key_bias": bias},
           {"positions": torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3]), "sequence": sequence}, attention)
    llama_block()


if __name__ == "__main__":
    main()
