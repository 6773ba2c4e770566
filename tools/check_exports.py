#!/usr/bin/env python3
"""Loads what `fathom convert` and `fathom quantize` wrote with the packages other people will use.

    tools/check_exports.py ORIGINAL EXPORT…

Each is an HF directory or a GGUF file. An HF directory must load in transformers without missing or unexpected
weights, a GGUF in `gguf`; every weight must be the original's, exactly or within the export's block format. Of two HF
directories the tokenizers must agree too, and the difference of their logits is printed.
"""

import argparse
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

import golden_gguf

# Largest error of a weight as a share of its tensor's largest value: half a step of the format (one step for Q4_0, whose
# grid ends at 7 on one side), and for blocks the rounding of their scale and offset to f16.
TOLERANCE = {"F32": 0.0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 1 / 254 + 2**-11, "Q4_0": 1 / 8 + 2**-11,
             "Q4_1": 1 / 15 + 2**-10}
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def read(path: Path) -> tuple[dict[str, np.ndarray], set[str]]:
    """The weights under HF names, and the types they are stored in."""
    if not path.is_dir():
        weights = golden_gguf.read(path)
        weights.pop("rope_freqs.weight", None)
        return weights, {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    tensors = {}
    for file in sorted(path.glob("model*.safetensors")):
        tensors |= load_file(file)
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}, {TYPES[t.dtype] for t in tensors.values()}


def check_loads(path: Path) -> None:
    if not path.is_dir():
        return
    if json.loads((path / "config.json").read_text())["model_type"] == "skip_middle":
        print(f"{path}: transformers has no such architecture; weights only")
        return
    _, report = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    problems = {kind: sorted(names) for kind, names in report.items() if names}
    if problems:
        sys.exit(f"{path}: transformers reports {problems}")


TEXTS = ["Hello world", "  two  spaces   three\n\n\tTabs\r\n ", "In 1999, 12345678 + 3.14", "na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d",
         "\u65e5\u672c\u8a9e \u6f22\u5b57 \U0001f984", "don't I'LL we've", "def f(x):\n    return x**2  # comment\n", "a" * 37, " " * 37,
         "<|im_start|>user\nhi<|im_end|>"]


@torch.no_grad()
def check_same_model(original: Path, export: Path) -> None:
    """Two HF directories: the same ids for hard texts and, where the weights are exact, the same logits."""
    if not (original.is_dir() and export.is_dir()):
        return
    if (original / "tokenizer.json").exists():
        ours, theirs = (transformers.AutoTokenizer.from_pretrained(path) for path in (export, original))
        for text in TEXTS:
            if ours(text)["input_ids"] != theirs(text)["input_ids"]:
                sys.exit(f"{export}: {text!r} gives {ours(text)['input_ids']}, expected {theirs(text)['input_ids']}")
    if json.loads((original / "config.json").read_text())["model_type"] == "skip_middle":
        return
    models = [transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in (original, export)]
    ids = torch.arange(24)[None] % models[0].config.vocab_size
    expected, found = (model(ids).logits for model in models)
    print(f"{export}: logits differ from the original's by {(found - expected).abs().max():.1e}")


def check_weights(original: dict[str, np.ndarray], export: Path) -> None:
    found, types = read(export)
    # A tied output may be written out or left out.
    for weights in (original, found):
        if "lm_head.weight" not in weights:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    if set(found) != set(original):
        sys.exit(f"{export}: tensors differ: {sorted(set(found) ^ set(original))}")
    limit, worst = max(TOLERANCE[kind] for kind in types), ("any tensor", 0.0)
    for name, expected in original.items():
        if found[name].shape != expected.shape:
            sys.exit(f"{export}: {name} must be {expected.shape}, got {found[name].shape}")
        error = float(np.abs(found[name] - expected).max() / max(np.abs(expected).max(), 1e-30))
        if not error <= max(limit, 1e-6):  # 1e-6: Gemma's 1 + w and back in f32
            sys.exit(f"{export}: {name} differs by {error:.1e} of its largest value, {sorted(types)} allows {limit:.1e}")
        worst = max(worst, (name, error), key=lambda pair: pair[1])
    print(f"{export}: {len(found)} tensors, {', '.join(sorted(types))}; largest error {worst[1]:.1e} in {worst[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("exports", type=Path, nargs="+")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for export in args.exports:
        check_loads(export)
        check_weights(read(args.original)[0], export)
        check_same_model(args.original, export)


if __name__ == "__main__":
    main()
