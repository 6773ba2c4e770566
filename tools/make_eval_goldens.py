#!/usr/bin/env python3
"""Writes tests/data/eval/harness.json: what lm-evaluation-harness itself makes of texts, answers and numbers.

    pip install lm-eval==0.4.13 torch==2.6.0 transformers==5.22.2 accelerate==1.15.0
    python tools/make_eval_goldens.py

The model is tests/data/models/smollm2 (64 tokens, random weights), with a context of 64 so that texts get cut.
"""

import json
import pathlib
import random

import torch
from lm_eval.api import metrics
from lm_eval.api.instance import Instance
from lm_eval.filters.extraction import RegexFilter, WhitespaceFilter
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.api.task import PerplexityTask

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTEXT = 64

PAIRS = [
    ("the cat sat on", " the mat."),
    ("the cat sat on", " a hat: the other one"),
    ("the cat sat on ", "the mat."),
    ("it is \n\n", "so, there"),
    ("t", "he end"),  # the tokens of the whole are not those of its parts
    ("", " the first"),
    ("", "<|endoftext|>the first"),
    ("  ", "the first") ,
    ("<|endoftext|>so it began", " then"),
    ("Once, the long road went on and on over the hills, by the sea, past the old mill and the inn", " the end."),
    ("1 2 3", " 4"),
    ("the cat sat on", "nnnnBB"),  # what greedy decoding gives
]
TEXTS = [
    "the cat",
    "the cat sat on the mat. " * 3,
    "so it went on, and on; and there was no end to it: the road, the hill, the sea. " * 4,
    "  a b\n\nc  d\te ",
]
PROMPTS = ["the cat sat on", "Once there was", "1 2 3 4 5 " * 12, "Hi"]
UNTIL = [["\n", "."], ["the"], [], ["e", "s"]]

NUMBERS = [
    ("She has 3 + 4 = 7.\n#### 7", "x\n#### 7"),
    ("The total is $1,234.50.\n#### 1,234.50", "x #### 1234.50"),
    ("it is 18 dollars", "#### 18"),
    ("#### 18. and then #### 19", "#### 18"),
    ("a -5 and 12.", "#### 12"),
    ("no number here", "#### 1"),
    ("#### -3", "steps #### -3"),
    ("cost: $15", "#### 15"),
    ("so 2,000,000 it is.", "#### 2000000"),
    ("#### $20", "#### 20"),
    ("", "#### 0"),
    ("5", "#### 5."),
]
TEXT_ANSWERS = [
    (" Paris", ["paris", "City of Paris"]),
    (" The  Beatles!", ["beatles", "the beatles"]),
    ("\tan apple a day", ["Apple day", "An apple a day"]),
    ("A cat and a dog", ["cat and dog"]),
    ("O'Neill", ["oneill"]),
    ("École \u00a0", ["école"]),
    ("pan and theory", ["p theory"]),
    ("the", ["The"]),
    ("", ["nothing"]),
]
STOPS = [
    ("one. two, three\nfour", ["\n", ".", ","]),
    ("a Question: b", ["Question:", "</s>"]),
    ("plain", ["\n"]),
    ("\nall", ["\n"]),
]
ARTICLES = ["\\b(?:The |the |An |A |The |a |an )"]
NUMBER_NOISE = [",", "\\$", "(?s).*#### ", "\\.$"]


def exact(prediction, references, **options):
    score = metrics.exact_match_hf_evaluate(
        predictions=[prediction] * len(references), references=references, **options
    )
    return bool(score["exact_match"] > 0)


def answers():
    strict = RegexFilter("#### (\\-?[0-9\\.\\,]+)")
    flexible = RegexFilter("(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)
    numbers = []
    for text, answer in NUMBERS:
        case = {"text": text, "answer": answer}
        for name, found in (("strict", strict), ("flexible", flexible)):
            taken = found.apply([[text]], [{}])[0][0]
            right = exact(taken, [answer], ignore_case=True, ignore_punctuation=False, regexes_to_ignore=NUMBER_NOISE)
            case[name] = {"answer": taken, "right": right}
        numbers.append(case)
    texts = []
    for text, right in TEXT_ANSWERS:
        taken = WhitespaceFilter().apply([[text]], [{}])[0][0]
        rules = {"ignore_case": True, "ignore_punctuation": True}
        texts.append(
            {
                "text": text,
                "answers": right,
                "answer": taken,
                "plain": exact(taken, right, **rules),
                "less_articles": exact(taken, right, **rules, regexes_to_ignore=ARTICLES),
            }
        )
    stops = [{"text": t, "stops": s, "left": postprocess_generated_text(t, s, None)} for t, s in STOPS]
    return {"numbers": numbers, "texts": texts, "stops": stops}


def statistics():
    rng = random.Random(3)
    values = [float(rng.random() < 0.3) for _ in range(37)]
    groups = [[float(rng.random() < p) for _ in range(n)] for p, n in ((0.2, 5), (0.5, 11), (0.9, 8))]
    errors = [metrics.mean_stderr(g) for g in groups]
    logprobs = [-3 * rng.random() for _ in range(20)]
    gold = [rng.randrange(2) for _ in range(25)]
    predicted = [rng.randrange(2) for _ in range(25)]
    return {
        "values": values,
        "mean": metrics.mean(values),
        "stderr": metrics.mean_stderr(values),
        "groups": groups,
        "pooled_stderr": float(metrics.pooled_sample_stderr(errors, [len(g) for g in groups])),
        "logprobs": logprobs,
        "perplexity": metrics.perplexity(logprobs),
        "gold": gold,
        "predicted": predicted,
        "f1": float(metrics.f1_score(list(zip(gold, predicted)))),
    }


def request(kind, arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def model_results():
    torch.set_num_threads(1)
    path = str(ROOT / "tests/data/models/smollm2")
    lm = HFLM(pretrained=path, dtype="float32", device="cpu", batch_size=3, max_length=CONTEXT)
    pairs = []
    spaced = [pair for pair in PAIRS if pair[0] == "" or pair[0].strip()]  # the harness stops at the others
    for (context, continuation), (logprob, greedy) in zip(
        spaced, lm.loglikelihood([request("loglikelihood", pair) for pair in spaced])
    ):
        case = {"context": context, "continuation": continuation, "logprob": logprob, "greedy": greedy}
        if context:
            case["context_ids"], case["continuation_ids"] = lm._encode_pair(context, continuation)
        pairs.append(case)
    rolling = [
        {"text": text, "logprob": logprob, "words": PerplexityTask.count_words(text)}
        for text, logprob in zip(TEXTS, lm.loglikelihood_rolling([request("loglikelihood_rolling", (t,)) for t in TEXTS]))
    ]
    generated = []
    for until in UNTIL:
        rules = {"until": list(until), "max_gen_toks": 16, "do_sample": False}
        texts = lm.generate_until([request("generate_until", (prompt, rules)) for prompt in PROMPTS])
        generated += [{"prompt": p, "until": until, "text": t} for p, t in zip(PROMPTS, texts)]
    return {"context": CONTEXT, "pairs": pairs, "rolling": rolling, "max_tokens": 16, "generated": generated}


def main():
    out = ROOT / "tests/data/eval/harness.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    goldens = {"answers": answers(), "statistics": statistics(), "model": model_results()}
    out.write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n")
    print(out, out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
