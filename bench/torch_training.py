#!/usr/bin/env python3
"""PyTorch's training step, for `fathom bench --train --peer "torch=python3 bench/torch_training.py"`.

Arguments: width layers heads kv_heads ffn vocab batch context precision threads. Prints one JSON object. The model is
transformers' Llama; precision bf16 is autocast over f32 weights, PyTorch's usual way on a CPU.
"""
import json
import resource
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

width, layers, heads, kv_heads, ffn, vocab, batch, context = map(int, sys.argv[1:9])
precision, threads = sys.argv[9], int(sys.argv[10])
torch.set_num_threads(threads)
torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
    intermediate_size=ffn, vocab_size=vocab, max_position_embeddings=context, tie_word_embeddings=True))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)
tokens = torch.randint(vocab, (batch, context))


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


step()
times = []
for _ in range(3):
    start = time.perf_counter()
    step()
    times.append(time.perf_counter() - start)
print(json.dumps({"tokens_per_s": batch * context / sorted(times)[1],
                  "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
