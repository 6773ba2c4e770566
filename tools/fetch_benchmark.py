#!/usr/bin/env python3
"""Benchmarks as `fathom eval --data-dir DIR` reads them, from Hugging Face's datasets.

fetch_benchmark.py [--cache DIR] [--list] DIR TASK...: writes DIR/TASK/SPLIT.jsonl of each task (all: every one), whole or
not at all. Rows come from the `datasets` package where it is installed (it downloads what it has not). Otherwise they
come from the local Hugging Face cache (--cache, or $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub): what
`hf download --repo-type dataset NAME` put there, as .jsonl, .json, or .parquet (with pyarrow). --list says which dataset
each task needs.
"""
import argparse
import json
import os
import pathlib
import re
import sys


class Source:
    """A dataset, and how its splits become files: {file: split}. `convert` makes a row of ours, or None to leave one out."""

    def __init__(self, dataset, config, files, convert=lambda row: row, only=0):
        self.dataset, self.config, self.files, self.convert, self.only = dataset, config, files, convert, only


def lettered_choice(labels, key):
    return list(labels).index(key)


def arc(row):
    choices = row["choices"]
    return {"id": row["id"], "ctx": f"Question: {row['question']}\nAnswer:", "choices": list(choices["text"]),
            "gold": lettered_choice(choices["label"], row["answerKey"])}


def commonsense(row):
    return arc(row) if row.get("answerKey") else None  # the test split has no answers


def openbook(row):
    return arc({**row, "question": row["question_stem"]})


def boolq(row):
    passage = f"{row['title']} -- {row['passage']}" if row.get("title") else row["passage"]
    answer = row["answer"] if "answer" in row else row["label"]
    return {"ctx": f"{passage}\nQuestion: {row['question'].rstrip('?')}?\nAnswer:", "choices": ["yes", "no"],
            "gold": 0 if answer else 1}


def piqa(row):
    return {"ctx": f"Goal: {row['goal']}\nAnswer:", "choices": [row["sol1"], row["sol2"]], "gold": row["label"]}


