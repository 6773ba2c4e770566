#!/usr/bin/env python3
"""Runs `fathom eval` and lm-evaluation-harness itself on the same items and compares every prediction and the time.

    pip install lm-eval==0.4.13 torch==2.6.0 transformers==5.22.2 accelerate==1.15.0
    build/fathom convert -m model.gguf -o model-hf --dtype f32
    python tools/compare_with_harness.py --model model-hf --data-dir benchmarks --limit 200

Both read the same Hugging Face folder and compute in f32 on the same number of threads. The harness gets the same
files through task definitions of its own kind (a dict as its YAML would hold); with --shots 5 the examples of
`fewshot5_prefix.txt` stand in the items it reads. Its time is that of its `loglikelihood` or `generate_until` call;
ours is the whole program, loading included, and (seconds) without loading. --quantized times another file of the model
(GGUF) beside it. On a machine with other users compare the processor time, which for ours includes loading.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import tempfile
import time

CHOICES = ["arc_challenge", "boolq", "commonsenseqa", "hellaswag", "openbookqa", "piqa"]
SPLITS = {"arc_challenge": "test", "hellaswag": "validation_1000", "openbookqa": "test", "lambada": "test", "blimp": "test"}
ANSWER = {"aggregation": "mean", "higher_is_better": True}


def definition(task):
    """The part of a harness task that its YAML file would hold."""
    if task in CHOICES:
        return {"output_type": "multiple_choice", "doc_to_text": "{{ctx}}", "doc_to_choice": "choices", "doc_to_target": "gold",
                "metric_list": [{"metric": "acc", **ANSWER}, {"metric": "acc_norm", **ANSWER}]}
    if task == "winogrande":
        return {"output_type": "multiple_choice", "doc_to_text": "gold",
                "doc_to_choice": "{% set i = ctx.index('_') %}{{[ctx[:i] + choices[0], ctx[:i] + choices[1]]}}",
                "doc_to_target": "{% set i = ctx.index('_') + 1 %}{{ctx[i:].strip()}}",
                "metric_list": [{"metric": "acc", **ANSWER}]}
    if task == "blimp":
        return {"output_type": "multiple_choice", "doc_to_text": "", "doc_to_choice": "{{[good, bad]}}", "doc_to_target": 0,
                "metric_list": [{"metric": "acc", **ANSWER}]}
    if task == "lambada":
        return {"output_type": "loglikelihood", "doc_to_text": "{{context}}", "doc_to_target": "{{' ' + continuation}}",
                "metric_list": [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                                {"metric": "acc", **ANSWER}]}
    if task == "nq_open":
        return {"output_type": "generate_until", "description": "Answer these questions:\n\n",
                "doc_to_text": "Q: {{question}}?\nA:", "doc_to_target": "{{answer}}",
                "generation_kwargs": {"until": ["\n", ".", ","], "do_sample": False, "temperature": 0.0},
                "filter_list": [{"name": "remove_whitespace", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
                "metric_list": [{"metric": "exact_match", **ANSWER, "ignore_case": True, "ignore_punctuation": True,
                                 "regexes_to_ignore": ["\\b(?:The |the |An |A |The |a |an )"]}]}
    raise SystemExit(f"no harness definition here for the task {task}")


def with_examples(line, examples):
    item = json.loads(line)
    item["ctx"] = examples + item["ctx"]
    return json.dumps(item)


def cut_files(data_dir, tasks, limit, shots, folder):
    """The first items of each task, as `fathom eval --limit` takes them (blimp: from each paradigm in turn)."""
    files = {}
    for task in tasks:
        source = pathlib.Path(data_dir) / task
        lines = (source / (SPLITS.get(task, "validation") + ".jsonl")).read_text().splitlines()
        if task == "blimp":
            seen, order = {}, []
            for i, line in enumerate(lines):
                uid = json.loads(line)["uid"]
                seen[uid] = seen.get(uid, -1) + 1
                order.append((seen[uid], i))
            lines = [lines[i] for i in sorted(i for _, i in sorted(order)[:limit])]
        lines = lines[:limit]
        if shots:
            lines = [with_examples(line, (source / "fewshot5_prefix.txt").read_text()) for line in lines]
        files[task] = folder / f"{task}.jsonl"
        files[task].write_text("\n".join(lines) + "\n")
    return files


def run_harness(model, files, threads, batch_size):
    import torch

    torch.set_num_threads(threads)
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=batch_size)
    seconds = {}

    def timed(name):
        inner = getattr(lm, name)

        def call(requests, **options):
            start, cpu = time.perf_counter(), time.process_time()
            result = inner(requests, **options)
            seconds["last"], seconds["cpu"] = time.perf_counter() - start, time.process_time() - cpu
            return result

        setattr(lm, name, call)

    timed("loglikelihood")
    timed("generate_until")
    results = {}
    for task, path in files.items():
        config = {"task": task, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}, "test_split": "test",
                  **definition(task)}
        out = lm_eval.simple_evaluate(model=lm, tasks=[config], num_fewshot=0, bootstrap_iters=0, log_samples=True)
        samples = sorted(out["samples"][task], key=lambda sample: sample["doc_id"])
        results[task] = {"seconds": seconds["last"], "cpu": seconds["cpu"], "scores": out["results"][task], "samples": samples}
        print(f"harness  {task}: {seconds['last']:.1f} s", flush=True)
    return results


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_fathom(options, model, precision, tasks, folder):
    samples = folder / "samples.jsonl"
    results = {}
    for task in tasks:
        start, cpu = time.perf_counter(), children_seconds()
        out = subprocess.run(
            [options.fathom, "eval", "-m", model, *precision, "-t", str(options.threads), "--data-dir", options.data_dir,
             "--tasks", task, "--limit", str(options.limit), "--shots", str(options.shots), "--samples", str(samples), "--json"],
            check=True, capture_output=True, text=True)
        wall = time.perf_counter() - start
        result = json.loads(out.stdout)["tasks"][task]
        results[task] = {"wall": wall, "seconds": result["seconds"], "cpu": children_seconds() - cpu, "scores": result,
                         "samples": [json.loads(line) for line in samples.read_text().splitlines()]}
        print(f"fathom   {task}: {result['seconds']:.1f} s, the program {wall:.1f} s ({pathlib.Path(model).name})", flush=True)
    return results


def largest(values):
    return max(range(len(values)), key=lambda i: values[i])


def compare(task, ours, theirs):
    """-> (items, equal predictions, largest difference of a log-likelihood, the items that differ)"""
    differing, worst = [], 0.0
    for mine, other in zip(ours["samples"], theirs["samples"], strict=True):
        kind = definition(task)["output_type"]
        if kind == "generate_until":
            same = mine["exact_match"]["answer"] == other["filtered_resps"][0]
            seen = (mine["exact_match"]["answer"], other["filtered_resps"][0])
        elif kind == "loglikelihood":
            logprob, greedy = other["filtered_resps"][0]
            worst = max(worst, abs(mine["logprobs"][0] - float(logprob)))
            same, seen = mine["greedy"] == (str(greedy) == "True"), (mine["logprobs"], other["filtered_resps"])
        else:
            logprobs = [float(logprob) for logprob, _ in other["filtered_resps"]]
            worst = max([worst] + [abs(a - b) for a, b in zip(mine["logprobs"], logprobs, strict=True)])
            same = mine["predicted"] == largest(logprobs)
            if task in CHOICES:
                by_length = [l / len(c) for l, c in zip(logprobs, other["doc"]["choices"], strict=True)]
                same = same and mine["predicted_norm"] == largest(by_length)
            seen = (mine["logprobs"], logprobs)
        if not same:
            differing.append((mine["id"], *seen))
    return len(ours["samples"]), len(ours["samples"]) - len(differing), worst, differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fathom", default="build/fathom")
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--tasks", default="arc_challenge,openbookqa,piqa")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--shots", type=int, default=0, choices=[0, 5])
    parser.add_argument("--quantized", help="GGUF file of the same model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="the harness's")
    parser.add_argument("--out", help="write what was compared as JSON")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    tasks = options.tasks.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        files = cut_files(options.data_dir, tasks, options.limit, options.shots, folder)
        theirs = run_harness(options.model, files, options.threads, options.batch_size)
        ours = run_fathom(options, options.model, ["--dtype", "f32"], tasks, folder)
        quantized = run_fathom(options, options.quantized, [], tasks, folder) if options.quantized else {}
    rows = []
    for task in tasks:
        items, equal, worst, differing = compare(task, ours[task], theirs[task])
        rows.append({"task": task, "items": items, "equal": equal, "largest_difference": worst,
                     "harness_seconds": theirs[task]["seconds"], "seconds": ours[task]["seconds"], "wall": ours[task]["wall"],
                     "harness_cpu": theirs[task]["cpu"], "cpu": ours[task]["cpu"],
                     "speed_up": theirs[task]["seconds"] / ours[task]["seconds"],
                     "quantized_seconds": quantized[task]["seconds"] if quantized else None,
                     "scores": ours[task]["scores"], "harness_scores": theirs[task]["scores"], "differing": differing})
        print(f"{task}: {equal}/{items} predictions equal ({100 * equal / items:.1f} %), log-likelihoods within {worst:.2g}; "
              f"harness {theirs[task]['seconds']:.1f} s, ours {ours[task]['seconds']:.1f} s "
              f"({theirs[task]['seconds'] / ours[task]['seconds']:.1f}x); processor time {theirs[task]['cpu']:.1f} s, "
              f"{ours[task]['cpu']:.1f} s ({theirs[task]['cpu'] / ours[task]['cpu']:.1f}x)")
        for one in differing:
            print("   differs:", *one)
    harness, fathom = (sum(result["seconds"] for result in results.values()) for results in (theirs, ours))
    print(f"together: harness {harness:.1f} s, ours {fathom:.1f} s ({harness / fathom:.1f}x)")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(rows, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
