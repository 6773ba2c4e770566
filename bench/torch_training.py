#!/usr/bin/env python3
"""PyTorch's training step, for `fathom bench --train --peer "torch=python3 bench/torch_training.py"`.

Arguments: width layers heads kv_heads ffn vocab batch context precision threads device objective. Prints one JSON object.
The model is transformers' Llama; precision bf16 is autocast over f32 weights, PyTorch's usual way. On a GPU the step is
compiled (TORCH_COMPILE: the mode, default; none leaves it out) and the optimiser fused. objective: ce, or distill (KL to a
frozen bf16 copy of the model over the whole vocabulary).
"""
import copy
import json
import os
import resource
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

width, layers, heads, kv_heads, ffn, vocab, batch, context = map(int, sys.argv[1:9])
precision, threads, device = sys.argv[9], int(sys.argv[10]), sys.argv[11] if len(sys.argv) > 11 else "cpu"
distill = len(sys.argv) > 12 and sys.argv[12] == "distill"
gpu = device.startswith("cuda")
torch.set_num_threads(threads)
torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
    intermediate_size=ffn, vocab_size=vocab, max_position_embeddings=context, tie_word_embeddings=True)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=gpu)
tokens = torch.randint(vocab, (batch, context), device=device)
teacher = copy.deepcopy(model).to(torch.bfloat16).requires_grad_(False) if distill else None
mode = os.environ.get("TORCH_COMPILE", "default")


def loss_of(ids):
    if not distill:
        return model(input_ids=ids, labels=ids, use_cache=False).loss
    with torch.no_grad():
        wanted = teacher(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
    given = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
    return torch.nn.functional.kl_div(given, wanted, log_target=True, reduction="sum") / ids.numel()


run = torch.compile(loss_of, mode=mode) if gpu and mode != "none" else loss_of


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=precision == "bf16"):
        loss = run(tokens)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if gpu:
        torch.cuda.synchronize()


for _ in range(3 if gpu else 1):
    step()
times = []
for _ in range(10 if gpu else 3):
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
peak = torch.cuda.max_memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"tokens_per_s": batch * context / sorted(times)[len(times) // 2], "peak_bytes": peak}))
