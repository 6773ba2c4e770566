#!/usr/bin/env python3
"""Makes tests/data/models: a tiny random model of every architecture with the logits transformers computes.

    pip install -r tools/requirements.txt
    tools/make_model_goldens.py [--only NAME…] [--llama-cpp SOURCE_TREE]

Weights come from a generator seeded by model and tensor name, logits from one thread, f32, eager attention: a second
run writes the same bytes. Without --llama-cpp the GGUF files are left as they are.
"""

import argparse
import json
import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import golden_gguf
import golden_skip_middle
import golden_tokenizer
from golden_specs import END_OF_TEXT, SPECS, TOKENS, VOCAB, Spec

ROOT = Path(__file__).resolve().parent.parent / "tests" / "data" / "models"
F64_TOLERANCE = 1e-5  # f32 against f64: how much of the tests' 1e-4 rounding alone uses
SHOWS = 1e-3  # a mistake in the loader must move some logit by ten times the tests' tolerance


def generator(*names: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(zlib.crc32("/".join(names).encode())))


def make_ids() -> torch.Tensor:
    ids = generator("ids").integers(0, VOCAB, TOKENS)
    ids[:3] = 0, VOCAB - 2, 0  # both ends of the vocabulary, and a token that comes again
    ids[-1] = END_OF_TEXT
    return torch.tensor(ids, dtype=torch.int64)


def make_weight(spec: Spec, name: str, shape: tuple) -> torch.Tensor:
    """Scaled so that attention is neither flat nor one-hot and logits have a spread of about 2."""
    x = generator(spec.name, str(spec.seed), name).standard_normal(shape)
    if name.endswith("norm.weight"):
        x = 0.25 * x + (0.0 if spec.config["model_type"].startswith("gemma") else 1.0)
    elif name.endswith(".bias"):
        x = 0.3 * x
    elif "embed_tokens" in name:
        x = 0.4 * x if tied(spec) else x
    else:
        gain = 1.5 if "q_proj" in name or "k_proj" in name else 2.5 if "lm_head" in name else 1.0
        x = gain * x / shape[1] ** 0.5
    x = torch.tensor(x, dtype=torch.float32)
    if spec.dtype == "float32":
        return x
    # Exact in bf16 and in f16, whichever the safetensors or the GGUF stores.
    x = x.to(torch.bfloat16).float()
    x[x.abs() < 2.0**-16] = 0.0
    return x.to(getattr(torch, spec.dtype))


def tied(spec: Spec) -> bool:
    return spec.config.get("tie_word_embeddings", spec.config["model_type"].startswith("gemma"))


def make_config(config: dict) -> transformers.PretrainedConfig:
    """Without the dtype: transformers would round Gemma's embedding scale to it, and the golden is all f32."""
    changed = {key: value for key, value in config.items() if key not in ("model_type", "dtype")}
    return transformers.AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(changed)))


def shapes(spec: Spec) -> dict:
    if spec.config["model_type"] == "skip_middle":
        return golden_skip_middle.shapes(spec.config)
    model = transformers.AutoModelForCausalLM.from_config(make_config(spec.config))
    return {name: tuple(p.shape) for name, p in model.state_dict().items() if not (tied(spec) and "lm_head" in name)}


@torch.no_grad()
def compute(config: dict, weights: dict, ids: torch.Tensor, dtype=torch.float32) -> torch.Tensor:
    weights = {name: value.to(dtype) for name, value in weights.items()}
    if config["model_type"] == "skip_middle":
        return golden_skip_middle.logits(weights, config, ids)
    model = transformers.AutoModelForCausalLM.from_config(make_config(config), attn_implementation="eager")
    model = model.to(dtype).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"{config['model_type']}: missing {missing}, unexpected {unexpected}")
    return model(ids[None], use_cache=False).logits[0]


