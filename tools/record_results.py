#!/usr/bin/env python3
"""Records what the program computes, as hashes, and compares two records.

record_results.py BINARY OUT.json [--smollm2 GGUF] [--against OLD.json]

It runs generate, score, eval, train, tune, calibrate and quantize on the models of tests/data, on models/builtin and, if
given, on SmolLM2, with one and with two threads. Of each run it hashes ids, log-probabilities, accuracies, trained
weights and savings: no times, no wording, no names of keys. A change of the code that must not change results is
measured with it: record before, record after with --against. The exit status is 1 where a hash differs.
"""
import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STORIES = ROOT / "tests/data/stories260k/stories260K.bin"
GARDEN = ROOT / "configs/small/secret_garden.txt"
SAVINGS = ("skip_ratio", "block_flops", "net_flops", "net_bytes")
FIXTURES = ["gemma2", "gemma3", "llama2", "llama3", "olmo2", "qwen2_window", "qwen3", "skip_middle"]


def digest(values):
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


class Recorder:
    def __init__(self, binary, threads, folder):
        self.binary, self.threads, self.folder = binary, threads, pathlib.Path(folder)
        self.hashes = {}

    def run(self, *words):
        threads = [] if words[0] == "quantize" else ["-t", str(self.threads)]
        command = [self.binary, words[0], *threads, "--json", "-q", *map(str, words[1:])]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        if done.returncode != 0:
            sys.exit(f"record_results.py: {' '.join(command)}\n{done.stderr}")
        return json.loads(done.stdout)

    def keep(self, name, values):
        self.hashes[f"{name}, {self.threads} threads"] = digest(values)

    def generate(self, name, *words):
        out = self.run("generate", *words)
        self.keep(f"generate {name}", [out["ids"], out["finish_reason"]])
        self.keep(f"generate {name}: depth after the first token", out["depth"][1:])
        self.keep(f"generate {name}: savings", [out[key] for key in SAVINGS])

    def score(self, name, *words):
        out = self.run("score", *words)
        self.keep(f"score {name}", [out["ids"], out["logprobs"]] + [out[key] for key in SAVINGS])

    def eval(self, name, *words):
        out = self.run("eval", *words)
        tasks = [[task[key] for key in sorted(task) if key != "seconds" and isinstance(task[key], (int, float))] for task in out["tasks"].values()]
        self.keep(f"eval {name}", tasks)

    def files(self, name, folder):
        """Weights of a folder, without its logs and its JSON."""
        weights = sorted(p for p in pathlib.Path(folder).rglob("*") if p.suffix in (".safetensors", ".gguf"))
        if not weights:
            sys.exit(f"record_results.py: {folder} holds no weights")
        self.keep(name, [hashlib.sha256(p.read_bytes()).hexdigest() for p in weights])

    def train(self, name, verb, *words):
        out = self.folder / f"{name}-{self.threads}".replace(" ", "-")
        done = self.run(verb, *words, "-o", out)
        self.keep(f"{verb} {name}: loss", done["ce"])
        self.files(f"{verb} {name}: weights", out)
        return out

    def calibrate(self, name, *words):
        out = self.run("calibrate", *words)
        self.keep(f"calibrate {name}", [out["budgets"], out["achieved"], out["checked"]])


def small_models(r, data):
    for name in FIXTURES:
        model = ROOT / "tests/data/models" / name
        ids = data / "ids.json"
        r.score(name, "-m", model, "--ids", ids)
        r.score(f"{name} in q8_0, by ones", "-m", model, "--ids", ids, "--dtype", "q8_0", "--chunk", 1)
    r.generate("stories", "-m", STORIES, "-p", "Once upon a time", "-n", 64, "--temp", 0)
    r.generate("stories sampled", "-m", STORIES, "-p", "One day", "-n", 64, "-s", 5)
    r.generate("stories shifted", "-m", STORIES, "-p", "One day", "-n", 90, "-c", 48, "--context-shift", "-s", 5)
    builtin = ["-m", "builtin"]
    for budget in ("own", 1, 0.8):
        more = [] if budget == "own" else ["--budget", budget]
        r.generate(f"builtin {budget}", *builtin, "-p", "The old man looked", "-n", 48, "--temp", 0, *more)
        r.score(f"builtin {budget}", *builtin, "-f", data / "passage.txt", *more)
    r.generate("builtin drafts", *builtin, "-p", "The old man looked", "-n", 48, "--temp", 0, "--speculate", 4)
    r.generate("builtin sampled drafts", *builtin, "-p", "The sea", "-n", 48, "-s", 3, "--speculate", 4, "--draft", "exit")
    r.generate("builtin masked", *builtin, "-p", "The sea", "-n", 24, "--temp", 0, "--execution", "masked")


