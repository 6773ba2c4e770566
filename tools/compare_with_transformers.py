#!/usr/bin/env python3
"""Compares fathom's log-probabilities with transformers' for a model of yours.

    tools/compare_with_transformers.py build/fathom MODEL_DIR_OR_GGUF [--file TEXT | --ids IDS.json] [--limit 2e-3]

Both compute in f32 from the stored weights. Exits 1 when a token's log-probability differs by more than the limit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

TEXT = "The quick brown fox jumps over the lazy dog. In 1895, the river was still 12 miles wide; nobody had measured it.\n"


def load(path: Path):
    where = {"pretrained_model_name_or_path": path}
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), lambda: transformers.AutoTokenizer.from_pretrained(**where)


def choose_ids(args, tokenizer) -> list[int]:
    if args.ids:
        return json.loads(args.ids.read_text())
    ids = tokenizer()((args.file.read_text() if args.file else TEXT))["input_ids"]
    return ids[:args.tokens]


def fathom_logprobs(program: Path, model: Path, ids: list[int]) -> list[float]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ids, file)
        file.flush()
        command = [program, "score", "-m", model, "--ids", file.name, "--dtype", "f32", "--json"]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"fathom score exited with {result.returncode}: {result.stderr.strip()}")
    answer = json.loads(result.stdout)
    if answer["ids"] != ids:
        sys.exit("fathom score returned other ids than it was given")
    return answer["logprobs"][1:]


@torch.no_grad()
def transformers_logprobs(model, ids: list[int]) -> list[float]:
    log_probs = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].log_softmax(-1)
    return log_probs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fathom", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--file", type=Path, help="text to score; default: two sentences")
    parser.add_argument("--ids", type=Path, help="a JSON list of token ids instead of a text")
    parser.add_argument("--tokens", type=int, default=512, help="score at most so many tokens of the text")
    parser.add_argument("--limit", type=float, default=2e-3, help="largest difference allowed, in nats")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    model, tokenizer = load(args.model)
    ids = choose_ids(args, tokenizer)
    ours, theirs = fathom_logprobs(args.fathom.resolve(), args.model, ids), transformers_logprobs(model, ids)
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    worst = max(range(len(differences)), key=differences.__getitem__)
    print(f"{len(differences)} tokens; mean log-probability {sum(ours) / len(ours):.6f} (fathom), "
          f"{sum(theirs) / len(theirs):.6f} (transformers); largest difference {differences[worst]:.2e} at token "
          f"{worst + 1} (id {ids[worst + 1]}: {ours[worst]:.6f} and {theirs[worst]:.6f})")
    # `not <=`: a NaN fails too
    sys.exit(0 if all(d <= args.limit for d in differences) else 1)


if __name__ == "__main__":
    main()
