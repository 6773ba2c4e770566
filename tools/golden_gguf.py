"""HF directory -> GGUF through llama.cpp's own converter, and the check that nothing but the layout changed."""

import importlib
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":  # the converter, see convert()
    sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]

import gguf
import numpy as np
import torch


def convert(llama_cpp: Path, directory: Path, outtype: str, output: Path) -> None:
    """`llama_cpp`: a source tree of llama.cpp that has the package conversion/. In a process of its own, because the
    converter needs the gguf package of its own tree and `read` below is to use the published one."""
    subprocess.run([sys.executable, __file__, llama_cpp, directory, outtype, output], check=True)


def run_converter(directory: Path, outtype: str, output: Path) -> None:
    base = importlib.import_module("conversion.base")
    converter = importlib.import_module("conversion")
    base.logger.setLevel("ERROR")
    hparams = converter.ModelBase.load_hparams(directory, False)
    architecture = converter.get_model_architecture(hparams, converter.ModelType.TEXT)
    model_class = converter.get_model_class(architecture, mmproj=False)
    # Real Gemma and Llama-2 files bring SentencePiece; the tiny vocabulary is GPT-2's kind, unknown to the list of
    # tokenizers that the converter recognises by a hash.
    model_class.set_vocab = lambda self: self._set_vocab_gpt2()
    model_class.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    file_type = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}[outtype]
    with torch.inference_mode():
        model_class(directory, base.gguf.LlamaFileType[file_type], output, eager=True, model_name=directory.name).write()


# GGUF tensor name -> HF name, {} is the layer. post_attention_norm is the norm after attention in Gemma and OLMo-2;
# ffn_norm is the one before the FFN, which Llama and Qwen call post_attention_layernorm and Gemma pre_feedforward.
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "blk.{}.attn_norm": "input_layernorm", "blk.{}.post_attention_norm": "post_attention_layernorm",
    "blk.{}.post_ffw_norm": "post_feedforward_layernorm",
    "blk.{}.attn_q_norm": "self_attn.q_norm", "blk.{}.attn_k_norm": "self_attn.k_norm",
    "blk.{}.attn_q": "self_attn.q_proj", "blk.{}.attn_k": "self_attn.k_proj", "blk.{}.attn_v": "self_attn.v_proj",
    "blk.{}.attn_output": "self_attn.o_proj",
    "blk.{}.ffn_gate": "mlp.gate_proj", "blk.{}.ffn_up": "mlp.up_proj", "blk.{}.ffn_down": "mlp.down_proj",
}


def hf_name(name: str, architecture: str) -> str:
    stem, kind = name.rsplit(".", 1)
    parts = stem.split(".")
    if parts[0] != "blk":
        return f"{NAMES[stem]}.{kind}"
    names = NAMES | {"blk.{}.ffn_norm": "pre_feedforward_layernorm" if architecture.startswith("gemma")
                     else "post_attention_layernorm"}
    return f"model.layers.{parts[1]}.{names['blk.{}.' + parts[2]]}.{kind}"


def unpermute(x: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp turns adjacent pairs in the architecture `llama`, HF turns halves; the rows of Q and K are reordered."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def read(path: Path) -> dict[str, np.ndarray]:
    """The weights of a GGUF under their HF names and in HF's layout, dequantised to f32. rope_freqs keeps its name."""
    reader = gguf.GGUFReader(path)
    field = lambda key: reader.fields[key].contents()
    architecture = field("general.architecture")
    heads, kv_heads = field(f"{architecture}.attention.head_count"), field(f"{architecture}.attention.head_count_kv")
    weights = {}
    for tensor in reader.tensors:
        # gguf gives the outermost dimension first for the data, innermost first for `shape`
        x = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1].tolist())
        if tensor.name == "rope_freqs.weight":
            weights[tensor.name] = x
            continue
        if architecture == "llama" and ".attn_q." in tensor.name:
            x = unpermute(x, heads)
        if architecture == "llama" and ".attn_k." in tensor.name:
            x = unpermute(x, kv_heads)
        if architecture.startswith("gemma") and tensor.name.endswith("norm.weight"):
            x = x - np.float32(1)
        weights[hf_name(tensor.name, architecture)] = x
    return weights


def check(path: Path, expected: dict[str, torch.Tensor]) -> None:
    found = read(path)
    found.pop("rope_freqs.weight", None)
    if set(found) != set(expected):
        raise SystemExit(f"{path}: tensors differ: {sorted(set(found) ^ set(expected))}")
    for name, value in expected.items():
        # 1 + w and back again loses a bit in f32
        tolerance = 1e-7 if "norm" in name else 0.0
        if np.abs(found[name] - value.float().numpy()).max() > tolerance:
            raise SystemExit(f"{path}: {name} differs from the safetensors")


if __name__ == "__main__":
    run_converter(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
