#!/usr/bin/env python3
"""Writes an f16 GGUF of random weights in the shape of a 1B Llama (16 x 2048), for speed alone: no vocabulary.

    bench/random_gguf.py OUT.gguf [--layers 16 --width 2048 --heads 32 --kv-heads 8 --ffn 8192 --vocab 128256]

Quantise it with `fathom quantize` or llama.cpp's llama-quantize. One megabyte of random values is repeated over all
matrices: how fast a product runs does not depend on what is multiplied.
"""

import argparse
import os
import random
import struct

ALIGNMENT = 32
UINT32, FLOAT32, STRING = 4, 6, 8  # GGUF's value types
F32, F16 = 0, 1  # GGUF's tensor types


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def entry(key: str, value: object) -> bytes:
    if isinstance(value, str):
        return string(key) + struct.pack("<I", STRING) + string(value)
    if isinstance(value, float):
        return string(key) + struct.pack("<If", FLOAT32, value)
    return string(key) + struct.pack("<II", UINT32, value)


def metadata(o: argparse.Namespace) -> list[bytes]:
    values = {
        "general.architecture": "llama", "general.name": "random weights", "general.file_type": 1,
        "general.alignment": ALIGNMENT, "llama.block_count": o.layers, "llama.context_length": 8192,
        "llama.embedding_length": o.width, "llama.feed_forward_length": o.ffn, "llama.attention.head_count": o.heads,
        "llama.attention.head_count_kv": o.kv_heads, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0, "llama.rope.dimension_count": o.width // o.heads,
        "llama.vocab_size": o.vocab, "tokenizer.ggml.model": "none",
    }
    return [entry(key, value) for key, value in values.items()]


def tensors(o: argparse.Namespace) -> list[tuple[str, tuple[int, ...], int]]:
    """(name, shape with the rows' length first, type)"""
    kv_width = o.width // o.heads * o.kv_heads
    matrices = {"attn_q": (o.width, o.width), "attn_k": (o.width, kv_width), "attn_v": (o.width, kv_width),
                "attn_output": (o.width, o.width), "ffn_gate": (o.width, o.ffn), "ffn_up": (o.width, o.ffn),
                "ffn_down": (o.ffn, o.width)}
    made = [("token_embd.weight", (o.width, o.vocab), F16), ("output_norm.weight", (o.width,), F32)]
    for layer in range(o.layers):
        made += [(f"blk.{layer}.{norm}.weight", (o.width,), F32) for norm in ("attn_norm", "ffn_norm")]
        made += [(f"blk.{layer}.{name}.weight", shape, F16) for name, shape in matrices.items()]
    return made


def nbytes(shape: tuple[int, ...], kind: int) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements * (4 if kind == F32 else 2)


def header(o: argparse.Namespace) -> bytes:
    pairs, listed = metadata(o), tensors(o)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(pairs)) + b"".join(pairs)
    offset = 0
    for name, shape, kind in listed:
        out += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, offset)
        offset += (nbytes(shape, kind) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return out + bytes(-len(out) % ALIGNMENT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    for name, size in (("layers", 16), ("width", 2048), ("heads", 32), ("kv-heads", 8), ("ffn", 8192), ("vocab", 128256)):
        parser.add_argument(f"--{name}", type=int, default=size)
    o = parser.parse_args()
    chance = random.Random(1)
    values = struct.pack(f"<{1 << 19}e", *(chance.gauss(0, 0.02) for _ in range(1 << 19)))
    unfinished = o.output + ".part"
    with open(unfinished, "wb") as file:
        file.write(header(o))
        for _, shape, kind in tensors(o):
            left = nbytes(shape, kind)
            data = struct.pack("<f", 1.0) * (left // 4) if kind == F32 else values
            while left > 0:
                file.write(data[:left])
                left -= len(data)
            file.write(bytes(-nbytes(shape, kind) % ALIGNMENT))
    os.replace(unfinished, o.output)


if __name__ == "__main__":
    main()
