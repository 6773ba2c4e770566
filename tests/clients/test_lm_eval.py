"""lm-evaluation-harness, unchanged, with its `local-completions` and a remote tokenizer against `fathom serve`: every
prediction is `fathom eval`'s. CLIENTS_MODEL: the model, builtin unless set."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from served import ENVIRONMENT, ROOT, Server, fathom

MODEL = os.environ.get("CLIENTS_MODEL", "builtin")
ITEMS = 20
CONTEXT = 64  # tokens: longer texts are scored in rolling windows
MEAN = {"aggregation": "mean", "higher_is_better": True}


def sentences():
    """Sentences of a novel, long enough to be cut in two."""
    novel = (ROOT / "configs/small/secret_garden.txt").read_text()[2000:60000]
    found = [sentence.replace("\n", " ") for sentence in re.findall(r"[A-Z][^.!?\"“”]{60,160}\.", novel)]
    return [sentence.split(" ") for sentence in found]


def choices():
    """The end of a sentence among the ends of others."""
    found = sentences()
    for i in range(ITEMS):
        four = found[4 * i:4 * i + 4]
        gold = i % 4
        yield {"id": str(i), "ctx": " ".join(four[gold][:8]), "choices": [" ".join(words[8:]) for words in four], "gold": gold}


def questions():
    """The end of a sentence, to be written."""
    for words in sentences()[-ITEMS:]:
        yield {"context": " ".join(words[:9]), "answer": " ".join(words[9:])}


def texts():
    novel = (ROOT / "configs/small/secret_garden.txt").read_text()[60000:]
    for i in range(ITEMS):
        yield {"text": novel[700 * i:700 * i + 120 + 25 * i]}


TASKS = {
    "choices": (choices, {
        "output_type": "multiple_choice", "doc_to_text": "{{ctx}}", "doc_to_choice": "choices", "doc_to_target": "gold",
        "metric_list": [{"metric": "acc", **MEAN}, {"metric": "acc_norm", **MEAN}]}),
    "texts": (texts, {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]}),
    "questions": (questions, {
        "output_type": "generate_until", "doc_to_text": "{{context}}", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n", ".", ","], "do_sample": False, "temperature": 0.0, "max_gen_toks": 256},
        "metric_list": [{"metric": "exact_match", **MEAN}]}),
}


def write_tasks(folder):
    """The items, and the harness's definition of each task; JSON is YAML."""
    for name, (items, definition) in TASKS.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(item) + "\n" for item in items()))
        whole = {"task": f"fathom_{name}", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}},
                 "test_split": "test", **definition}
        (folder / f"{name}.yaml").write_text(json.dumps(whole))


def run_harness(folder, url, context, tasks):
    """Its samples of each task, in the order of the items."""
    out = folder / f"out{context}"
    arguments = [f"model={MODEL}", f"base_url={url}/v1/completions", "tokenizer_backend=remote", "num_concurrent=4",
                 f"max_length={context}"]
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", ",".join(arguments), "--tasks",
         ",".join(f"fathom_{name}" for name in tasks), "--include_path", str(folder), "--output_path", str(out), "--log_samples"],
        env={**ENVIRONMENT, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "TQDM_DISABLE": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"lm_eval: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[:3000]}\n…{done.stderr[-3000:]}")
    samples = {}
    for name in tasks:
        path, = out.rglob(f"samples_fathom_{name}_*.jsonl")
        samples[name] = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    return samples


def run_fathom(folder, context, tasks):
    out = folder / f"samples{context}.jsonl"
    fathom("eval", "-m", MODEL, "-c", str(context), "--tasks", ",".join(str(folder / f"{name}.jsonl") for name in tasks), "--samples",
           str(out), "--json", "-q")
    samples = {name: [] for name in tasks}
    for line in out.read_text().splitlines():
        sample = json.loads(line)
        samples[pathlib.Path(sample["task"]).stem].append(sample)
    return samples


def largest(values):
    return max(range(len(values)), key=lambda i: values[i])


class Harness(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        write_tasks(folder)
        with Server("-q", model=MODEL) as server:
            # Of its length, the harness leaves one place for the written token and, in windows, one for the context.
            cls.theirs = run_harness(folder, server.url, 512, TASKS)
            cls.windows = run_harness(folder, server.url, CONTEXT + 2, ["texts"])["texts"]
        cls.ours = run_fathom(folder, 512, TASKS)
        cls.our_windows = run_fathom(folder, CONTEXT, ["texts"])["texts"]

    def pairs(self, name):
        self.assertEqual((len(self.ours[name]), len(self.theirs[name])), (ITEMS, ITEMS))
        return zip(self.ours[name], self.theirs[name])

    def test_the_likeliest_choice(self):
        for mine, other in self.pairs("choices"):
            logprobs = [float(logprob) for logprob, _ in other["filtered_resps"]]
            self.close(mine["logprobs"], logprobs)
            self.assertEqual(mine["predicted"], largest(logprobs), mine)
            lengths = [len(choice) for choice in other["doc"]["choices"]]
            self.assertEqual(mine["predicted_norm"], largest([each / n for each, n in zip(logprobs, lengths)]), mine)
        predicted = {mine["predicted"] for mine in self.ours["choices"]}
        self.assertGreater(len(predicted), 1)  # not one choice for all

    def test_written_answers(self):
        for mine, other in self.pairs("questions"):
            self.assertEqual(mine["text"], other["resps"][0][0], mine)
        self.assertGreater(len({mine["text"] for mine in self.ours["questions"]}), ITEMS // 2)

    def test_perplexity(self):
        for mine, other in self.pairs("texts"):
            self.close(mine["logprobs"], [float(other["filtered_resps"][0])])

    def test_perplexity_in_windows(self):
        self.assertEqual(len(self.windows), ITEMS)
        for mine, other in zip(self.our_windows, self.windows):
            self.close([sum(mine["logprobs"])], [float(other["filtered_resps"][0])])
        self.assertGreater(len(mine["logprobs"]), 1)  # the last text is longer than a window

    def close(self, mine, other):
        self.assertEqual(len(mine), len(other))
        for one, two in zip(mine, other):
            self.assertAlmostEqual(one, two, delta=1e-6 * max(1, abs(two)))


if __name__ == "__main__":
    unittest.main()
