#!/usr/bin/env python3
"""Steps of AdamW (torch.optim) and Adafactor (transformers; its constant-beta2 form by the paper's formulas in f64)
-> tests/data/optimizers/goldens.json. Needs torch and transformers."""
import json
import math
import pathlib

import numpy as np
import torch
from transformers.optimization import Adafactor

STEPS = 6
SHAPES = {"matrix": (7, 5), "vector": (9,)}  # the vector does not decay


def numbers(name, step):
    """Values that C++ makes again: no random generator in common is needed."""
    shape = SHAPES[name]
    count = math.prod(shape)
    base = 0 if name == "matrix" else 100
    return np.array([math.sin(0.7 * (base + i) + 1.3 * step) * (1 + 0.1 * step) for i in range(count)]).reshape(shape)


def run_torch(make):
    weights = {n: torch.nn.Parameter(torch.tensor(numbers(n, 0), dtype=torch.float32)) for n in SHAPES}
    optimizer = make(weights)
    out = []
    for step in range(1, STEPS + 1):
        for name, weight in weights.items():
            weight.grad = torch.tensor(numbers(name, step), dtype=torch.float32)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * step
        optimizer.step()
        out.append({n: [float(v) for v in w.detach().flatten()] for n, w in weights.items()})
    return out


def groups(weights, decay):
    return [{"params": [weights["matrix"]], "weight_decay": decay}, {"params": [weights["vector"]], "weight_decay": 0.0}]


def adafactor_constant(beta2, clip):
    """Algorithm 4 of the paper with beta1 = 0 and a constant beta2, factored for the matrix."""
    weights = {n: numbers(n, 0).astype(np.float32).astype(np.float64) for n in SHAPES}
    state = {n: None for n in SHAPES}
    out = []
    for step in range(1, STEPS + 1):
        for name in SHAPES:
            g = numbers(name, step).astype(np.float32).astype(np.float64)
            square = g * g + 1e-30
            new = (square.mean(1), square.mean(0)) if g.ndim == 2 else (square,)
            old = state[name] or tuple(np.zeros_like(x) for x in new)
            state[name] = tuple(beta2 * o + (1 - beta2) * x for o, x in zip(old, new))
            s = state[name]
            v = np.outer(s[0], s[1]) / s[0].mean() if g.ndim == 2 else s[0]
            u = g / np.sqrt(v)
            u /= max(1.0, math.sqrt((u * u).mean()) / clip)
            weights[name] = weights[name] - 0.01 * step * u
        out.append({n: [float(x) for x in w.flatten()] for n, w in weights.items()})
    return out


def adafactor(beta1, decay, clip, scaled=False):
    return lambda w: Adafactor(groups(w, decay), lr=0.01, beta1=beta1, eps=(1e-30, 1e-3), clip_threshold=clip, decay_rate=-0.8,
                               scale_parameter=scaled, relative_step=False, warmup_init=False)


goldens = {
    "adamw": run_torch(lambda w: torch.optim.AdamW(groups(w, 0.1), lr=0.01, betas=(0.8, 0.95), eps=1e-6)),
    "adafactor": run_torch(adafactor(None, 0.1, 1.0)),
    "adafactor_momentum": run_torch(adafactor(0.9, 0.0, 0.5)),
    "adafactor_unclipped": run_torch(adafactor(None, 0.0, 1000.0)),
    "adafactor_constant": adafactor_constant(0.99, 1.0),
    "adafactor_scaled": run_torch(adafactor(None, 0.1, 1.0, scaled=True)),
}
target = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "optimizers"
target.mkdir(parents=True, exist_ok=True)
(target / "goldens.json").write_text(json.dumps({k: [{n: [float(f"{x:.9g}") for x in v] for n, v in s.items()} for s in g]
                                                 for k, g in goldens.items()}) + "\n")
