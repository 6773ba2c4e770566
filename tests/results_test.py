#!/usr/bin/env python3
"""tools/results.py: what is done stays done through kill -9, what changed runs again, what fails is said.

FATHOM names the program.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import results  # noqa: E402
import results_plan  # noqa: E402
import results_tables  # noqa: E402

MODELS = {
    "dense": {"recipe": "scratch", "set": {"method": "dense"}},
    "gates": {"recipe": "finetune", "from": "dense", "set": {"method": "gate_skip"}, "budgets": [0.9]},
    "attention": {"edit": "gates", "set": {"skip": "attention"}, "budgets": [0.9]},
}
ROWS = [{"row": "dense", "model": "dense", "paper": "1"}, {"row": "gates", "model": "gates", "at": [1, 0.9]},
        {"row": "only attention", "model": "attention", "at": [0.9]}, {"row": "left", "not_run": "of a reason."}]


class Results(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"
        self.write(MODELS)

    def write(self, models):
        tables = [{"name": "Table 1", "title": "a test", "show": ["nll", "eval"], "agreement": "It agrees.", "rows": ROWS,
                   "beside": {"dense": "dense", "gates": "gates"}}]
        (self.folder / "mine.json").write_text(json.dumps({"models": models, "tables": tables}))

    def start(self, *options):
        return subprocess.Popen([sys.executable, ROOT / "tools/results.py", self.folder / "mine.json", "--smoke", "--jobs", "1",
                                 "--out", self.out, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_all(self, *options, status=0):
        process = self.start(*options)
        out, err = process.communicate()
        self.assertEqual(process.returncode, status, err)
        return out, err

    def steps(self):
        return {f.stem: f.stat().st_mtime_ns for f in (self.out / "steps").glob("*.json")}

    def numbers(self):
        return [(r["output"]["nll"], r["cells"]) for r in json.loads((self.out / "results.json").read_text())]

    def test_goes_on_after_kill(self):
        self.run_all()
        whole = self.numbers()
        self.out = self.folder / "again"
        kills = 0
        while kills < 20:
            before = self.steps() if self.out.exists() else {}
            process = self.start()
            time.sleep(0.15 + 0.05 * (kills % 4))
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            after = self.steps()
            self.assertEqual({k: after[k] for k in before}, before)  # nothing was run twice
        self.run_all()
        self.assertGreater(kills, 0)
        self.assertEqual(self.numbers(), whole)

    def test_runs_again_only_what_changed(self):
        self.run_all()
        before = self.steps()
        self.write({**MODELS, "attention": {**MODELS["attention"], "set": {"skip": "mlp"}}})
        self.run_all()
        after = self.steps()
        self.assertEqual({k for k in after if after[k] != before[k]},
                         {"attention.edit", "attention.calibrate", "attention.0.9.nll", "attention.0.9.eval"})

    def test_a_failure_is_said_and_the_rest_kept(self):
        bad = {**MODELS["attention"], "set": {"no_such_key": 1}}
        self.write({**MODELS, "attention": bad})
        self.run_all(status=1)
        rows = {(r["row"], r["at"]): r for r in json.loads((self.out / "results.json").read_text())}
        self.assertIn("cells", rows["gates", 0.9])
        self.assertIn("failed: ", rows["only attention", 0.9]["missing"])
        self.assertIn("no key 'no_such_key'", (self.out / "tables.md").read_text())

    def test_tables(self):
        page = self.folder / "page.md"
        page.write_text("before\n<!-- results mine -->\nold\n<!-- end of results mine -->\nafter\n")
        self.run_all("--tables", "--into", page)
        self.assertIn("| dense | own rule | 1 | not yet run: `make results-mine` |", page.read_text())
        self.run_all("--into", page)
        text = page.read_text()
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))
        self.assertNotIn("old", text)
        self.assertIn("- left: not run here, because of a reason.", text)
        self.assertIn("It agrees.", text)
        self.assertRegex(text, r"\| gates \| 0 · 10 % saved \| – \| .* \| 1\.00 · 0\.\d\d \|")
        header = next(line for line in text.splitlines() if line.startswith("|  |"))
        for title in ("NLL against dense", "accuracy against dense", "NLL against gates"):
            self.assertIn(f"| {title} |", header)
        self.assertRegex(text, r"\| only attention .* ± \d\.\d (level|better|worse) \|")

    def test_one_at_a_time(self):
        import fcntl
        self.out.mkdir()
        with open(self.out / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            _, err = self.run_all(status=1)
        self.assertIn("another results.py is at work", err)


class Sources(unittest.TestCase):
    def test_another_text_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "text.txt")
            text.write_text("one")
            measured = pathlib.Path(folder, "measured.txt")
            measured.write_text("one")
            args = types.SimpleNamespace(threads=1, jobs=1, device=None, fathom="", data=folder, benchmarks="", base=None)
            step = results_plan.Step("step", ["{python}", "-c", "print('{}')", "{data}/text.txt:0.5",
                                              'prepare_data=["{data}/measured.txt"]'])
            later = results_plan.Step("later", ["{python}", "-c", "print('{}')"], needs=[step])
            runner = results.Runner(args, "paper", pathlib.Path(folder, "out"), {"step": step, "later": later})
            for each in (step, later):
                runner.run(each)
            runner.look_up()
            self.assertEqual(set(runner.done), {"step", "later"})
            for changed in (text, measured):
                changed.write_text("another")
                runner.done = {}
                runner.look_up()
                self.assertEqual(runner.done, {})
                changed.write_text("one")

    def test_another_tool_is_another_step(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, "tool.py")
            keys = []
            for text in ("print(1)", "print(2)", "print(1)"):
                tool.write_text(text)
                keys.append(results_plan.Step("step", ["{python}", str(tool)]).key)
            self.assertNotEqual(keys[0], keys[1])
            self.assertEqual(keys[0], keys[2])

    def test_what_measures_time_is_left_for_later(self):
        with tempfile.TemporaryDirectory() as folder:
            args = types.SimpleNamespace(threads=1, jobs=1, device=None, fathom="", data=folder, benchmarks="", base=None)
            steps = {name: results_plan.Step(name, ["{python}", "-c", "print('{}')"], alone=name == "timed") for name in ("plain", "timed")}
            runner = results.Runner(args, "paper", pathlib.Path(folder, "out"), steps)
            runner.run_all(lambda *_: None, untimed=True)
            self.assertEqual(set(runner.done), {"plain"})
            runner.run_all(lambda *_: None, untimed=False)
            self.assertEqual(set(runner.done), {"plain", "timed"})


class Tools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_tool(self, *command):
        return subprocess.run([str(c) for c in command], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    def test_a_model_without_blocks_is_the_model_that_skips_them(self):
        fathom = os.environ.get("FATHOM", ROOT / "build/fathom")
        small = ["--data", "configs/small/secret_garden.txt", "-t", "1", "-q", "--json"]
        for setting in ("schedule_steps=1", "batch=2", "context=64", f"data_cache={self.folder}/tokens"):
            small += ["--set", setting]
        shape = [f"model.{k}={v}" for k, v in {"width": 32, "layers": 4, "ffn_width": 32, "context": 64}.items()]
        self.run_tool(fathom, "train", "--config", "configs/results/scratch.json", "-o", self.folder / "dense", *small,
                      *(word for s in shape for word in ("--set", s)))
        dense, short, pruned = self.folder / "dense/last", self.folder / "short", self.folder / "pruned"
        self.run_tool(fathom, "tune", "-m", dense, "--method", "short_gpt", "-o", short, *small, "--set",
                      "method.frozen_backbone=true", "--set", "method.count=2")
        self.assertEqual(len(json.loads(self.run_tool("tools/drop_blocks.py", dense, short, pruned))["dropped"]), 2)
        text = ["-p", "Mistress Mary, quite contrary, how does your garden grow?", "--json", "-q"]
        skipped = json.loads(self.run_tool(fathom, "score", "-m", dense, "--adapter", short, *text))
        removed = json.loads(self.run_tool(fathom, "score", "-m", pruned, *text))
        self.assertEqual(skipped["logprobs"], removed["logprobs"])

    def test_no_document_is_in_two_pieces(self):
        documents = [f"document {i} " * 20 for i in range(40)]
        (self.folder / "all.txt").write_text("\n<|endoftext|>\n".join(documents))
        self.run_tool("tools/split_text.py", self.folder / "all.txt", self.folder / "cut")
        pieces = [{d.strip() for d in (self.folder / f"cut-{piece}.txt").read_text().split("<|endoftext|>")}
                  for piece in ("train", "valid", "test")]
        self.assertEqual([len(p) for p in pieces], [32, 4, 4])
        self.assertEqual(set.union(*pieces), {d.strip() for d in documents})

    def test_the_gold_choice_is_the_text(self):
        text = ROOT / "configs/small/secret_garden.txt"
        self.run_tool("tools/word_order.py", text, self.folder / "items.jsonl", 8)
        for line in (self.folder / "items.jsonl").read_text().splitlines():
            item = json.loads(line)
            there = [f"{item['ctx']} {choice}" in text.read_text() for choice in item["choices"]]
            self.assertEqual([i for i, found in enumerate(there) if found], [item["gold"]])


PAPERS = ("gateskip", "mindskip", "skipmiddle", "skiplayer")
SIZES = PAPERS + ("gateskip-gpu", "mindskip-gpu", "skipmiddle-gpu", "skiplayer-gpu")


class Papers(unittest.TestCase):
    def test_every_row_is_run_or_says_why_not(self):
        for name in SIZES:
            config, _ = results_plan.read(name, "full")
            used = set()
            for table in config["tables"]:
                for row in table["rows"]:
                    self.assertEqual("model" in row, "not_run" not in row, row)
                    used.add(row.get("model"))
            for model, spec in config["models"].items():
                used.update({spec.get("from"), spec.get("edit"), spec.get("prune"), spec.get("by")})
            self.assertEqual(set(config["models"]) - used, set(), f"{name}: models that no row shows")

    def test_lists_are_measured_on_the_text_of_the_calibration(self):
        for name in ("gateskip", "mindskip", "gateskip-gpu", "mindskip-gpu"):
            config, values = results_plan.read(name, "full")
            for model, spec in config["models"].items():
                if "prepare_tokens" not in spec.get("set", {}):
                    continue
                plan = results_plan.Plan(config, values, False)
                text = values[plan.model(model).family]["calibrate"][0]
                self.assertIn(f'prepare_data=["{text}"]', plan.steps[f"{model}.train"].argv)

    def test_the_page_says_what_the_configs_say(self):
        page = (ROOT / "docs/results.md").read_text()
        for name in [*PAPERS, "shipped"]:
            begin, end = f"<!-- results {name} -->\n", f"<!-- end of results {name} -->\n"
            part = page[page.index(begin):page.index(end)]
            config = json.loads((ROOT / f"configs/results/{name}.json").read_text())
            for table in config["tables"]:
                self.assertIn(f"**{table['name']}: {table['title']}**\n", part)
                if "agreement" in table:
                    self.assertIn(f"--only '{table['name']}'`. {table['agreement']}\n", part)
                for row in table["rows"]:
                    why = f": not run here, because {row['not_run']}\n" if "not_run" in row else None
                    self.assertIn(why or f"| {row['row']} |", part)


    def test_what_trains_weights_stands_beside_what_trained_alike(self):
        """A fixed list (from scratch: a shallower dense model) and random skipping, with the recipe and the share."""
        for name in SIZES:
            config, _ = results_plan.read(name, "full")
            tables = {table["name"]: table for table in config["tables"]}
            for table in config["tables"]:
                if not {"nll", "eval", "tasks", "lambada"} & set(table.get("show", [])):
                    continue
                rows = [self.trained(config, r["model"]) for r in table["rows"] if "model" in r]
                near = rows + [self.trained(config, r["model"]) for other in table.get("baselines_in", [])
                               for r in tables[other]["rows"] if "model" in r]
                for one in filter(None, rows):
                    if one["method"] in ("dense", "random", "harm_order", "highway"):
                        continue
                    where = f"{name}, {table['name']}: {one}"
                    alike = [o for o in near if o and o["recipe"] == one["recipe"] and o["objective"] == one["objective"]]
                    fixed = "harm_order" if one["tuned"] else "dense"
                    self.assertIn(fixed, [o["method"] for o in alike], where)
                    self.assertIn("random", [o["method"] for o in alike], where)

    def trained(self, config, model):
        """How the model's weights were trained; None: they were not."""
        spec = config["models"][model]
        while "edit" in spec:
            spec = config["models"][spec["edit"]]
        own = spec.get("set", {})
        if "recipe" not in spec or own.get("method.frozen_backbone"):
            return None
        return {"method": own["method"], "recipe": spec["recipe"], "tuned": "from" in spec,
                "objective": own.get("method.objective", "ce")}

    def test_rows_that_others_are_compared_with_are_there(self):
        for name in SIZES:
            config, _ = results_plan.read(name, "full")
            for table in config["tables"]:
                rows = {row["row"] for row in table["rows"]}
                for beside in table.get("beside", {}).values():
                    self.assertLessEqual(set(beside.values()) if isinstance(beside, dict) else {beside}, rows, table["name"])


