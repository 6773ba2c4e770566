#!/usr/bin/env python3
"""What each class of token runs: class_means.py FATHOM TEXT PASSAGES BYTES OUT [INSPECT OPTIONS…]

Runs `fathom inspect` on the first BYTES of PASSAGES documents of TEXT (between lines <|endoftext|>; those that begin in plain
ASCII: classes are of English words, and other scripts take many tokens), each into a folder of OUT, and prints one JSON
object: of every class of token how many there were, the mean depth (share of the units run) and
the mean score; the ten tokens that are highest and lowest in each; skip ratios by unit.
"""
import collections
import json
import pathlib
import subprocess
import sys

fathom, text, passages, size, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), pathlib.Path(sys.argv[5])
options = sys.argv[6:]
documents = pathlib.Path(text).read_text().split("<|endoftext|>")
documents = [d.strip()[:size] for d in documents if len(d.strip()) >= size]
documents = [d for d in documents if d.isascii()][:passages]
if not documents:
    sys.exit(f"class_means.py: no document of {text} has {size} bytes of plain ASCII")

classes, tokens, units = (collections.defaultdict(list) for _ in range(3))
for number, passage in enumerate(documents):
    folder = out / str(number)
    subprocess.run([fathom, "inspect", "-p", passage, "-o", folder, "--json", "-q", *options], check=True,
                   stdout=subprocess.DEVNULL)
    trace = json.loads((folder / "trace.json").read_text())
    for token in trace["tokens"]:
        scores = [s for s in token["scores"] if s is not None]
        depth = sum(token["ran"]) / len(token["ran"])
        classes[token["class"]].append((depth, sum(scores) / len(scores) if scores else None))
        tokens[token["text"]].append(classes[token["class"]][-1])
    for place, unit in enumerate(trace["units"]):
        units[place].append(unit["skip_ratio"])


def mean(values):
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def extremes(which):
    """Of the tokens that came several times."""
    rated = [(mean(rows[which] for rows in seen), text) for text, seen in tokens.items() if len(seen) >= min(5, len(documents))]
    rated = [text for value, text in sorted((v, t) for v, t in rated if v is not None)]
    return {"lowest": rated[:10], "highest": rated[::-1][:10]}


print(json.dumps({
    "classes": {name: {"n": len(rows), "depth": mean(d for d, _ in rows), "score": mean(s for _, s in rows)}
                for name, rows in sorted(classes.items())},
    "by_depth": extremes(0), "by_score": extremes(1), "skip_ratio_by_unit": [mean(units[u]) for u in sorted(units)]}))
