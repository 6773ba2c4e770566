#!/usr/bin/env python3
"""Questions with their right answers, as text to train on: question_text.py BENCHMARKS OUT.txt [TASK…]

Reads BENCHMARKS/TASK/train.jsonl (docs/evaluation.md says how a line looks) of arc_challenge, commonsenseqa, openbookqa,
piqa, winogrande and boolq, unless other tasks are named, and writes one document for each line, mixed over all tasks.
Lines of a validation or test part are not read.
"""
import json
import pathlib
import random
import sys

TASKS = ["arc_challenge", "commonsenseqa", "openbookqa", "piqa", "winogrande", "boolq"]


def document(task, item):
    """The question and its answer; WinoGrande's has a gap (_), and the answer stands in it."""
    question, answer = item["ctx"], item["choices"][item["gold"]]
    return question.replace("_", answer, 1) if task == "winogrande" else f"{question} {answer}"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    documents = []
    for task in sys.argv[3:] or TASKS:
        path = folder / task / "train.jsonl"
        try:
            documents += [document(task, json.loads(line)) for line in path.read_text().splitlines()]
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            sys.exit(f"question_text.py: {path}: expected lines with ctx, choices and gold: {error}")
    random.Random(1).shuffle(documents)
    out.write_text("\n<|endoftext|>\n".join(documents) + "\n")
    print(f"{out}: {len(documents)} documents, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
