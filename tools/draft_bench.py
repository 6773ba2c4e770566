#!/usr/bin/env python3
"""draft_bench.py MODEL --data DIR -o OUT.json: speculation against plain decoding, prompts of several kinds, in turns.

DIR holds the unpacked `instruct` and `lm` folders. The prompts of a kind are the first of its file whose plain greedy answer
has at least 64 tokens and does not loop (no 16 tokens in a row occur three times). The answers of every setting are compared
with the plain ones: speculation never changes them. OUT.json keeps the prompts, so that a second run takes the same ones.
Beside the times it reports passes per token, which do not depend on what else the machine does."""

import argparse
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

CHAT = ["--chat-template", "auto"]
KINDS = ("editing", "code", "new-code", "lists", "prose", "chat")


def records(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def with_input(record):
    return record["instruction"] + ("\n\n" + record["input"] if record["input"] else "")


def articles(data):
    """Paragraphs of Wikipedia, one of each article."""
    text = next(path for path in sorted((data / "lm" / "wikipedia").iterdir()) if "valid" in path.name).read_text(encoding="utf-8")
    for article in text.split("<|endoftext|>"):
        parts = [part.strip() for part in article.split("\n") if 300 <= len(part.strip()) <= 900]
        if parts:
            yield parts[0]


def candidates(kind, data):
    """Prompts of a kind, in the order of their file."""
    instruct = data / "instruct"
    if kind == "editing":  # a text that is given, corrected and summarised by turns
        summaries = [with_input(r) for r in records(instruct / "dolly_3k.jsonl")
                     if r["category"] == "summarization" and 400 <= len(r["input"]) <= 1500]
        edits = ["Correct the spelling and the grammar of this text:\n\n" + part for part in articles(data)]
        return [prompt for pair in zip(edits, summaries) for prompt in pair]
    if kind == "code":  # code that is given, to be fixed or changed
        verb = re.compile(r"\b(fix|debug|correct|refactor|rewrite|convert|modify|optimi[sz]e|improve|complete)\b", re.I)
        return [with_input(r) for r in records(instruct / "new_codealpaca.jsonl") if len(r["input"]) >= 150 and verb.search(r["instruction"])]
    if kind == "new-code":
        return [with_input(r) for r in records(instruct / "new_codealpaca.jsonl")]
    if kind == "lists":
        verb = re.compile(r"(list|name|give|generate a list|create a list)\b.*\b(list|three|five|ten|3|5|10)\b", re.I)
        return [r["instruction"] for r in records(instruct / "alpaca_subset.jsonl") if verb.match(r["instruction"]) and not r["input"]]
    if kind == "prose":  # stories, essays and letters (novels that go on loop in four of five greedy answers)
        verb = re.compile(r"(write|compose|tell|create|generate) (a|an|me a) (\w+ )?(story|essay|paragraph|article|letter|speech)\b", re.I)
        return [r["instruction"] for r in records(instruct / "alpaca_subset.jsonl") if verb.match(r["instruction"]) and not r["input"]]
    return [r["turns"][0] for r in records(instruct / "mt_bench_question.jsonl")]


def generate(args, prompt, more, tokens=None):
    """What the program says, and the seconds of processors that it took (which others on the machine change less)."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(prompt)
        file.flush()
        argv = [args.fathom, "generate", "-m", args.model, "-f", file.name, "-n", str(tokens or args.tokens), "--temp", "0", "-t", str(args.threads), "--json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(argv + CHAT + more, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"draft_bench: {done.stderr.strip()}")
    out = json.loads(done.stdout)
    out["cpu"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return out


def loops(ids, length=16, times=3):
    seen = {}
    for at in range(len(ids) - length + 1):
        key = tuple(ids[at:at + length])
        seen[key] = seen.get(key, 0) + 1
    return any(count >= times for count in seen.values())


def choose(args, kind):
    """The first prompts whose plain answers are long enough and do not loop."""
    chosen, short, looping = [], 0, 0
    for prompt in candidates(kind, args.data):
        if len(chosen) == args.prompts:
            break
        plain = generate(args, prompt, [])
        if plain["prompt_tokens"] > 1024 or plain["generated_tokens"] < args.tokens // 2:
            short += 1
        elif loops(plain["ids"]):
            looping += 1
        else:
            chosen.append({"prompt": prompt, "ids": plain["ids"]})
    print(f"{kind}: {len(chosen)} prompts; passed over: {short} short, {looping} looping", file=sys.stderr)
    return chosen


def measure(args, kind, prompts, settings):
    """Turns: each round runs plain and every setting on each prompt."""
    rows = []
    for turn in range(args.rounds):
        for number, chosen in enumerate(prompts):
            prefill = generate(args, chosen["prompt"], [], 1)["cpu"]
            for name, more in settings.items():
                out = generate(args, chosen["prompt"], more)
                if out["ids"] != chosen["ids"]:
                    sys.exit(f"draft_bench: {name} changed the text of prompt {number} ({kind}), which it never should")
                tokens = out["generated_tokens"]
                rows.append({"turn": turn, "prompt": number, "setting": name, "tokens_per_s": out["decode_tokens_per_s"], "cpu": out["cpu"] - prefill,
                             "tokens": tokens, "drafted": out.get("drafted", 0), "accepted": out.get("accepted", 0),
                             "draft_passes": out.get("draft_passes", 0), "verify_passes": out.get("verify_passes", 0)})
    return rows


def summary(rows, settings):
    """Per setting: the ratio to plain over the kind's prompts (of summed times, per turn: median, least, most), passes per token."""
    def seconds(name, turn):
        return sum(r["tokens"] / r["tokens_per_s"] for r in rows if r["setting"] == name and r["turn"] == turn)
    turns = sorted({r["turn"] for r in rows})
    out = {}
    for name in settings:
        own = [r for r in rows if r["setting"] == name and r["turn"] == 0]
        tokens, accepted = sum(r["tokens"] for r in own), sum(r["accepted"] for r in own)
        ratios = [seconds("plain", turn) / seconds(name, turn) for turn in turns]
        cpu = {n: sum(r["cpu"] for r in rows if r["setting"] == n) for n in ("plain", name)}
        each = []
        for number in sorted({r["prompt"] for r in rows}):
            pick = {n: statistics.median(r["tokens_per_s"] for r in rows if r["setting"] == n and r["prompt"] == number) for n in ("plain", name)}
            each.append(pick[name] / pick["plain"])
        drafts = sum(r["draft_passes"] for r in own)
        out[name] = {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
                     "prompts": {"median": statistics.median(each), "least": min(each), "most": max(each)},
                     "cpu_ratio": cpu["plain"] / cpu[name],
                     "passes_per_token": (tokens - accepted + drafts) / tokens,
                     "drafted": sum(r["drafted"] for r in own), "accepted": accepted, "tokens": tokens}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True)
    parser.add_argument("--fathom", default="build/fathom")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--setting", action="append", default=[], help="NAME=OPTIONS; default: auto=--speculate auto")
    args = parser.parse_args()
    settings = {"plain": []}
    for setting in args.setting or ["auto=--speculate auto"]:
        name, _, options = setting.partition("=")
        settings[name] = options.split()
    result = json.loads(args.out.read_text()) if args.out.exists() else {}
    for kind in args.kinds.split(","):
        of_kind = result.setdefault(kind, {})
        if "prompts" not in of_kind:
            of_kind["prompts"] = choose(args, kind)
            args.out.write_text(json.dumps(result))
        if args.rounds == 0:
            continue
        rows = measure(args, kind, of_kind["prompts"], settings)
        of_kind["rows"], of_kind["summary"] = rows, summary(rows, settings)
        args.out.write_text(json.dumps(result))
        for name, s in of_kind["summary"].items():
            print(f"{kind:8} {name:12} {s['ratio']:.2f} ({s['least']:.2f} to {s['most']:.2f}) of plain, by processor time {s['cpu_ratio']:.2f}; prompts {s['prompts']['median']:.2f} "
                  f"({s['prompts']['least']:.2f} to {s['prompts']['most']:.2f}); {s['passes_per_token']:.2f} passes a token, "
                  f"{s['accepted']} of {s['drafted']} drafts stayed", flush=True)


if __name__ == "__main__":
    main()