class Cells(unittest.TestCase):
    def test_points_in_one_cell(self):
        self.assertEqual(results_tables.together(["1.0 ± 0.2", "2.0 ± 0.1"]), "1.0 · 2.0 ± 0.2")
        self.assertEqual(results_tables.together(["0.5", "0.5"]), "0.5")
        self.assertEqual(results_tables.together(["+1 ± 2 level", "–"]), "+1 ± 2 level · –")

    def test_differences_are_paired(self):
        mean, error = results_tables.paired([1, 1, 0, 1], [1, 0, 0, 0])
        self.assertAlmostEqual(mean, 0.5)
        self.assertAlmostEqual(error, (1 / 3 / 4) ** 0.5)
        windows = [3.0, 5.0, 2.0, 4.5]  # far apart, and a tenth better each, about
        ours, theirs = [{"output": {"windows": w}} for w in ([x - 0.1 - 0.01 * (i % 2) for i, x in enumerate(windows)], windows)]
        self.assertEqual(results_tables.difference("nll", ours, theirs), "-0.105 ± 0.003 better")
        self.assertEqual(results_tables.difference("nll", theirs, ours), "+0.105 ± 0.003 worse")
        self.assertIsNone(results_tables.difference("nll", ours, {"output": {}}), "not kept")
        a, b = {"items": {"x": [1, 1, 0, 1], "y": [1, 0]}}, {"items": {"x": [1, 0, 0, 0], "y": [1, 0]}}
        self.assertEqual(results_tables.difference("eval", a, b), "+25.0 ± 14.4 level")
        self.assertIsNone(results_tables.difference("eval", a, {"items": {"x": [1, 0, 0, 0]}}), "other items")
        self.assertEqual(results_tables.difference("few", a, b), "+25.0 ± 14.4 level")

    def test_a_row_is_compared_with_its_pair(self):
        step = lambda name: types.SimpleNamespace(name=name)
        found = [{"table": "t", "row": row, "at": "own", "steps": {"nll": step(row)}} for row in ("ours", "other", "theirs")]
        done = {row: {"output": {"windows": values}} for row, values in
                {"ours": [1.0, 2.0, 3.5], "other": [9.0, 9.0, 9.0], "theirs": [2.0, 3.0, 4.0]}.items()}
        beside = {"pair": {"ours": "theirs"}}
        self.assertEqual(results_tables.comparisons(found[0], beside, found, done), {"NLL against pair": "-0.833 ± 0.167 better"})
        self.assertEqual(results_tables.comparisons(found[1], beside, found, done), {})

    def test_items_of_samples(self):
        samples = [{"task": "a", "gold": 1, "predicted": 1, "predicted_norm": 0}, {"task": "b", "greedy": True},
                   {"task": "a", "gold": 2, "predicted": 0, "predicted_norm": 2}]
        text = "\n".join(json.dumps(s) for s in samples)
        self.assertEqual(results_tables.item_scores(text, {"a": {"acc_norm": 0.5}, "b": {"acc_norm": None}}),
                         {"a": [0, 1], "b": [1]})
        self.assertEqual(results_tables.item_scores(text, {"a": {"acc_norm": None}, "b": {"acc_norm": None}})["a"], [1, 0])

    def test_savings_name_the_run_they_are_of(self):
        def record(**output):
            return {"command": "", "output": {"skip_ratio": 0.1, "block_flops": 0.9, "net_flops": 0.9, "net_bytes": 1, **output}}
        tasks = {"a": {"acc": 0.5, "acc_norm": None, "stderr": 0.1}}
        nll, items = record(nll=4.7, stderr=0.03), record(tasks=tasks, block_flops=0.8)
        self.assertEqual(results_tables.measures({"eval": items, "nll": nll})["cells"]["block FLOPs (items)"], "0.80")
        self.assertEqual(results_tables.measures({"nll": nll, "eval": items})["cells"]["block FLOPs"], "0.90")
        self.assertEqual(results_tables.measures({"tasks": items})["cells"]["block FLOPs"], "0.80")

    def test_accuracy_is_the_mean_and_its_error(self):
        tasks = {"a": {"acc": 0.1, "acc_norm": 0.5, "stderr": 0.9, "acc_norm_stderr": 0.03},
                 "b": {"acc": 0.7, "acc_norm": None, "stderr": 0.04}}
        mean, error = results_tables.accuracy(tasks)
        self.assertAlmostEqual(mean, 60)
        self.assertAlmostEqual(error, 2.5)


if __name__ == "__main__":
    os.chdir(ROOT)
    unittest.main()
