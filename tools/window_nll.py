#!/usr/bin/env python3
"""Mean NLL of a text in windows, no BOS: window_nll.py FATHOM TEXT WINDOW TOKENS [SCORE OPTIONS…]

Runs `fathom score --window` on the first TOKENS of the text: each window is read for itself and begins with the last token of
the one before. Prints one JSON object: nll, its standard error over the windows, the tokens that were scored, the savings, and
the nll of each window, so that two models can be compared window by window.
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
count, length = (len(ids) - 1) // (window - 1), window - 1  # of whole windows; of the tokens that each one scores
if count < 1:
    sys.exit(f"window_nll.py: expected at least one window of {window} tokens, {text} has {len(ids)} of the first {limit}")
with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    json.dump(ids[:count * length + 1], file)
    file.flush()
    run = subprocess.run([fathom, "score", *options, "--ids", file.name, "--window", str(window), "--json", "-q"],
                         check=True, stdout=subprocess.PIPE, text=True)
out = json.loads(run.stdout)
scored = out["logprobs"][1:]
nlls = [-sum(scored[i * length:(i + 1) * length]) / length for i in range(count)]
mean = sum(nlls) / count
error = math.sqrt(sum((x - mean) ** 2 for x in nlls) / max(1, count - 1) / count)
fields = ["skip_ratio", "block_flops", "net_flops", "net_bytes"]
print(json.dumps({"nll": mean, "stderr": error, "tokens": count * length, "windows": nlls, **{f: out[f] for f in fields}}))
