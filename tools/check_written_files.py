#!/usr/bin/env python3
"""Reads files that our writers made with the formats' own packages (gguf, safetensors, numpy, torch for bf16).

    python3 tools/check_written_files.py BUILD/io_test

The test program writes the samples (src/io/samples_test.cc); the values expected here are written out a second time.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import safetensors
import torch


def expect(condition, what):
    if not condition:
        sys.exit(f"check_written_files: {what}")


def pattern(count):
    return bytes((i * 7 + 1) & 255 for i in range(count))


def check_gguf(path):
    reader = gguf.GGUFReader(path)
    metadata = {
        "general.architecture": ("STRING", "sample"), "u8": ("UINT8", 200), "i8": ("INT8", -100), "u16": ("UINT16", 60000),
        "i16": ("INT16", -30000), "u32": ("UINT32", 4000000000), "i32": ("INT32", -2000000000), "f32": ("FLOAT32", 1.5),
        "bool": ("BOOL", True), "string": ("STRING", "ünïcode"), "u64": ("UINT64", 0xFEDCBA9876543210),
        "i64": ("INT64", -5000000000), "f64": ("FLOAT64", 0.1), "numbers": ("ARRAY INT32", [1, -2, 3]),
        "scores": ("ARRAY FLOAT32", [0.5, -0.25]), "flags": ("ARRAY BOOL", [True, False]),
        "words": ("ARRAY STRING", ["", "a", "bc"]),
    }
    keys = [name for name in reader.fields if not name.startswith("GGUF.")]
    expect(keys == list(metadata), f"keys are {keys}")
    for name, (kind, value) in metadata.items():
        field = reader.fields[name]
        got = " ".join(t.name for t in field.types)
        expect(got == kind, f"{name} has type {got}, expected {kind}")
        expect(field.contents() == value, f"{name} is {field.contents()}, expected {value}")
    tensors = {t.name: t for t in reader.tensors}
    for name in ["f32", "f16", "bf16", "i32", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]:
        t = tensors.pop(name)
        expect(t.tensor_type.name == name.upper(), f"{name} has type {t.tensor_type.name}")
        expect(list(t.shape) == [256, 3], f"{name} has shape {t.shape}")
        block, size = gguf.GGML_QUANT_SIZES[t.tensor_type]
        expect(t.data.tobytes() == pattern(3 * 256 // block * size), f"the bytes of {name} differ")
        expect(t.data_offset % 32 == 0, f"{name} is not aligned")
    expect(np.array_equal(tensors.pop("vector").data, np.arange(5, dtype=np.float32)), "vector differs")
    expect(np.array_equal(tensors.pop("cube").data, np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)), "cube differs")
    expect(not tensors, f"more tensors than expected: {list(tensors)}")


def check_safetensors(path):
    with safetensors.safe_open(path, framework="pt") as file:
        expect(file.metadata() == {"format": "pt", "note": 'a "b"\n'}, f"metadata is {file.metadata()}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    for name, dtype, shape in [("u8", torch.uint8, (3,)), ("bf16", torch.bfloat16, (2, 3)), ('quoted "ü"\n', torch.int32, (1,)),
                               ("f16", torch.float16, (7,))]:
        t = tensors.pop(name)
        expect(t.dtype == dtype and tuple(t.shape) == shape, f"{name} is {t.dtype} {tuple(t.shape)}")
        expect(t.contiguous().view(torch.uint8).numpy().tobytes() == pattern(t.nbytes), f"the bytes of {name} differ")
    expect(torch.equal(tensors.pop("f32"), torch.arange(120.0).reshape(2, 3, 4, 5)), "f32 differs")
    expect(tuple(tensors.pop("nothing").shape) == (0, 4), "nothing has another shape")
    expect(torch.equal(tensors.pop("scalar"), torch.tensor(2.5)), "scalar differs")
    expect(not tensors, f"more tensors than expected: {list(tensors)}")
    expect(int.from_bytes(Path(path).read_bytes()[:8], "little") % 8 == 0, "the header is not padded to whole 8 bytes")


def main():
    expect(len(sys.argv) == 2, "expected the path of io_test")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "--gtest_filter=Samples.*", "--gtest_brief=1"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "FATHOM_SAMPLES": folder})
        check_gguf(f"{folder}/sample.gguf")
        check_safetensors(f"{folder}/sample.safetensors")
    print(f"gguf and safetensors {safetensors.__version__} read what we wrote")


if __name__ == "__main__":
    main()
