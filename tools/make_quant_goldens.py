#!/usr/bin/env python3
"""Writes tests/data/quant: rows decoded and encoded by the reference package `gguf` (0.19.0, numpy 2.4).

decode_<type>.bin: int64 n, the blocks, n f32.   encode_<type>.bin: int64 n, n f32, the blocks.
Run from the repository's root: python3 tools/make_quant_goldens.py
"""
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

OUT = pathlib.Path("tests/data/quant")
# Where the f16 numbers of a block are: random bytes there would be infinities and NaNs.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
# Scales worth meeting: normal, negative, zero, minus zero, subnormal, the largest.
SPECIAL = np.array([0.0173, -0.25, 0.0, -0.0, 6e-8, -3e-5, 65504.0, 1.0], np.float16)


def write(name, n, *arrays):
    data = np.int64(n).tobytes() + b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)
    (OUT / name).write_bytes(data)


def decode(rng, qtype):
    elements, size = GGML_QUANT_SIZES[qtype]
    count = 16 if elements == 32 else 12
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in HALVES[qtype]:
        scales = rng.normal(0, 0.05, count).astype(np.float16)
        scales[: len(SPECIAL)] = np.roll(SPECIAL, offset)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(count, 2)
    values = quants.dequantize(blocks.reshape(1, -1), qtype)
    write(f"decode_{qtype.name.lower()}.bin", count * elements, blocks, values.astype(np.float32))


def encode_input(rng):
    x = rng.normal(0, 1, (40, 32)).astype(np.float32)
    x[1] = 0.0
    x[2] = 3.5                              # all equal
    x[3] = -np.abs(x[3])                    # all negative
    x[4] = np.round(x[4] * 2) / 2           # many ties
    x[5] *= 1e-6                            # f16 scale subnormal
    x[6] *= 1e4
    x[7, 1:] = 0.0                          # one value
    x[8, :16], x[8, 16:] = 1.0, -1.0        # equal magnitudes: the first decides
    x[9] = np.arange(32) - 15.5
    x[10] = np.where(np.arange(32) % 2, 127.0, 0.5) * np.where(np.arange(32) % 3, 1.0, -1.0)
    return x.reshape(1, -1)


def encode(rng, qtype):
    x = encode_input(rng)
    blocks = quants.quantize(x, qtype)
    write(f"encode_{qtype.name.lower()}.bin", x.size, x, blocks)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20260)
    for qtype in HALVES:
        decode(rng, qtype)
    for qtype in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.F16, T.BF16):
        encode(rng, qtype)
    halves = rng.integers(0, 65536, (1, 512), dtype=np.uint16)
    halves = halves[(halves & 0x7C00) != 0x7C00].reshape(1, -1)  # finite
    write("decode_f16.bin", halves.size, halves, quants.dequantize(halves.view(np.uint8), T.F16))
    write("decode_bf16.bin", halves.size, halves, quants.dequantize(halves.view(np.uint8), T.BF16))


if __name__ == "__main__":
    main()