def training(r, data):
    small = ["--set", f"data=[\"{GARDEN}\"]", "--set", "schedule_steps=4", "--set", "checkpoint.every=4"]
    for recipe in sorted((ROOT / "configs/small").glob("*.json")):
        r.train(recipe.stem, "train", "--config", recipe, "--steps", 4, *small)
    for method in ("gate_skip", "mind_skip", "priced", "skip_layer", "mixture_of_depths"):
        routers = r.train(f"routers of {method}", "tune", "-m", STORIES, "--method", method, "--data", GARDEN, "--steps", 4,
                          "--set", "method.frozen_backbone=true", "--set", "context=128", "--set", "batch=4")
        r.calibrate(method, "-m", STORIES, "--adapter", routers, "--data", data / "text.txt", "--tokens", 2048,
                    "--budgets", "0.9,0.8", "--window", 128)
        r.score(f"stories with {method}", "-m", STORIES, "--adapter", routers, "-f", data / "short.txt", "--budget", 0.85)


def quantizing(r, model, name, types):
    for kind in types:
        out = r.folder / f"{name}-{kind}-{r.threads}.gguf"
        r.run("quantize", "-m", model, "-o", out, "--type", kind)
        r.keep(f"quantize {name} {kind}", hashlib.sha256(out.read_bytes()).hexdigest())


def smollm2(r, model, data):
    r.generate("SmolLM2", "-m", model, "-p", "The capital of France is", "-n", 32, "--temp", 0)
    r.generate("SmolLM2 chat", "-m", model, "--chat-template", "auto", "-p", "Why is the sky blue?", "-n", 32, "-s", 1)
    r.score("SmolLM2", "-m", model, "-f", data / "passage.txt")
    for method, budget in (("priced", 0.9), ("mindskip", 0.95)):
        adapter = ROOT / f"models/smollm2-135m-{method}"
        r.score(f"SmolLM2 {method}", "-m", model, "--adapter", adapter, "-f", data / "passage.txt", "--budget", budget)
    priced = ["-m", model, "--adapter", ROOT / "models/smollm2-135m-priced", "--budget", 0.9]
    r.generate("SmolLM2 priced", *priced, "-p", "The capital of France is", "-n", 32, "--temp", 0)
    r.generate("SmolLM2 priced drafts", *priced, "-p", "The capital of France is", "-n", 32, "--temp", 0, "--speculate", 4,
               "--draft-budget", 0.8)
    r.eval("SmolLM2", "-m", model, "--tasks", data / "choices.jsonl")
    quantizing(r, model, "smollm2", ["q8_0"])


def make_data(folder):
    text = GARDEN.read_text()
    (folder / "text.txt").write_text(text[:60000])
    (folder / "passage.txt").write_text(text[60000:61200])
    (folder / "short.txt").write_text(text[60000:60600])
    (folder / "ids.json").write_text(json.dumps([(7 * i * i + 3 * i) % 60 + 3 for i in range(40)]))
    lines = [line for line in text[80000:90000].split(". ") if len(line) > 40][:12]
    items = [{"id": i, "ctx": line[: len(line) // 2], "gold": 0,
              "choices": [line[len(line) // 2:], " the of and a in the to", " green ideas"]} for i, line in enumerate(lines)]
    (folder / "choices.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("out")
    parser.add_argument("--smollm2")
    parser.add_argument("--against")
    o = parser.parse_args()
    hashes = {}
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder)
        make_data(data)
        for threads in (1, 2):
            r = Recorder(str(pathlib.Path(o.binary).resolve()), threads, data)
            small_models(r, data)
            training(r, data)
            quantizing(r, STORIES, "stories", ["q8_0", "q4_0", "f16"])
            r.eval("builtin", "-m", "builtin", "--tasks", data / "choices.jsonl")
            if o.smollm2:
                smollm2(r, pathlib.Path(o.smollm2).resolve(), data)
            hashes |= r.hashes
    pathlib.Path(o.out).write_text(json.dumps(hashes, indent=1) + "\n")
    if not o.against:
        return print(f"{len(hashes)} hashes in {o.out}")
    old = json.loads(pathlib.Path(o.against).read_text())
    different = [name for name in old if hashes.get(name) != old[name]]
    print("\n".join(f"differs: {name}" for name in different))
    print(f"{len(old) - len(different)} of {len(old)} hashes are the same")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
