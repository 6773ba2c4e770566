#!/usr/bin/env python3
"""demo.py MODEL: the same prompts at full depth, at calibrated savings and with lossless speculation, side by side.

Prints the answers, shaded by depth where stdout is a terminal, and a table; writes OUT/demo.json (all numbers),
OUT/index.html, and OUT/inspect (`fathom inspect` of one answer). The settings take turns, so that whatever else the
machine does hits them alike; of each answer the fastest round counts.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import demo_pages
import demo_shades

ADAPTER = "models/smollm2-135m"
CHAT = ["--chat-template", "auto"]
PROMPTS = [("Photosynthesis is the process by which plants", []),
           ("The city of Paris is known for", []),
           ("Why is the sky blue? Answer in one sentence.", CHAT)]
SENTENCES = [("The old man looked at the sea and", []), ("The city was founded in", [])]
PENALTY = 1.1  # of repeats: greedy text of a model this small turns in circles without one, at any depth
SECONDS = 120  # no further round begins after so long


def run(fathom, *options):
    result = subprocess.run([fathom, *options, "--json", "-q"], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"demo: {result.stderr.strip() or 'fathom failed'}")
    return json.loads(result.stdout)


def adapter_of(args):
    """The options that bring what ships for SmolLM2; `builtin` has its own routers."""
    return [] if args.model == "builtin" else ["--adapter", ADAPTER]


def settings_of(info, adapter):
    """Names and options: full depth, the budgets that are calibrated, and speculation, the text of the first."""
    tables = info.get("calibration") or {}
    budgets = sorted({b for table in tables.values() for b in table}, reverse=True)
    yield "full depth", [] if adapter else ["--budget", "1"]
    for budget in (0.9, 0.75 if adapter else 0.8):
        if budgets and budgets[-1] <= budget:
            yield f"budget {budget}", [*adapter, "--budget", str(budget)]
    # With a LoRA in the weights full depth would be another model's: the base drafts from the text alone.
    draft = ["--draft-budget", str(max(budgets[-1], 0.8))] if budgets and not adapter else []
    yield "speculation", ["--speculate", "auto", *draft]


def measure(args, info, adapter):
    """Rounds in which every prompt is answered at every setting; the answers, and the seconds of every round."""
    prompts = SENTENCES if args.model == "builtin" else PROMPTS
    settings = [{"name": name, "options": options, "answers": []} for name, options in settings_of(info, adapter)]
    begun = time.monotonic()
    for turn in range(args.rounds):
        if time.monotonic() - begun > SECONDS:
            break
        for i, (text, chat) in enumerate(prompts):
            for setting in settings:
                answer = run(args.fathom, "generate", "-m", args.model, "-p", text, *chat, *setting["options"],
                             "-n", str(args.tokens), "--temp", "0", "--repeat-penalty", str(PENALTY),
                             "-t", str(args.threads))
                if turn == 0:
                    setting["answers"].append({"prompt": text, **answer, "seconds": []})
                seconds = answer["generated_tokens"] / max(answer["decode_tokens_per_s"], 1e-9)
                setting["answers"][i]["seconds"].append(seconds)
    return settings


def compare(settings):
    """Adds to each setting what the table shows."""
    first = settings[0]
    for setting in settings:
        setting["tokens_per_s"] = (sum(answer["generated_tokens"] for answer in setting["answers"]) /
                                   sum(min(answer["seconds"]) for answer in setting["answers"]))
        setting["speed_up"] = setting["tokens_per_s"] / first["tokens_per_s"]
        for field in ("block_flops", "net_bytes"):
            setting[field] = statistics.mean(answer[field] for answer in setting["answers"])
        setting["same_text"] = all(a["text"] == b["text"] for a, b in zip(setting["answers"], first["answers"]))
        setting["drafted"] = sum(answer.get("drafted", 0) for answer in setting["answers"])
        setting["accepted"] = sum(answer.get("accepted", 0) for answer in setting["answers"])


def show_answers(settings, layers, colour):
    width = min(shutil.get_terminal_size((100, 24)).columns, 120) - 15
    for i, answer in enumerate(settings[0]["answers"]):
        print(f"\n> {answer['prompt']}")
        for setting in settings:
            name = setting["name"]
            for line in demo_shades.lines(setting["answers"][i]["pieces"], width):
                text = "".join(demo_shades.in_terminal(*piece, layers) if colour else piece[0] for piece in line)
                print(f"  {name:11}  {text}")
                name = ""
    if colour:
        steps = [layers * (8 + i) / 16 for i in range(9)]
        print("\nlayers run: " + " ".join(demo_shades.in_terminal(f" {d:.3g} ", d, layers) for d in steps))


def show_table(data):
    print()
    for row in demo_pages.table(data):
        print(f"{row[0]:13}" + "".join(f"{cell:>17}" for cell in row[1:]))
    print()
    for line in demo_pages.remarks(data):
        print(f"- {line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--fathom", default="build/fathom")
    parser.add_argument("--out", default="runs/demo", type=pathlib.Path)
    parser.add_argument("--tokens", default=48, type=int)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--threads", default=len(os.sched_getaffinity(0)), type=int)
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    adapter = adapter_of(args)
    info = run(args.fathom, "info", "-m", args.model, *adapter)
    name = pathlib.Path(args.model).name
    print(f"{name}, {info['layers']} layers: the same prompts at every setting, greedy with a repeat penalty of {PENALTY}, in turns",
          flush=True)
    settings = measure(args, info, adapter)
    compare(settings)
    version = subprocess.run([args.fathom, "--version"], capture_output=True, text=True).stdout.splitlines()[:2]
    data = {"model": name, "layers": info["layers"], "tokens": args.tokens, "penalty": PENALTY, "threads": args.threads,
            "version": version, "settings": settings}
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    show_answers(settings, info["layers"], colour)
    show_table(data)

    shown = settings[min(1, len(settings) - 1)]  # the first saving, or speculation where there is none
    budget = shown["options"] if "--budget" in shown["options"] else []
    run(args.fathom, "inspect", "-m", args.model, *budget, "-p",
        shown["answers"][0]["prompt"] + shown["answers"][0]["text"], "-o", str(args.out / "inspect"))
    (args.out / "demo.json").write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n")
    (args.out / "index.html").write_text(demo_pages.page(data))
    print(f"\nThe report: {args.out / 'index.html'} (why each token ran what it ran: {args.out / 'inspect/index.html'})")
    if not settings[-1]["same_text"]:
        sys.exit("demo: speculation gave another text, which it never should: please report this")


if __name__ == "__main__":
    main()
