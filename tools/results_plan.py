"""What a paper's tables need, as steps: each one command, what it waits for, and where its output is kept.

Commands hold names in braces ({fathom}, {out}, {data}, …) until they run, so that finished steps stay finished when the
folders move. A step's key is the hash of its command, its recipe or its tool's text, and the keys of what it waits for.
"""
import hashlib
import json
import pathlib

import results_tables

CONFIGS = pathlib.Path("configs/results")
WORD_ORDER = "{out}/word_order.jsonl"


class Step:
    def __init__(self, name, argv, needs=(), alone=False, folder=None, samples=False):
        self.name, self.argv, self.needs = name, [str(a) for a in argv], list(needs)
        self.samples = samples  # it can write each item's result; no part of the key: what is done stays done
        self.folder = folder  # what it writes, emptied before it starts anew
        self.alone = alone or any(need.alone for need in needs)  # measures time: nothing runs beside it
        text = "\0".join(self.argv + [need.key for need in self.needs])
        if "--config" in self.argv:
            text += pathlib.Path(self.argv[self.argv.index("--config") + 1]).read_text()
        if self.argv[0] == "{python}" and self.argv[1].endswith(".py"):
            text += pathlib.Path(self.argv[1]).read_text()
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]


class Model:
    """How a model is named on a command line, and the steps that make it."""

    def __init__(self, args, family, adapter=None, steps=()):
        self.args, self.family, self.adapter, self.steps = args, family, adapter, list(steps)


def read(name, size):
    """The paper's config, and what its size says: sizes.json with the paper's own values on top."""
    path = pathlib.Path(name) if name.endswith(".json") else CONFIGS / f"{name}.json"
    if not path.exists():
        raise SystemExit(f"results.py: there is no {path}: a paper is one of configs/results, e.g. gateskip")
    config = json.loads(path.read_text())
    config["models"] = {model: inherited(config["models"], model) for model in config["models"]}
    values = json.loads((CONFIGS / "sizes.json").read_text())[size]
    for key, own in config.get("sizes", {}).get(size, {}).items():
        values[key] = {**values[key], **own} if key in values else own
    return config, values


def inherited(models, name):
    """A model's spec; what it does not set is as in the model that its "like" names."""
    spec = dict(models[name])
    if "like" in spec:
        other = inherited(models, spec.pop("like"))
        spec = {**other, **spec, "set": {**other["set"], **spec.get("set", {})}}
    return spec


