#!/usr/bin/env python3
"""Depth that follows load: the 95th percentile of latency against the load, with budget 1, the floor, and auto.

    tools/serve_depth.py -m SmolLM2-135M-Instruct.Q4_1.gguf --adapter models/smollm2-135m-priced --plot depth.png

Requests arrive by a Poisson process, the same for the three and, stretched, at every load. Loads are shares of the capacity at budget 1, which is measured
first: every place of the server busy. The load gain of a line is how far beyond the capacity its 95th percentile is no
higher than that of budget 1 at the capacity. Runs that other programs disturb are made again (see serve_bench.py)."""
import argparse
import json
import pathlib
import sys

from serve_bench import ROOT, free_port, load, running, show, undisturbed

LOADS = "0.5,0.75,0.9,1,1.1,1.2,1.3,1.4"


def command(args, port, *options):
    return [args.fathom, "serve", "-m", args.model, "--adapter", args.adapter, "-t", str(args.threads), "--port", str(port),
            "--parallel", str(args.slots), "--quiet", *options]


def capacity(args):
    """Tokens a second at budget 1 while every place is busy."""
    port = free_port()
    with running(command(args, port), port) as process:
        found, _ = undisturbed(args, [process], lambda: load(
            args, {"fathom": port}, "--clients", str(args.slots), "--requests", str(3 * args.slots), "--prompt-tokens",
            str(args.prompt), "--fields", 'full={"budget": 1}'))
    return found[0]["tokens_per_second"][0]


def crossing(points, bound):
    """The load at which a line reaches the bound; the last load where it does not."""
    for (load_before, before), (load_after, after) in zip(points, points[1:]):
        if before <= bound < after:
            return load_before + (load_after - load_before) * (bound - before) / (after - before)
    return points[-1][0]


def measure(args, rates, target, lines):
    """For each rate: what the lines gave, and what other programs took."""
    port = free_port()
    fields = [part for name, budget in lines.items() for part in ("--fields", f"{name}={json.dumps({'budget': budget})}")]
    results = []
    options = ("--budget-floor", str(args.floor), "--target-latency", str(target))
    with running(command(args, port, *options), port) as process:
        seed = iter(range(1, 1000))
        for rate in rates:
            results.append(undisturbed(args, [process], lambda: load(
                args, {"fathom": port}, "--rate", f"{rate:.3f}", "--seconds", str(args.seconds), "--prompt-tokens",
                str(args.prompt), "--seed", str(next(seed)), "--arrival-seed", str(args.seed), "--rounds", str(args.rounds),
                *fields)))
            found, others = results[-1]
            cells = [f"{each['total_seconds']['p95']:.2f}" for each in found]
            show([f"{rate:.2f}", *cells, f"{found[2]['mean_budget']:.3f}", f"{100 * others:.0f} %"])
    return results


def plot(args, loads, table, lines):
    """By gnuplot, as the project's other pictures are."""
    import subprocess
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "table"
        data.write_text("\n".join("\t".join(str(cell) for cell in [each, *row]) for each, row in zip(loads, table)) + "\n")
        styles = [("#1f77b4", 1), ("#d95f02", 2), ("#1b9e77", 3)]
        curves = ", ".join(f"'{data}' using 1:{i + 2} with linespoints lw 2 pt 7 ps 0.7 dt {dash} lc rgb '{color}' title '{name}'"
                           for i, (name, (color, dash)) in enumerate(zip(lines, styles)))
        script = (f"set terminal pngcairo noenhanced font 'DejaVu Sans,10' background '#ffffff' size 760,420\n"
                  f"set output '{args.plot}'\nset key top left\nset border 3\nset tics nomirror\nset yrange [0:{4 * table[0][0]:.3f}]\n"
                  "set xlabel 'load, as a share of the capacity at budget 1'\nset ylabel '95th percentile of a request, s'\n"
                  f"set title 'Depth follows load'\nplot {curves}\n")
        subprocess.run(["gnuplot"], input=script, text=True, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--floor", type=float, default=0.7)
    parser.add_argument("--fathom", default=str(ROOT / "build/fathom"))
    parser.add_argument("--load", default=str(ROOT / "build/bench/serve_load"))
    parser.add_argument("--text", default=str(ROOT / "docs/benchmarks.md"), help="prompts are pieces of it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=1, help="of each point, with other arrivals; percentiles are over all of them")
    parser.add_argument("--loads", default=LOADS, help="shares of the capacity; with 1 among them, the first is half load and the gain is printed")
    parser.add_argument("--target", type=float, default=0.6,
                        help="the time between tokens that auto keeps to, as a share of that with every place busy")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--capacity", type=float, help="tokens a second at budget 1, measured before: points can then be run apart")
    parser.add_argument("--others", type=float, default=0.05, help="share of the CPU time that other programs may take")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for a quiet moment")
    parser.add_argument("--plot", help="FILE.png")
    args = parser.parse_args()
    speed = args.capacity or capacity(args)
    target = args.target * args.slots / speed
    loads = [float(each) for each in args.loads.split(",")]
    print(f"capacity at budget 1: {speed:.0f} tokens/s, {speed / args.new:.2f} requests/s; target {1000 * target:.0f} ms\n")
    lines = {"budget 1": 1, f"floor {args.floor:g}": args.floor, f"auto from {args.floor:g}": "auto"}
    show(["requests/s", *(f"{name}: p95, s" for name in lines), "auto's mean budget", "other programs"])
    show(["---"] * (len(lines) + 3))
    results = measure(args, [each * speed / args.new for each in loads], target, lines)
    table = [[each["total_seconds"]["p95"] for each in found] for found, _ in results]
    if 1.0 not in loads:
        return 0
    bound = table[loads.index(1.0)][0]
    reach = [crossing(list(zip(loads, [row[i] for row in table])), bound) for i in range(len(lines))]
    print(f"\nat {bound:.2f} s: floor {reach[1]:.2f} and auto {reach[2]:.2f} of the capacity at budget 1, "
          f"{100 * (reach[2] - 1) / max(1e-9, reach[1] - 1):.0f} % of the gain; mean budget of auto at half load "
          f"{results[0][0][2]['mean_budget']:.3f}")
    if args.plot:
        plot(args, loads, table, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
