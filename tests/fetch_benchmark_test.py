#!/usr/bin/env python3
"""tools/fetch_benchmark.py without a network: from a made-up Hugging Face cache and a made-up `datasets` package, into files
that `fathom eval` reads. FATHOM: the program."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools/fetch_benchmark.py"
sys.path.insert(0, str(ROOT / "tools"))
import fetch_benchmark  # noqa: E402

ARC = {"id": "q1", "question": "What is green?", "choices": {"text": ["grass", "snow"], "label": ["A", "B"]},
       "answerKey": "A"}
PIQA = {"goal": "Cut bread", "sol1": "with a knife", "sol2": "with a spoon", "label": 0}
# A row of each dataset that is converted.
ROWS = {
    "arc_challenge": ARC,
    "boolq": {"question": "is grass green", "passage": "Grass is green.", "answer": True},
    "commonsenseqa": {**ARC, "question_concept": "x"},
    "hellaswag": {"ind": 3, "activity_label": "Mopping", "ctx_a": "A man [title] mops.", "ctx_b": "he", "label": "1",
                  "endings": ["sings.", "mops [substeps] on."]},
    "lambada": {"text": "He went to the sea"},
    "logiqa": {"context": "All is one.", "question": "What is one?", "options": ["all", "two", "three", "four"],
               "label": "a"},
    "mmlu": {"subject": "algebra", "question": "1 + 1?", "choices": ["1", "2", "3", "4"], "answer": 1},
    "openbookqa": {**ARC, "question_stem": "What is green?"},
    "piqa": PIQA,
    "triviaqa_3k": {"question": "What is green?", "answer": {"value": "grass", "aliases": ["grass", "the grass"]}},
    "winograd_wsc273": {"text": "Ann saw Eve because she looked.", "pronoun": "she", "pronoun_loc": 20,
                        "options": ["Ann", "Eve"], "label": 0},
    "winogrande": {"sentence": "Ann saw Eve because _ looked.", "option1": "Ann", "option2": "Eve", "answer": "1"},
}


class FetchBenchmark(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def fetch(self, *words, modules="", expect=0):
        blocked = self.path / "no_datasets"
        blocked.mkdir(exist_ok=True)
        (blocked / "datasets.py").write_text("raise ImportError('not here')\n")
        result = subprocess.run([sys.executable, TOOL, "--cache", self.path / "hub", self.path / "out", *words],
                                env={**os.environ, "PYTHONPATH": str(modules or blocked)}, capture_output=True, text=True)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result.stderr

    def put(self, dataset, name, rows):
        folder = self.path / "hub" / ("datasets--" + dataset.replace("/", "--"))
        file = folder / "snapshots/abc" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs/main").write_text("abc")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def lines(self, name):
        return [json.loads(line) for line in (self.path / "out" / f"{name}.jsonl").read_text().splitlines()]

    def test_from_the_cache(self):
        for split in ("test", "train", "validation"):
            self.put("allenai/ai2_arc", f"ARC-Challenge/{split}.jsonl", [ARC] * 3)
            self.put("allenai/ai2_arc", f"ARC-Easy/{split}.jsonl", [{**ARC, "id": "easy"}])
        self.fetch("arc_challenge", "arc_easy")
        self.assertEqual(self.lines("arc_challenge/test"),
                         [{"id": "q1", "ctx": "Question: What is green?\nAnswer:", "choices": ["grass", "snow"],
                           "gold": 0}] * 3)
        self.assertEqual(self.lines("arc_easy/test")[0]["id"], "easy")
        out = subprocess.run([os.environ["FATHOM"], "eval", "-m", ROOT / "tests/data/stories260k/stories260K.bin",
                              "--tasks", "arc_challenge,arc_easy", "--data-dir", self.path / "out", "--json"],
                             check=True, capture_output=True, text=True)
        self.assertEqual(json.loads(out.stdout)["tasks"]["arc_challenge"]["n"], 3)

    def test_from_the_package(self):
        modules = self.path / "modules"
        modules.mkdir()
        (modules / "datasets.py").write_text(
            "def load_dataset(name, config, split):\n"
            f"    assert (name, config) == ('ybisk/piqa', None)\n    return [{PIQA!r}]\n")
        self.fetch("piqa", modules=modules)
        self.assertEqual(self.lines("piqa/validation"),
                         [{"ctx": "Goal: Cut bread\nAnswer:", "choices": ["with a knife", "with a spoon"], "gold": 0}])

    def test_what_is_missing_is_said(self):
        self.assertIn("hf download --repo-type dataset ybisk/piqa", self.fetch("piqa", expect=1))
        self.put("ybisk/piqa", "validation.jsonl", [{"goal": "x"}])
        self.assertIn("row 0: KeyError: 'sol1'", self.fetch("piqa", expect=1))
        self.assertIn("there is no task pika", self.fetch("pika", expect=1))
        self.assertFalse(list((self.path / "out").rglob("*.jsonl")) if (self.path / "out").exists() else [])

    def test_every_conversion_is_read(self):
        """What each converter makes, fathom reads."""
        for task, row in ROWS.items():
            source = fetch_benchmark.SOURCES[task]
            for name in source.files:
                fetch_benchmark.write(self.path / "data" / f"{name}.jsonl", [source.convert(dict(row))] * 2)
        out = subprocess.run([os.environ["FATHOM"], "eval", "-m", "builtin", "--tasks", ",".join(sorted(ROWS)),
                              "--data-dir", self.path / "data", "--limit", "1", "--json"],
                             capture_output=True, text=True, env={**os.environ, "FATHOM_MODELS": str(ROOT / "models")})
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertEqual(set(json.loads(out.stdout)["tasks"]), set(ROWS))

    def test_every_task_is_there(self):
        listed = set(re.findall(r'"(\w+)", read_', (ROOT / "src/eval/task_list.cc").read_text()))
        known = {*fetch_benchmark.SOURCES, *fetch_benchmark.NO_SOURCE}
        self.assertEqual({name for name in listed if not name.endswith("_gen")} - known - {"gsm8k_zero"}, set())


if __name__ == "__main__":
    unittest.main()
