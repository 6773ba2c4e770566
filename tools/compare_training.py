#!/usr/bin/env python3
"""compare_training.py RECIPE --data TEXT...: bf16 on a device against f32 on the CPU, with the same data and the same seed.

    tools/compare_training.py configs/small/dense.json --data text.txt --device cuda
    tools/compare_training.py configs/small/priced.json --verb tune --data text.txt --device cuda --set batch=2

Trains RECIPE twice, --steps (100) steps each, and prints how far the losses are apart: the most in the first 20 steps, and
the means of the last 21 (steps 80 to 100). Exit status 1 where they are farther apart than --first (0.01) or --last (0.02).
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile


def losses(args, folder, name, device, precision):
    out = pathlib.Path(folder) / name
    command = [args.fathom, args.verb, "--config", args.recipe, "-o", str(out), "--device", device, "-q"]
    command += [word for text in args.data for word in ("--data", text)]
    own = [f"precision={precision}", f"schedule_steps={args.steps}", "log_every=1", "validation.data=[]"]
    command += [word for setting in own + args.set for word in ("--set", setting)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"compare_training.py: {name}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data", action="append", required=True, metavar="TEXT")
    parser.add_argument("--device", default="cuda", help="of the run in bf16 (cuda)")
    parser.add_argument("--verb", choices=("train", "tune"), default="train")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of both runs")
    parser.add_argument("--first", type=float, default=0.01, help="the most that one of the first 20 steps may differ by (0.01)")
    parser.add_argument("--last", type=float, default=0.02, help="the most that the means of steps 80 to 100 may differ by (0.02)")
    parser.add_argument("--fathom", default="build/fathom")
    args = parser.parse_args()
    if args.steps < 20:
        parser.error(f"--steps: 20 or more, got {args.steps}")
    with tempfile.TemporaryDirectory() as folder:
        a = losses(args, folder, "f32 on the CPU", "cpu", "f32")
        b = losses(args, folder, f"bf16 on {args.device}", args.device, "bf16")
    if len(a) != args.steps or len(b) != args.steps:
        sys.exit(f"compare_training.py: {args.steps} steps were asked for, {len(a)} and {len(b)} ran")
    tail = slice(max(0, args.steps - 21), args.steps)
    first = max(abs(x - y) for x, y in zip(a[:20], b[:20]))
    last = abs(statistics.mean(a[tail]) - statistics.mean(b[tail]))
    print(f"loss from {a[0]:.4f} to {a[-1]:.4f} (f32, CPU), to {b[-1]:.4f} (bf16, {args.device})")
    print(f"first 20 steps: at most {first:.5f} apart (bound {args.first:g})")
    print(f"steps {tail.start + 1} to {tail.stop}: means {last:.5f} apart (bound {args.last:g})")
    return 0 if first <= args.first and last <= args.last else 1


if __name__ == "__main__":
    sys.exit(main())
