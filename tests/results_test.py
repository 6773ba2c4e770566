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
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
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
        tables = [{"name": "Table 1", "title": "a test", "show": ["nll"], "agreement": "It agrees.", "rows": ROWS}]
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
        return [r.get("output") for r in json.loads((self.out / "results.json").read_text())]

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
                         {"attention.edit", "attention.calibrate", "attention.0.9.nll"})

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

    def test_one_at_a_time(self):
        import fcntl
        self.out.mkdir()
        with open(self.out / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            _, err = self.run_all(status=1)
        self.assertIn("another results.py is at work", err)


class Papers(unittest.TestCase):
    def test_every_row_is_run_or_says_why_not(self):
        for name in ("gateskip", "mindskip", "skipmiddle", "skiplayer"):
            config = json.loads((ROOT / f"configs/results/{name}.json").read_text())
            used = set()
            for table in config["tables"]:
                for row in table["rows"]:
                    self.assertEqual("model" in row, "not_run" not in row, row)
                    used.add(row.get("model"))
            for model, spec in config["models"].items():
                used.update({spec.get("from"), spec.get("edit"), spec.get("prune"), spec.get("by")})
            self.assertEqual(set(config["models"]) - used, set(), f"{name}: models that no row shows")


class Cells(unittest.TestCase):
    def test_points_in_one_cell(self):
        self.assertEqual(results_tables.together(["1.0 ± 0.2", "2.0 ± 0.1"]), "1.0 · 2.0 ± 0.2")
        self.assertEqual(results_tables.together(["0.5", "0.5"]), "0.5")

    def test_accuracy_is_the_mean_and_its_error(self):
        tasks = {"a": {"acc": 0.1, "acc_norm": 0.5, "stderr": 0.9, "acc_norm_stderr": 0.03},
                 "b": {"acc": 0.7, "acc_norm": None, "stderr": 0.04}}
        mean, error = results_tables.accuracy(tasks)
        self.assertAlmostEqual(mean, 60)
        self.assertAlmostEqual(error, 2.5)


if __name__ == "__main__":
    os.chdir(ROOT)
    unittest.main()