def hellaswag_text(text):
    """lm-evaluation-harness's clean-up of WikiHow's marks."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def hellaswag(row):
    second = row["ctx_b"][:1].upper() + row["ctx_b"][1:].lower()  # as Python's capitalize()
    return {"id": str(row.get("ind", "")),
            "ctx": hellaswag_text(f"{row['activity_label']}: {row['ctx_a']} {second}"),
            "choices": [hellaswag_text(ending) for ending in row["endings"]], "gold": int(row["label"])}


def winogrande(row):
    return {"ctx": row["sentence"], "choices": [row["option1"], row["option2"]], "gold": int(row["answer"]) - 1}


def mmlu(row):
    return {"subject": row["subject"], "ctx": row["question"], "choices": list(row["choices"]), "gold": row["answer"]}


def wsc273(row):
    before, after = row["text"][:row["pronoun_loc"]], row["text"][row["pronoun_loc"] + len(row["pronoun"]):]
    options = [option if option.split()[0] not in ("The", "A", "An") or not before.strip() or before.strip()[-1] in ".!?"
               else option[0].lower() + option[1:] for option in row["options"]]
    return {"context_options": [before + option for option in options], "continuation": after.strip(),
            "gold": row["label"]}


def lambada(row):
    context, _, word = row["text"].rpartition(" ")
    return {"context": context, "continuation": word}


def trivia(row):
    return {"context": f"Question: {row['question']}\nAnswer:", "answer": row["answer"]["value"],
            "aliases": list(row["answer"]["aliases"])}


def logiqa(row):
    choices = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", row["options"]))
    return {"query": f"Context: {row['context']}\nQuestion: {row['question']}\nChoices: {choices}\n",
            "choices": list("ABCD"), "gold": "abcd".index(row["label"].lower())}


def anli(number):
    return Source("facebook/anli", "plain_text", {f"anli/test_r{number}": f"test_r{number}",
                                                  f"anli/train_r{number}": f"train_r{number}"})


def glue(name):
    return Source("nyu-mll/glue", name, {f"glue_{name}/validation": "validation"})


SOURCES = {
    "anli_r1": anli(1), "anli_r2": anli(2), "anli_r3": anli(3),
    "arc_challenge": Source("allenai/ai2_arc", "ARC-Challenge",
                            {f"arc_challenge/{split}": split for split in ("test", "train", "validation")}, arc),
    "arc_easy": Source("allenai/ai2_arc", "ARC-Easy", {"arc_easy/test": "test", "arc_easy/train": "train"}),
    "boolq": Source("google/boolq", None, {"boolq/validation": "validation", "boolq/train": "train"}, boolq),
    "commonsenseqa": Source("tau/commonsense_qa", None,
                            {"commonsenseqa/validation": "validation", "commonsenseqa/train": "train"}, commonsense),
    "copa": Source("aps/super_glue", "copa", {"copa/validation": "validation", "copa/train": "train"}),
    "glue_mrpc": glue("mrpc"), "glue_rte": glue("rte"), "glue_sst2": glue("sst2"),
    "gsm8k": Source("openai/gsm8k", "main", {"gsm8k/test": "test", "gsm8k/train": "train"}),
    "hellaswag": Source("Rowan/hellaswag", None, {"hellaswag/validation_1000": "validation"}, hellaswag, only=1000),
    "humaneval": Source("openai/openai_humaneval", None, {"humaneval/test": "test"}),
    "lambada": Source("EleutherAI/lambada_openai", "default", {"lambada/test": "test"}, lambada),
    "logiqa": Source("EleutherAI/logiqa", None, {"logiqa/test": "test"}, logiqa),
    "mmlu": Source("cais/mmlu", "all", {"mmlu/test": "test", "mmlu/dev": "dev"}, mmlu),
    "nq_open": Source("google-research-datasets/nq_open", None, {"nq_open/validation": "validation"}),
    "openbookqa": Source("allenai/openbookqa", "main", {"openbookqa/test": "test", "openbookqa/train": "train"}, openbook),
    "piqa": Source("ybisk/piqa", None, {"piqa/validation": "validation", "piqa/train": "train"}, piqa),
    "race": Source("EleutherAI/race", "high", {"race/test": "test"}),
    "record": Source("aps/super_glue", "record", {"record/validation": "validation", "record/train": "train"}),
    "squadv2": Source("rajpurkar/squad_v2", None, {"squadv2/validation": "validation", "squadv2/train": "train"}),
    "superglue_cb": Source("aps/super_glue", "cb", {"superglue_cb/validation": "validation"}),
    "triviaqa_3k": Source("mandarjoshi/trivia_qa", "rc.nocontext", {"triviaqa_3k/test": "validation"}, trivia, only=3000),
    "webqs": Source("stanfordnlp/web_questions", None, {"webqs/test": "test", "webqs/train": "train"}),
    "wic": Source("aps/super_glue", "wic", {"wic/validation": "validation", "wic/train": "train"}),
    "winograd_wsc273": Source("ErnestSDavis/winograd_wsc", "wsc273", {"winograd_wsc273/test": "test"}, wsc273),
    "winogrande": Source("allenai/winogrande", "winogrande_xl",
                         {"winogrande/validation": "validation", "winogrande/train": "train"}, winogrande),
}
NO_SOURCE = {
    "arithmetic_nospaces": "it is made: lines {\"context\": \"25-759=\", \"continuation\": \"-734\"}",
    "blimp": "67 configs of nyu-mll/blimp: lines {\"uid\", \"good\", \"bad\"} from sentence_good and sentence_bad",
    "storycloze": "its owners hand it out: https://cs.rochester.edu/nlp/rocstories",
}


def default_cache():
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return pathlib.Path(os.environ[name])
    home = os.environ.get("HF_HOME")
    return pathlib.Path(home) / "hub" if home else pathlib.Path.home() / ".cache/huggingface/hub"


def snapshot_of(cache, dataset):
    """The newest commit of a dataset that the cache has, or None."""
    folder = cache / ("datasets--" + dataset.replace("/", "--"))
    ref = folder / "refs/main"
    if ref.exists() and (folder / "snapshots" / ref.read_text().strip()).is_dir():
        return folder / "snapshots" / ref.read_text().strip()
    found = sorted(folder.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def files_of(snapshot, source, split):
    """The snapshot's files of this split: their names hold it, and the config where the dataset has several."""
    files = [path for path in sorted(snapshot.rglob("*")) if path.suffix in (".jsonl", ".json", ".parquet")]
    inside = {path: path.relative_to(snapshot).as_posix() for path in files}
    named = [path for path in files if re.search(rf"(^|[^a-z0-9]){re.escape(split)}([^a-z0-9]|$)", inside[path])]
    if source.config:
        of_config = [path for path in named if source.config in inside[path].split("/")[:-1]]
        if not of_config:
            of_config = [path for path in named if re.search(rf"(^|[/_.]){re.escape(source.config)}[_.-]", inside[path])]
        named = of_config or ([] if any("/" in inside[path] for path in named) else named)
    return named


