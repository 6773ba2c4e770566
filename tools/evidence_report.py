#!/usr/bin/env python3
"""evidence_report.py POINTS.jsonl OUT.png: the table of docs/results.md on stdout, the picture beside it (gnuplot).

Each line of POINTS: {"name", "seed", "budget", "point": {nll, stderr, skip_ratio, block_flops, net_flops, net_bytes}}.
Points of several seeds are averaged; their spread is the range of the means.
"""
import collections
import json
import subprocess
import sys
import tempfile

points, picture = sys.argv[1], sys.argv[2]
groups = collections.defaultdict(list)
for line in open(points):
    entry = json.loads(line)
    groups[entry["name"], entry["budget"]].append(entry["point"])

DEPTH = 8  # layers of the deepest dense model: what net FLOPs of shallower ones are taken against
HEAD = 64 * 512
BLOCK = 4 * 64 * 64 + 3 * 64 * 176 + 2 * 64 * 128  # multiply-adds of a block at the mean context of a window of 256


def net_flops(name, point):
    if name.startswith("dense-"):  # measured against itself: as a share of the deepest
        layers = int(name.split("-")[1])
        return (layers * BLOCK + HEAD) / (DEPTH * BLOCK + HEAD)
    if name == "wide_ffn":  # against its own, wider backbone
        wide = DEPTH * (BLOCK + 3 * 64 * 176) + HEAD
        return point["net_flops"] * wide / (DEPTH * BLOCK + HEAD)
    return point["net_flops"]


def mean(values):
    return sum(values) / len(values)


rows = []
for (name, budget), group in groups.items():
    nlls = [p["nll"] for p in group]
    rows.append({"name": name, "budget": budget, "seeds": len(group), "nll": mean(nlls),
                 "spread": max(nlls) - min(nlls), "stderr": mean([p["stderr"] for p in group]),
                 "skip": mean([p["skip_ratio"] for p in group]), "block": mean([p["block_flops"] for p in group]),
                 "net": mean([net_flops(name, p) for p in group]), "bytes": mean([p["net_bytes"] for p in group])})
rows.sort(key=lambda r: r["nll"])
print("| method | budget asked | seeds | NLL (± standard error; range over seeds) | skip ratio | block FLOPs | net FLOPs | net bytes |")
print("|---|---|---|---|---|---|---|---|")
for r in rows:
    budget = "own rule" if r["budget"] == 1 else r["budget"]
    spread = f"; {r['spread']:.3f}" if r["seeds"] > 1 else ""
    print(f"| {r['name']} | {budget} | {r['seeds']} | {r['nll']:.3f} ± {r['stderr']:.3f}{spread} | {r['skip']:.2f} | "
          f"{r['block']:.2f} | {r['net']:.2f} | {r['bytes']:.2f} |")

series = collections.defaultdict(list)
for r in rows:
    series["dense, Skip-Middle's block" if r["name"].endswith("-sandwich") else
           "dense, 2 to 8 layers" if r["name"].startswith("dense-") else
           "random blocks" if r["name"].startswith("random") else r["name"].replace("_", " ")].append(r)
with tempfile.NamedTemporaryFile("w", suffix=".gp") as script:
    plots = []
    for title, group in series.items():
        group.sort(key=lambda r: r["net"])
        block = "\n".join(f"{r['net']} {r['nll']} {max(r['stderr'], r['spread'] / 2)}" for r in group)
        script.write(f"$d{len(plots)} << E\n{block}\nE\n")
        line = "linespoints" if len(group) > 1 else "points"
        number = len(plots) + 1
        plots.append(f"$d{len(plots)} using 1:2:3 with yerrorbars lc {number} pt {number} ps 0 notitle, "
                     f"$d{len(plots)} using 1:2 with {line} lc {number} pt {number} ps 1.6 lw 2 title '{title}'")
    script.write("set terminal pngcairo size 1100,720 font 'Sans,12'\n"
                 f"set output '{picture}'\n"
                 "set xlabel 'net FLOPs of the forward pass, routers and output included, over the 8-layer dense model'\n"
                 "set ylabel 'NLL per token, held-out Wikipedia'\nset key outside right\nset grid\nset yrange [2.7:4.1]\n"
                 "set title '8 × 64 models from scratch, 2 M tokens'\n")
    script.write("plot " + ", ".join(plots) + "\n")
    script.flush()
    subprocess.run(["gnuplot", script.name], check=True)
