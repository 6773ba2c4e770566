#!/usr/bin/env python3
"""Mean NLL of a text in windows that do not overlap, no BOS: window_nll.py FATHOM TEXT WINDOW TOKENS [SCORE OPTIONS…]

Runs `fathom score` on each window and prints one JSON object: nll, its standard error over the windows, tokens, the
savings, each the mean over the windows, and the nll of each window, so that two models can be compared window by window.
"""
import json
import math
import subprocess
import sys
import tempfile

fathom, text, window, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = sys.argv[5:]
model = [w for i, w in enumerate(options) if w == "-m" or (i and options[i - 1] == "-m")]
tokenize = subprocess.run([fathom, "tokenize", *model, "--file", text, "--no-special", "--json"],
                          check=True, capture_output=True, text=True)
ids = json.loads(tokenize.stdout)["ids"][:limit]
fields = ["skip_ratio", "block_flops", "net_flops", "net_bytes"]
nlls, sums = [], dict.fromkeys(fields, 0.0)
for begin in range(0, len(ids) - window + 1, window):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ids[begin:begin + window], file)
        file.flush()
        run = subprocess.run([fathom, "score", *options, "--ids", file.name, "--json", "-q"],
                             check=True, capture_output=True, text=True)
    out = json.loads(run.stdout)
    nlls.append(out["nll"])
    for field in fields:
        sums[field] += out[field]
count = len(nlls)
mean = sum(nlls) / count
error = math.sqrt(sum((x - mean) ** 2 for x in nlls) / max(1, count - 1) / count)
print(json.dumps({"nll": mean, "stderr": error, "tokens": count * window, "windows": nlls,
                  **{field: sums[field] / count for field in fields}}))
