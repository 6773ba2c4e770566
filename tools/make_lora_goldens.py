#!/usr/bin/env python3
"""Makes tests/data/lora: a LoRA on tests/data/models/smollm2 as PEFT writes it, with the logits PEFT computes.

    pip install -r tools/requirements.txt
    tools/make_lora_goldens.py
    tools/make_lora_goldens.py --compare build/fathom BASE_DIR ADAPTER_DIR

--compare loads an adapter of ours (or PEFT's) with PEFT and with fathom, both in f32 on the same base, and exits 1 when
a token's log-probability differs by more than 1e-4.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
BASE = DATA / "models" / "smollm2"
LIMIT = 1e-4


def load_base(path: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def logits_of(model, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def make() -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)
    base = load_base(BASE)
    ids = load_file(BASE / "golden.safetensors")["ids"].tolist()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM", lora_dropout=0.05)
    model = peft.get_peft_model(base, config).eval()
    plain = logits_of(model, ids)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            value.data = 0.1 * torch.randn_like(value)
    logits = logits_of(model, ids)
    if (logits - plain).abs().max() < 0.1:
        sys.exit("the LoRA moves nothing: the golden would prove nothing")
    folder = DATA / "lora"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        folder.mkdir()
        shutil.copy(Path(place) / "adapter_model.safetensors", folder)
        written = json.loads((Path(place) / "adapter_config.json").read_text())
    written["base_model_name_or_path"] = "smollm2"
    written["target_modules"] = sorted(written["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    save_file({"ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.contiguous()}, folder / "golden.safetensors")


def compare(program: Path, base: Path, adapter: Path) -> None:
    ids = load_file(BASE / "golden.safetensors")["ids"].tolist()
    theirs = peft.PeftModel.from_pretrained(load_base(base), adapter / "lora" if (adapter / "lora").exists() else adapter)
    expected = torch.log_softmax(logits_of(theirs.eval(), ids)[:-1], -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ids, file)
        file.flush()
        result = subprocess.run([program, "score", "-m", base, "--adapter", adapter, "--ids", file.name, "--dtype", "f32",
                                 "--json"], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"fathom score exited with {result.returncode}: {result.stderr.strip()}")
    got = torch.tensor(json.loads(result.stdout)["logprobs"][1:])
    worst = (got - expected).abs().max().item()
    print(f"largest difference of {len(ids) - 1} log-probabilities: {worst:.2e}")
    if not worst <= LIMIT:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", nargs=3, type=Path, metavar=("PROGRAM", "BASE", "ADAPTER"))
    args = parser.parse_args()
    if args.compare:
        compare(*args.compare)
    else:
        make()


if __name__ == "__main__":
    main()
