#!/usr/bin/env python3
"""Copies an adapter and changes keys of its method: edit_adapter.py ADAPTER OUT [key=JSON…]

For what a method reads at inference only (an exit's layer, which confidence), so that one training serves several rows of
a table. Prints {"adapter": OUT}.
"""
import json
import pathlib
import shutil
import sys

source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
config = json.loads((source / "adapter_config.json").read_text())
for setting in sys.argv[3:]:
    key, _, value = setting.partition("=")
    config["method"][key] = json.loads(value)
out.mkdir(parents=True)
shutil.copy(source / "adapter_model.safetensors", out)
if (source / "lora").is_dir():
    shutil.copytree(source / "lora", out / "lora")
(out / "adapter_config.json").write_text(json.dumps(config, indent=2))
print(json.dumps({"adapter": str(out)}))
