#!/usr/bin/env python3
"""writing_bench.py MODEL --adapter DIR --budgets 0.9,0.75 --prompts QUESTIONS.jsonl -o OUT.json: what a model writes when it skips.

The model without its adapter answers every prompt, then with it at each budget, by the same rule and seeds. The model without
it then reads all answers at full depth: the mean NLL of what was written, and the share of 4-grams that stood in the same
answer before. Differences are paired by prompt, with their standard errors. QUESTIONS.jsonl has MT-Bench's form: the first of
"turns" is asked, in ChatML. Which prompts and how many tokens: the options; every answer is kept in OUT.json, to be read."""

import argparse
import concurrent.futures
import json
import math
import pathlib
import shlex
import subprocess
import sys
import tempfile

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--budgets", default="0.9,0.75")
    parser.add_argument("--prompts", type=pathlib.Path, required=True)
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True)
    parser.add_argument("-n", type=int, default=256, help="tokens of an answer, at most (256)")
    parser.add_argument("--limit", type=int, help="prompts, at most")
    parser.add_argument("--fathom", default="build/fathom")
    parser.add_argument("--jobs", type=int, default=2, help="answers that are read side by side (2)")
    parser.add_argument("--draw", default="--temp 0.7 --top-k 40 -s 1", help="generate's options (--temp 0.7 --top-k 40 -s 1)")
    return parser.parse_args()


def chat(question):
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def write(args, prompts, how):
    """The answers to all prompts: lines of `generate --batch`."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answers = pathlib.Path(folder, "prompts.jsonl"), pathlib.Path(folder, "answers.jsonl")
        asked.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        run(args.fathom, "generate", "-m", args.model, *how, "--batch", asked, "-o", answers, "-n", args.n, "--ids", "-q",
            *shlex.split(args.draw))
        return [json.loads(line) for line in answers.read_text().splitlines()]


def read(args, prompt, answer):
    """The NLL of an answer at full depth, a token; None: it is empty."""
    if not answer["ids"]:
        return None
    asked = json.loads(run(args.fathom, "tokenize", "-m", args.model, "-p", prompt, "--json"))["ids"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(asked + answer["ids"], file)
        file.flush()
        return json.loads(run(args.fathom, "score", "-m", args.model, "--ids", file.name, "--prompt-tokens", len(asked), "-t", 1,
                              "--json", "-q"))["nll"]


def repeated(ids):
    """The share of 4-grams that stood before."""
    grams = [tuple(ids[i:i + 4]) for i in range(len(ids) - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def known(values):
    return [value for value in values if value is not None]


def differences(ours, theirs):
    """Of the prompts that both answered."""
    return [a - b for a, b in zip(ours, theirs) if a is not None and b is not None]


def mean(values):
    m = sum(values) / len(values)
    return m, math.sqrt(sum((v - m) ** 2 for v in values) / max(1, len(values) - 1) / len(values))


def main():
    args = arguments()
    questions = [json.loads(line)["turns"][0] for line in args.prompts.read_text(encoding="utf-8").splitlines()][:args.limit]
    prompts = [chat(question) for question in questions]
    settings = {"dense": []} | {b: ["--adapter", args.adapter, "--budget", b] for b in args.budgets.split(",")}
    result = {"questions": questions, "settings": {}}
    for name, how in settings.items():
        answers = write(args, prompts, how)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            nlls = list(pool.map(lambda pair: read(args, *pair), zip(prompts, answers)))
        repeats = [repeated(answer["ids"]) for answer in answers]
        result["settings"][name] = {"nll": nlls, "repeats": repeats, "texts": [answer["text"] for answer in answers],
                                    "tokens": sum(len(answer["ids"]) for answer in answers)}
        dense = result["settings"]["dense"]
        more, share = mean(differences(nlls, dense["nll"])), mean(known(repeats))[0]
        print(f"{name:>6}: NLL {mean(known(nlls))[0]:.3f} ({more[0]:+.3f} ± {more[1]:.3f}), repeated 4-grams {share:.3f} "
              f"({share / max(1e-9, mean(known(dense['repeats']))[0]):.2f} x), {result['settings'][name]['tokens']} tokens, "
              f"{nlls.count(None)} empty answers", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