class Plan:
    def __init__(self, config, values, smoke):
        self.config, self.values, self.smoke = config, values, smoke
        self.models, self.steps = {}, {}

    def step(self, name, *rest, **options):
        if name not in self.steps:
            self.steps[name] = Step(name, *rest, **options)
        return self.steps[name]

    def model(self, name):
        if name not in self.models:
            spec = self.config["models"][name]
            if self.smoke:
                spec = spec.get("smoke", spec)
            self.models[name] = self.make(name, spec)
        return self.models[name]

    def make(self, name, spec):
        if "path" in spec:
            return Model(["-m", spec["path"]], "pretrained")
        make = self.edited if "edit" in spec else self.pruned if "prune" in spec else self.trained
        model = make(name, spec)
        if "budgets" in spec:
            text, window, tokens = self.values[model.family]["calibrate"]
            budgets = ",".join(str(self.value(b)) for b in spec["budgets"])
            model.steps = [self.step(f"{name}.calibrate", [
                "{fathom}", "calibrate", *model.args, "--data", text, "--budgets", budgets, "--window", window,
                "--tokens", tokens, "--steer", "off", "-t", "{threads}", "--json", "-q"], model.steps)]
        return model

    def settings(self, recipe, own, family):
        """--set for each: the size's, then the model's own. Lists are measured on the text that thresholds are found on."""
        merged = {**self.values["recipes"][recipe].get("set", {}), **own}
        if "prepare_tokens" in own:
            merged["prepare_data"] = [self.values[family]["calibrate"][0]]
        if "method" in own:  # a method's keys of another method mean nothing
            merged = {k: v for k, v in merged.items() if k in own or not k.startswith("method.")}
        for key, value in merged.items():
            value = self.value(value)
            yield "--set"
            yield f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"

    def value(self, value):
        """"$name" is the size's value of that name."""
        return self.values[value[1:]] if isinstance(value, str) and value.startswith("$") else value

    def trained(self, name, spec):
        recipe, own, folder = spec["recipe"], spec["set"], f"{{out}}/models/{name}"
        family = spec.get("family", self.values["recipes"][recipe].get("family", "small"))
        base = self.model(spec["from"]) if "from" in spec else Model([], family)
        texts = self.value(spec.get("data", self.values["recipes"][recipe]["data"]))
        data = [word for text in texts for word in ("--data", text)]
        frozen = own.get("method.frozen_backbone")
        verb = ["tune"] if frozen and base.args else ["tune", "--all-weights"] if base.args else ["train"]
        argv = ["{fathom}", *verb, "--config", CONFIGS / f"{recipe}.json", *base.args,
                "-o", folder, *data, "-t", "{threads}", "-q", "--json", "--set", "data_cache={out}/tokens",
                *self.settings(recipe, own, family)]
        step = self.step(f"{name}.train", argv, base.steps, spec.get("alone", False), folder)
        if frozen:
            return Model([*base.args, "--adapter", folder], base.family, folder, [step])
        return Model(["-m", f"{folder}/last"], family, f"{folder}/last/skip", [step])

    def edited(self, name, spec):
        source, folder = self.model(spec["edit"]), f"{{out}}/models/{name}"
        values = [f"{key}={json.dumps(self.value(value))}" for key, value in spec["set"].items()]
        step = self.step(f"{name}.edit", ["{python}", "tools/edit_adapter.py", source.adapter, folder, *values],
                         source.steps, folder=folder)
        args = source.args[:source.args.index("--adapter")] if "--adapter" in source.args else source.args
        return Model([*args, "--adapter", folder], source.family, folder, [step])

    def pruned(self, name, spec):
        source, by, folder = self.model(spec["prune"]), self.model(spec["by"]), f"{{out}}/models/{name}"
        step = self.step(f"{name}.prune", ["{python}", "tools/drop_blocks.py", source.args[1], by.adapter, folder],
                         by.steps, folder=folder)
        return Model(["-m", folder], source.family, None, [step])

    def measure(self, kind, name, at, dtype):
        """The step that measures a model: by its own rule, or at a budget."""
        model = self.model(name)
        v = self.values[model.family]
        kind = {"tasks": "eval"}.get(kind, kind)
        how = ([] if at == "own" else ["--budget", at]) + (["--dtype", dtype] if dtype else [])
        step = f"{name}.{at}{'.' + dtype if dtype else ''}.{kind}"
        chosen, needs = [*model.args, *how], model.steps
        tail = ["-t", "{threads}", "--json", "-q"]
        if kind == "nll":
            text, window, tokens = v["nll"]
            argv = ["{python}", "tools/window_nll.py", "{fathom}", text, window, tokens, *chosen, "-t", "{threads}"]
        elif kind in results_tables.ITEMS:
            tasks, limit, *shots = v[kind]
            if tasks == WORD_ORDER:
                needs = [*needs, self.step("word_order", ["{python}", "tools/word_order.py", v["words_of"], tasks, limit])]
            argv = ["{fathom}", "eval", *chosen, "--tasks", tasks, "--data-dir", "{benchmarks}", "--limit", limit,
                    *(word for count in shots for word in ("--shots", count)), *tail]
        elif kind == "bench":
            argv = ["{fathom}", "bench", *chosen, *v["bench"], *tail]
        elif kind == "generate":
            argv = ["{fathom}", "generate", *chosen, *v["generate"], "--temp", "0", "--ignore-eos", *tail]
        elif kind == "speculate":
            argv = ["{fathom}", "generate", *model.args, *v["generate"], "--temp", "0", "--ignore-eos", "--speculate",
                    "4", "--draft", "method", "--draft-budget", at, *tail]
        elif kind == "info":
            argv = ["{fathom}", "info", *model.args, "--json", "-q"]
        elif kind == "classes":
            text, passages, size = v["classes"]
            argv = ["{python}", "tools/class_means.py", "{fathom}", text, passages, size,
                    "{out}/inspect/" + step, *chosen, "-t", "{threads}"]
        else:
            raise SystemExit(f"results.py: no measure '{kind}'")
        return self.step(step, argv, needs, kind in ("bench", "generate", "speculate"),
                         samples=kind in results_tables.ITEMS)
