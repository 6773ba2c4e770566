#!/usr/bin/env python3
"""Encoding speed, ours and Hugging Face `tokenizers`, turn about in one run on one thread.

    make bench && bench/tokenizer_bench.py build/bench/tokenizer_bench TOKENIZER.json TEXT [--rounds 5]

Prints MB/s of CPU time (median, min, max) and whether both gave as many tokens.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"


def chunks_of(text, size=65536):
    at = 0
    while at < len(text):
        end = text.find(b"\n", min(at + size, len(text) - 1))
        end = len(text) if end < 0 else end + 1
        yield text[at:end]
        at = end


def ours(program, tokenizer, text):
    env = dict(os.environ, FATHOM_TOKENIZER=tokenizer, FATHOM_BENCH_TEXT=text)
    out = subprocess.run([program, "--benchmark_filter=encode", "--benchmark_format=json", "--benchmark_min_time=0.5"],
                         env=env, check=True, capture_output=True, text=True).stdout
    result = json.loads(out)["benchmarks"][0]
    return result["cpu_time"] / 1e3, result["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("tokenizer")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    import tokenizers
    theirs = tokenizers.Tokenizer.from_file(args.tokenizer)
    data = open(args.text, "rb").read()
    chunks = [c.decode("utf-8") for c in chunks_of(data)]
    speeds = {"fathom": [], f"tokenizers {tokenizers.__version__}": []}
    names = list(speeds)
    counts = [0, 0]
    for _ in range(args.rounds):
        seconds, counts[0] = ours(args.program, args.tokenizer, args.text)
        speeds[names[0]].append(len(data) / seconds / 1e6)
        start = time.process_time()
        counts[1] = sum(len(e.ids) for e in theirs.encode_batch_fast(chunks))
        speeds[names[1]].append(len(data) / (time.process_time() - start) / 1e6)
    for name, values in speeds.items():
        print(f"{name:24} {statistics.median(values):7.2f} MB/s  (min {min(values):.2f}, max {max(values):.2f})")
    print(f"tokens: {counts[0]:.0f} and {counts[1]}: {'equal' if counts[0] == counts[1] else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
