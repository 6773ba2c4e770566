#!/usr/bin/env python3
"""fold_embedding_norm.py MODEL OUT [LEARNED]: a checkpoint with an RMSNorm on its embedding as a plain Llama that computes the same.

A token's embedding does not depend on its place, so neither does its norm: every row of the table is normalised once,
here. MODEL: a folder of architecture skip_middle whose blocks have Llama's norms, with an output matrix of its own.
OUT: a new Hugging Face folder; skip/ comes along; fathom quantize writes both with a fingerprint that fits. LEARNED: the
positions that it was trained on, where its context has more: YaRN stretches RoPE from these to the context. Needs numpy
and safetensors (tools/requirements.txt).
"""
import json
import pathlib
import shutil
import sys

import numpy as np
from safetensors.numpy import load_file, save_file


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    source, out = map(pathlib.Path, sys.argv[1:3])
    learned = int(sys.argv[3]) if len(sys.argv) == 4 else None
    config = json.loads((source / "config.json").read_text())
    if (config["model_type"] != "skip_middle" or config["block_norm"] != "before" or config["tie_word_embeddings"]
            or not config["embedding_norm"]):
        sys.exit(f"{source}: expected architecture skip_middle, block_norm before, embedding_norm, an output of its own")
    tensors = load_file(source / "model.safetensors")
    table = tensors["model.embed_tokens.weight"].astype(np.float64)
    scale = np.sqrt((table ** 2).mean(axis=1, keepdims=True) + config["rms_norm_eps"])
    tensors["model.embed_tokens.weight"] = (table / scale * tensors.pop("model.embed_norm.weight")).astype(np.float32)
    for key in ("block_norm", "embedding_norm"):
        del config[key]
    config.update(model_type="llama", architectures=["LlamaForCausalLM"])
    context = config["max_position_embeddings"]
    if learned is not None:
        if not 0 < learned < context:
            sys.exit(f"LEARNED: expected 1 to {context - 1} positions, got {learned}")
        config["rope_scaling"] = {"rope_type": "yarn", "factor": context / learned, "original_max_position_embeddings": learned}

    out.mkdir(parents=True)
    save_file(tensors, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, out / name)
    if (source / "skip").exists():  # a dense model has none
        shutil.copytree(source / "skip", out / "skip")


if __name__ == "__main__":
    main()