@torch.no_grad()
def compute_from_directory(directory: Path, ids: torch.Tensor) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    return model(ids[None], use_cache=False).logits[0]


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_weights(spec: Spec, directory: Path, weights: dict) -> None:
    if spec.shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names, index = sorted(weights), {}
    for shard in range(spec.shards):
        file = f"model-{shard + 1:05d}-of-{spec.shards:05d}.safetensors"
        part = names[len(names) * shard // spec.shards:len(names) * (shard + 1) // spec.shards]
        save_file({name: weights[name] for name in part}, directory / file, metadata={"format": "pt"})
        index |= {name: file for name in part}
    total = sum(w.numel() * w.element_size() for w in weights.values())
    write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def write_configs(spec: Spec, directory: Path) -> None:
    version4 = dict(spec.config)
    version4.setdefault("dtype" if "dtype" in version4 else "torch_dtype", spec.dtype)
    version4["transformers_version"] = "4.57.1" if "dtype" in version4 else "4.51.3"
    if spec.config["model_type"] == "skip_middle":
        version4.pop("transformers_version")
    write_json(directory / "config.json", version4)
    if spec.config["model_type"] == "skip_middle":
        return
    config = make_config(spec.config)
    config.dtype = getattr(torch, spec.dtype)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        write_json(directory / "config_v5.json", json.loads((Path(folder) / "config.json").read_text()))


def check_directory(spec: Spec, directory: Path, ids: torch.Tensor, logits: torch.Tensor) -> None:
    """The files as users would load them, with either config, give exactly the golden."""
    if spec.config["model_type"] == "skip_middle":
        return
    for config in ("config.json", "config_v5.json"):
        with tempfile.TemporaryDirectory() as folder:
            for file in directory.glob("model*.s*"):
                shutil.copy(file, folder)
            shutil.copy(directory / config, Path(folder) / "config.json")
            difference = (compute_from_directory(Path(folder), ids) - logits).abs().max().item()
        if difference != 0.0:
            raise SystemExit(f"{spec.name}: {config} as loaded from the directory differs by {difference}")


def check_sensitivity(spec: Spec, weights: dict, ids: torch.Tensor, logits: torch.Tensor) -> dict:
    found = {}
    for mistake, changes in spec.breaks.items():
        changed = {key: value for key, value in (spec.config | changes).items()
                   if not (key == "rope_scaling" and value is None and "rope_parameters" in changes)}
        found[mistake] = (compute(changed, weights, ids) - logits).abs().max().item()
        if not found[mistake] > SHOWS:
            raise SystemExit(f"{spec.name}: '{mistake}' would move the logits by {found[mistake]:.1e} only")
    return found


def make(spec: Spec, llama_cpp: Path | None) -> str:
    directory = ROOT / spec.name
    directory.mkdir(parents=True, exist_ok=True)
    ids = make_ids()
    weights = {name: make_weight(spec, name, shape) for name, shape in shapes(spec).items()}
    logits = compute(spec.config, weights, ids)
    rounding = (compute(spec.config, weights, ids, torch.float64).float() - logits).abs().max().item()
    if rounding > F64_TOLERANCE:
        raise SystemExit(f"{spec.name}: f32 and f64 differ by {rounding:.1e}")

    write_weights(spec, directory, weights)
    write_configs(spec, directory)
    if spec.gguf:
        for file, text in golden_tokenizer.files().items():
            (directory / file).write_text(text)
    save_file({"ids": ids.to(torch.int32), "logits": logits.contiguous()}, directory / "golden.safetensors")
    check_directory(spec, directory, ids, logits)
    shown = check_sensitivity(spec, weights, ids, logits)
    if llama_cpp and spec.gguf:
        golden_gguf.convert(llama_cpp, directory, spec.gguf, directory / "model.gguf")
    if spec.gguf and (directory / "model.gguf").exists():
        golden_gguf.check(directory / "model.gguf", weights)
    size = sum(file.stat().st_size for file in directory.iterdir())
    return (f"{spec.name:18} {size / 1024:6.1f} KB  logits spread {logits.std():.2f}, rounding {rounding:.1e}; "
            + ", ".join(f"{mistake} {value:.2g}" for mistake, value in shown.items()))


README = """# Tiny models with golden logits

Made by `tools/make_model_goldens.py` (numpy {numpy}, torch {torch}, transformers {transformers}, gguf 0.19.0; GGUF by
llama.cpp's own converter, August 2026). Do not edit: change `tools/golden_specs.py` and run it again. A second run
writes the same bytes.

Every folder is an HF directory:

- `config.json` as transformers 4 spelt it (`rope_scaling`, `rope_theta`, `torch_dtype`), `config_v5.json` the same model
  as transformers 5 spells it (`rope_parameters`, `layer_types`, `dtype`); loaded with either, transformers gives the golden;
- `model.safetensors` (or shards with an index), random weights; `model.gguf` where listed: the same values, matrices
  in the type named, vectors in F32; `tokenizer.json` beside a GGUF: {vocab} tokens, byte-level BPE;
- `golden.safetensors`: `ids` (I32, {tokens}) and `logits` (F32, {tokens} × {vocab}), every position of one full pass in f32 on one
  thread with eager attention. f32 differs from f64 by less than {rounding:.0e}, so a limit of 1e-4 has room for another order
  of sums and for little else. Each mistake listed moves some logit by more than {shows:.0e} (most by more than 1).

Width 32, 4 heads, vocabulary {vocab}; windows are shorter than the {tokens} tokens; `rms_norm_eps` is large so that it shows.

What GGUF cannot say: a window for the architectures `llama` and `qwen2`, and Gemma's `query_pre_attn_scalar` and
Gemma-2's RoPE base (readers assume head_dim, and 10000). Gemma's windows come from the architecture: every second
layer full in `gemma2`, every sixth in `gemma3`. llama.cpp, given the same weights in F32, agrees with every golden within 1e-5
(Gemma: 3e-3, its GELU reads a table of f16 values).

| folder | weights | GGUF | what it is | mistakes it shows |
|---|---|---|---|---|
"""


def write_readme() -> None:
    versions = {"numpy": np.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    text = README.format(**versions, vocab=VOCAB, tokens=TOKENS, rounding=F64_TOLERANCE, shows=SHOWS)
    for spec in SPECS:
        weights = spec.dtype + (f", {spec.shards} shards" if spec.shards > 1 else "")
        text += f"| `{spec.name}` | {weights} | {spec.gguf or '–'} | {spec.what} | {'; '.join(spec.breaks)} |\n"
    (ROOT / "README.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of the models to make; default all")
    parser.add_argument("--llama-cpp", type=Path, help="llama.cpp's source tree, for the GGUF files")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for spec in SPECS:
        if not args.only or spec.name in args.only:
            print(make(spec, args.llama_cpp), flush=True)
    write_readme()


if __name__ == "__main__":
    main()
