#!/usr/bin/env python3
"""Removes the blocks that a static adapter drops from a model's files: drop_blocks.py MODEL ADAPTER OUT

MODEL: a Hugging Face folder with one model.safetensors. ADAPTER: made by `tune` with short_gpt; its method's `drop` lists
units (2 · layer, + 1: the FFN). The blocks both of whose units are listed go; the rest is numbered anew. Prints what went.
"""
import json
import pathlib
import re
import shutil
import struct
import sys

model, adapter, out = (pathlib.Path(a) for a in sys.argv[1:4])
units = set(json.loads((adapter / "adapter_config.json").read_text())["method"]["drop"])
config = json.loads((model / "config.json").read_text())
layers = range(config["num_hidden_layers"])
dropped = [i for i in layers if {2 * i, 2 * i + 1} <= units]
place = {old: new for new, old in enumerate(i for i in layers if i not in dropped)}

blob = (model / "model.safetensors").read_bytes()
size = struct.unpack("<Q", blob[:8])[0]
header, data = json.loads(blob[8:8 + size]), blob[8 + size:]
tensors, kept, at = {}, [], 0
for name, entry in header.items():
    if name == "__metadata__":
        tensors[name] = entry
        continue
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    if layer and int(layer[1]) in dropped:
        continue
    if layer:
        name = f"model.layers.{place[int(layer[1])]}.{name[layer.end():]}"
    begin, end = entry["data_offsets"]
    tensors[name] = {**entry, "data_offsets": [at, at + end - begin]}
    kept.append(data[begin:end])
    at += end - begin

out.mkdir(parents=True)
for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
    if (model / file).exists():
        shutil.copy(model / file, out)
config["num_hidden_layers"] = len(place)
if "layer_types" in config:
    config["layer_types"] = [config["layer_types"][i] for i in place]
(out / "config.json").write_text(json.dumps(config, indent=2))
text = json.dumps(tensors).encode()
text += b" " * (-len(text) % 8)
(out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(kept))
print(json.dumps({"model": str(out), "dropped": dropped}))
