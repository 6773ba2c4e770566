#!/usr/bin/env python3
"""Makes tests/data/stories260k/greedy.json: what transformers continues stories260K with, and how sure it is.

    tools/make_stories260k_goldens.py

Reads tests/data/stories260k, turns the llama2.c weights into a Hugging Face Llama, continues BOS greedily by 200 tokens
and requires the text that llama2.c's author published for this model.
"""

import json
import struct
from pathlib import Path

import numpy as np
import torch
import transformers

import golden_gguf

ROOT = Path(__file__).resolve().parent.parent
STEPS = 200
BOS = 1


def load_model(path: Path) -> transformers.LlamaForCausalLM:
    data = path.read_bytes()
    d, ffn, layers, heads, kv_heads, vocab, _ = struct.unpack("<7i", data[:28])
    numbers, kv = np.frombuffer(data, "<f4", offset=28), d // heads * kv_heads
    position = 0

    def take(*shape: int) -> np.ndarray:
        nonlocal position
        position += int(np.prod(shape))
        return numbers[position - int(np.prod(shape)):position].reshape(shape)

    embedding = take(vocab, d)
    stacked = {name: take(layers, *shape) for name, shape in [
        ("input_layernorm", (d,)), ("self_attn.q_proj", (d, d)), ("self_attn.k_proj", (kv, d)),
        ("self_attn.v_proj", (kv, d)), ("self_attn.o_proj", (d, d)), ("post_attention_layernorm", (d,)),
        ("mlp.gate_proj", (ffn, d)), ("mlp.down_proj", (d, ffn)), ("mlp.up_proj", (ffn, d))]}
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": take(d)}
    for name, values in stacked.items():
        for layer, value in enumerate(values):
            if name.endswith(("q_proj", "k_proj")):  # llama2.c turns adjacent pairs
                value = golden_gguf.unpermute(value, heads if name.endswith("q_proj") else kv_heads)
            weights[f"model.layers.{layer}.{name}.weight"] = value
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=d, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, rms_norm_eps=1e-5, tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    missing, unexpected = model.load_state_dict({k: torch.tensor(v) for k, v in weights.items()}, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected
    return model.eval()


def load_pieces(path: Path) -> list[bytes]:
    data, position, pieces = path.read_bytes(), 4, []
    while position < len(data):
        _, length = struct.unpack_from("<fi", data, position)
        piece = data[position + 8:position + 8 + length]
        is_byte = piece.startswith(b"<0x") and len(piece) == 6  # byte fallback: <0x0A>
        pieces.append(bytes([int(piece[3:5], 16)]) if is_byte else piece)
        position += 8 + length
    return pieces


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    model = load_model(ROOT / "tests/data/stories260k/stories260K.bin")
    ids, logprobs, margins = [BOS], [], []
    for _ in range(STEPS):
        best = model(torch.tensor([ids]), use_cache=False).logits[0, -1].log_softmax(-1).topk(2)
        ids.append(best.indices[0].item())
        logprobs.append(float(f"{best.values[0].item():.7g}"))
        margins.append((best.values[0] - best.values[1]).item())
    pieces = load_pieces(ROOT / "tests/data/stories260k/tokenizer.bin")
    text = b"".join(pieces[i] for i in ids[1:]).decode().removeprefix(" ")
    folder = ROOT / "tests/data/stories260k"
    assert text + "\n" == (folder / "stories260K.greedy_n200.expected.txt").read_text(), text
    fields = {"ids": ids, "logprobs": [None] + logprobs, "smallest_margin": float(f"{min(margins):.3g}")}
    (folder / "greedy.json").write_text(
        "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in fields.items()) + "\n}\n")
    print(f"{STEPS} tokens as expected; smallest margin {min(margins):.3g}")


if __name__ == "__main__":
    main()
