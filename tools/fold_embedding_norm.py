#!/usr/bin/env python3
"""fold_embedding_norm.py MODEL OUT: a checkpoint with an RMSNorm on its embedding as a plain Llama that computes the same.

A token's embedding does not depend on its place, so neither does its norm: every row of the table is normalised once,
here. MODEL: a folder of architecture skip_middle whose blocks have Llama's norms, with an output matrix of its own.
OUT: a new Hugging Face folder; skip/ comes along; fathom quantize writes both with a fingerprint that fits.
"""
import json
import pathlib
import shutil
import struct
import sys

import numpy as np


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            sys.exit(f"{path}: {name} is {entry['dtype']}, expected F32")
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[8 + length + begin:8 + length + end], np.float32).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = map(pathlib.Path, sys.argv[1:])
    config = json.loads((source / "config.json").read_text())
    if (config["model_type"] != "skip_middle" or config["block_norm"] != "before" or config["tie_word_embeddings"]
            or not config["embedding_norm"]):
        sys.exit(f"{source}: expected architecture skip_middle, block_norm before, embedding_norm, an output of its own")
    tensors = read_safetensors(source / "model.safetensors")
    table = tensors["model.embed_tokens.weight"].astype(np.float64)
    scale = np.sqrt((table ** 2).mean(axis=1, keepdims=True) + config["rms_norm_eps"])
    tensors["model.embed_tokens.weight"] = (table / scale * tensors.pop("model.embed_norm.weight")).astype(np.float32)
    for key in ("block_norm", "embedding_norm"):
        del config[key]
    config.update(model_type="llama", architectures=["LlamaForCausalLM"])

    out.mkdir(parents=True)
    write_safetensors(out / "model.safetensors", tensors)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, out / name)
    shutil.copytree(source / "skip", out / "skip")


if __name__ == "__main__":
    main()