def rows_of_file(path):
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet
        except ImportError:
            sys.exit(f"{path}: a .parquet needs the package pyarrow (or datasets)")
        return pyarrow.parquet.read_table(path).to_pylist()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json" and text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def rows_from_cache(source, split, cache):
    snapshot = snapshot_of(cache, source.dataset)
    if not snapshot:
        sys.exit(f"{source.dataset} is not in {cache}: hf download --repo-type dataset {source.dataset}, or install the "
                 "package datasets")
    files = files_of(snapshot, source, split)
    if not files:
        sys.exit(f"{snapshot}: no .jsonl, .json or .parquet of the split {split}"
                 + (f" of {source.config}" if source.config else ""))
    return [row for path in files for row in rows_of_file(path)]


def rows_of(source, split, cache):
    try:
        import datasets
    except ImportError:
        return rows_from_cache(source, split, cache)
    return list(datasets.load_dataset(source.dataset, source.config, split=split))


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)
    print(f"{path}: {len(rows)} lines")


def fetch(task, out, cache):
    if task in NO_SOURCE:
        sys.exit(f"{task}: {NO_SOURCE[task]}")
    if task not in SOURCES:
        sys.exit(f"there is no task {task}: {', '.join(sorted([*SOURCES, *NO_SOURCE]))}")
    source = SOURCES[task]
    for name, split in source.files.items():
        rows = []
        for number, row in enumerate(rows_of(source, split, cache)):
            try:
                row = source.convert(dict(row))
            except (KeyError, ValueError, TypeError, IndexError) as error:
                sys.exit(f"{source.dataset}, {split}, row {number}: {type(error).__name__}: {error}")
            if row:
                rows.append(row)
        write(out / f"{name}.jsonl", rows[:source.only] if source.only else rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=pathlib.Path, default=default_cache())
    parser.add_argument("--list", action="store_true")
    parser.add_argument("dir", nargs="?", type=pathlib.Path)
    parser.add_argument("tasks", nargs="*")
    args = parser.parse_args()
    if args.list:
        for task in sorted([*SOURCES, *NO_SOURCE]):
            source = SOURCES.get(task)
            print(f"{task:20} " + (f"{source.dataset} {source.config or ''}" if source else NO_SOURCE[task]))
        return
    if not args.dir or not args.tasks:
        parser.error("expected a folder and tasks (or --list)")
    for task in sorted(SOURCES) if args.tasks == ["all"] else args.tasks:
        fetch(task, args.dir, args.cache)


if __name__ == "__main__":
    main()
