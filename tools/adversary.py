#!/usr/bin/env python3
"""An adversary: damaged models, tokenizers, adapters, checkpoints and recipes, given to the real program.

    tools/adversary.py --minutes 10 --seed 7           # until the time is over; every case is a function of seed and number
    tools/adversary.py --seed 7 --case 1234            # that case again, with all that the program said
    tools/adversary.py --only recipe --seconds 60      # one kind: model, tokenizer, adapter, checkpoint, recipe

A case fails when the program ends by a signal, computes longer than --limit seconds, takes more than --memory MiB, or says
something else than one line beginning with `fathom: `. What failed is kept in WORK/failed-SEED-CASE. Exit status 1 if
anything failed.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import adversary_mutations as mutations

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data"
STORIES = DATA / "stories260k"
RAW = re.compile(r"json\.exception|std::|basic_string|vector::|terminate called|what\(\)|[Aa]ssertion|bad_alloc|map::at|"
                 r"filesystem error|regex_error|stoi|stod|runtime error:|Sanitizer|locale::")
TEXT = "Once upon a time there was a little dog. \u00e9\u2581 \ufdfa 123\n"
GOOD_CODES = (0, 1, 2)
WALL = 6  # times the processor's seconds, by the clock: other programs may have the machine


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fathom", default=os.environ.get("FATHOM", ROOT / "build/fathom"), help="the program")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="no more than these, however fast the machine is")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--only", choices=sorted(KINDS), help="this kind alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int, default=20, help="seconds of a processor that a command may take (20)")
    parser.add_argument("--memory", type=int, default=700, help="MiB a command may hold (700)")
    parser.add_argument("--work", type=pathlib.Path, help="folder for all files; a temporary one unless given")
    return parser.parse_args()


class Outcome:
    """What one command did."""

    def __init__(self, code, out, err, seconds, mebibytes):
        self.code, self.out, self.err, self.seconds, self.mebibytes = code, out, err, seconds, mebibytes


def run(command, args, limit=None):
    """The command under limits. Its peak memory is asked for when it has ended, so a limit of 8 GiB guards the machine."""
    seconds = limit or args.limit
    limits = ["prlimit", "--core=0", f"--fsize={1 << 30}", f"--cpu={seconds}"]
    if "asan" not in str(args.fathom):
        limits.append(f"--as={8 << 30}")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "FATHOM_MODELS": str(ROOT / "models"),
                   "ASAN_OPTIONS": "detect_leaks=0"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.monotonic()
        child = subprocess.Popen([str(word) for word in limits + command], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=err, env=environment)
        timed_out = True
        while time.monotonic() - begun < WALL * seconds:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                timed_out = False
                break
            time.sleep(0.005)
        if timed_out:
            child.kill()
            pid, status, usage = os.wait4(child.pid, 0)
        child.returncode = 0  # it is waited for
        out.seek(0), err.seek(0)
        code = None if timed_out else os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            code = None
        return Outcome(code, out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace"),
                       time.monotonic() - begun, usage.ru_maxrss >> 10)


def complaint(outcome, args):
    """What is wrong with it; "" if nothing is."""
    if outcome.code is None:
        return f"no end after {outcome.seconds:.0f} s"
    if outcome.code not in GOOD_CODES:
        return f"exit {outcome.code}"
    if RAW.search(outcome.err):
        return "a raw message"
    if outcome.mebibytes > args.memory or "out of memory" in outcome.err:
        return f"{outcome.mebibytes} MiB of memory"
    lines = outcome.err.splitlines()
    if any(not line.startswith("fathom: ") for line in lines):
        return "a line that does not begin with 'fathom: '"
    errors = [line for line in lines if not line.startswith("fathom: warning: ")]
    if outcome.code != 0 and len(errors) != 1:
        return f"{len(errors)} lines instead of one"
    return ""


# ---- the files that are damaged

def recipe_of(corpus, **more):
    recipe = {"tokenizer": str(STORIES / "tokenizer.bin"), "data": [str(corpus / "data.txt")],
              "data_cache": str(corpus / "cache"), "batch": 2, "context": 32, "accumulate": 2, "schedule_steps": 8,
              "checkpoint": {"every": 2}, "schedule": {"rate": 0.01, "warmup_steps": 2},
              "optimizer": {"kind": "adamw", "beta1": 0.9}, "validation": {"share": 0.1, "every": 2, "patience": 9},
              "model": {"width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "ffn_width": 48}}
    return {**recipe, **more}


def make_corpus(args, corpus):
    """Whole files of every kind, made by the program itself."""
    def must(*command):
        outcome = run([args.fathom, *command, "-q"], args, limit=300)
        if outcome.code != 0:
            sys.exit(f"cannot make the files to damage: {' '.join(map(str, command))}: {outcome.err}")
    corpus.mkdir(parents=True)
    (corpus / "data.txt").write_text("".join(
        f"Once there was a dog with number {i * 7} who liked the cat.\n<|endoftext|>\n" for i in range(60)))
    model = ["-m", STORIES / "stories260K.bin", "--tokenizer", STORIES / "tokenizer.bin"]
    must("convert", *model, "-o", corpus / "models/hf")
    must("convert", *model, "-o", corpus / "models/f32.gguf")
    for kind in ("q8_0", "q4_1"):
        must("quantize", *model, "--type", kind, "-o", corpus / f"models/{kind}.gguf")
    for name, method in (("dense", "dense"), ("skip_layer", "skip_layer"), ("gate_skip", "gate_skip")):
        folder = corpus / "runs" / name
        folder.mkdir(parents=True)
        (folder / "recipe.json").write_text(json.dumps(recipe_of(corpus, method={"name": method})))
        must("train", "--config", folder / "recipe.json", "-o", folder / "run", "--steps", "4")
    settings = ["--data", corpus / "data.txt", "--set", "schedule_steps=3", "--set", "context=32", "--set", "batch=2",
                "--set", f"data_cache={corpus / 'cache'}"]
    for method in ("mind_skip", "priced"):
        must("tune", *model, "--method", method, "-o", corpus / "tuned" / method, *settings)
        folder = corpus / "adapters" / method
        folder.mkdir(parents=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(corpus / "tuned" / method / name, folder)
    for name in ("mind_skip", "gate_skip", "priced", "skip_middle", "calm"):
        text = re.sub(r"^\s*//.*$", "", (ROOT / f"configs/small/{name}.json").read_text(), flags=re.M)
        recipe = recipe_of(corpus, method=json.loads(text).get("method", "dense"))
        (corpus / "recipes").mkdir(exist_ok=True)
        (corpus / "recipes" / f"{name}.json").write_text(json.dumps(recipe))


# ---- the cases: each returns what was done and the commands that must survive it

def model_case(rng, corpus, place, args):
    small = [path for path in sorted((DATA / "models").iterdir()) if path.is_dir()]
    source = rng.choice([*sorted((corpus / "models").iterdir())] * 4 + small)
    if source.is_dir() and rng.random() < 0.3 and (source / "model.gguf").exists():
        source = source / "model.gguf"
    model = mutations.copied(source, place / source.name)
    done = mutations.change_some(rng, model)
    verb = rng.choice([["generate", "-p", "Once", "-n", "3"], ["score", "-p", "Once upon a time"], ["info"],
                       ["tokenize", "-p", TEXT], ["convert", "-o", place / "out.gguf"], ["convert", "-o", place / "out"],
                       ["generate", "-p", "Once", "-n", "3", "--no-mmap"],
                       ["quantize", "--type", "q4_0", "-o", place / "out.gguf"]])
    return done, [[*verb, "-m", model]]


def tokenizer_case(rng, corpus, place, args):
    sources = [path for path in sorted((DATA / "tokenizers").iterdir())
               if not path.name.endswith((".golden.json", "README.md", "texts.json"))]
    sources += [corpus / "models/hf/tokenizer.json", STORIES / "tokenizer.bin", ROOT / "models/builtin/tokenizer.json"]
    source = rng.choice(sources)
    # Only a tokenizer: the weights are not copied.
    tokenizer = mutations.copied(source, place / source.name)
    done = mutations.change_some(rng, tokenizer)
    ids = place / "ids.json"
    ids.write_text(json.dumps([rng.randrange(300) for _ in range(50)]))
    text = place / "text.txt"
    text.write_text(TEXT * rng.choice([1, 300]))
    return done, [["tokenize", "-m", tokenizer, "--file", text], ["tokenize", "-m", tokenizer, "--decode", "--ids", ids]]


def adapter_case(rng, corpus, place, args):
    source = rng.choice(sorted((corpus / "adapters").iterdir()))
    adapter = mutations.copied(source, place / source.name)
    done = mutations.change_some(rng, adapter)
    model = ["-m", STORIES / "stories260K.bin", "--tokenizer", STORIES / "tokenizer.bin", "--adapter", adapter]
    verb = rng.choice([["generate", "-p", "Once", "-n", "3"], ["score", "-p", "Once upon a time"], ["info"],
                       ["generate", "-p", "Once", "-n", "3", "--force-adapter"],
                       ["calibrate", "--data", corpus / "data.txt", "-o", place / "out"]])
    return done, [[*verb, *model]]


def checkpoint_case(rng, corpus, place, args):
    source = rng.choice(sorted((corpus / "runs").iterdir()))
    folder = mutations.copied(source, place / source.name)
    run_folder = folder / "run"
    step = run_folder / "step-4"
    done = mutations.change_some(rng, rng.choice([step, step, step / "state.json", run_folder]))
    if rng.random() < 0.7:
        mutations.seal_checkpoint(step)
    resume = ["train", "--config", folder / "recipe.json", "-o", run_folder, "--resume", "--steps", "5"]
    return done, [rng.choice([resume, resume, ["generate", "-m", step, "-p", "Once", "-n", "3"], ["info", "-m", step]])]


def recipe_case(rng, corpus, place, args):
    """A recipe may ask for a large model, which is no fault: what it would take is asked for first."""
    source = rng.choice(sorted((corpus / "recipes").iterdir()))
    recipe = mutations.copied(source, place / "recipe.json")
    cache = mutations.copied(corpus / "cache", place / "cache")
    done = mutations.change_some(rng, rng.choice([recipe, recipe, recipe, cache]))
    plan = run([args.fathom, "train", "--config", recipe, "--dry-run", "--json", "-q", "-t", "1"], args)
    commands = [["train", "--config", recipe, "--dry-run"]]
    if plan.code == 0:
        asked = json.loads(plan.out)
        small = asked["memory_bytes"] < 100 << 20 and asked["tokens_per_step"] < 4096
        if small and asked["parameters"] < 1 << 20:
            commands.append(["train", "--config", recipe, "-o", place / "run", "--steps", "1", "--set",
                             f"data_cache={cache}"])
        elif complaint(plan, args).endswith("of memory"):
            commands = []
    return done, commands


KINDS = {"model": model_case, "tokenizer": tokenizer_case, "adapter": adapter_case, "checkpoint": checkpoint_case,
         "recipe": recipe_case}


def try_case(number, args, corpus, work):
    """Returns a line for the report, or "" where all is well."""
    rng = random.Random(f"{args.seed}:{number}")
    kind = args.only or rng.choice(sorted(KINDS))
    place = work / f"case-{args.seed}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    done, commands = KINDS[kind](rng, corpus, place, args)
    for command in commands:
        full = [args.fathom, *command, "-q", "-t", "1"] if command[0] not in ("tokenize", "info", "convert", "quantize") \
            else [args.fathom, *command]
        outcome = run(full, args)
        problem = complaint(outcome, args)
        if args.case is not None:
            print(" ".join(map(str, full)), f"\nexit {outcome.code}, {outcome.seconds:.1f} s, {outcome.mebibytes} MiB")
            print(outcome.out[-2000:] + outcome.err[-4000:])
        if problem:
            kept = work / f"failed-{args.seed}-{number}"
            shutil.rmtree(kept, ignore_errors=True)
            place.rename(kept)
            return (f"case {number} ({kind}: {'; '.join(done)}): {problem}\n  {' '.join(map(str, full))}\n"
                    f"  kept in {kept}; said: {outcome.err[-300:].strip()}")
    if args.case is None:
        shutil.rmtree(place, ignore_errors=True)
    return ""


def attack(args, corpus, work):
    """Cases 0, 1, 2, … until the time is over. Returns how many there were, and the reports of those that failed."""
    end = time.monotonic() + 60 * args.minutes + args.seconds
    reports, count = [], 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = set()
        while (time.monotonic() < end and count < args.cases) or running:
            while time.monotonic() < end and count < args.cases and len(running) < args.jobs:
                running.add(pool.submit(try_case, count, args, corpus, work))
                count += 1
            finished, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for each in finished:
                if report := each.result():
                    print(report, flush=True)
                    reports.append(report)
    return count, reports


def main():
    args = arguments()
    work = args.work or pathlib.Path(tempfile.mkdtemp(prefix="fathom-adversary-"))
    corpus = work / "corpus"
    shutil.rmtree(corpus, ignore_errors=True)
    make_corpus(args, corpus)
    if args.case is not None:
        report = try_case(args.case, args, corpus, work)
        reports = [report] if report else []
        print(report or "nothing wrong with it")
    else:
        count, reports = attack(args, corpus, work)
        print(f"adversary: {count} cases with seed {args.seed}, {len(reports)} failed")
    shutil.rmtree(work if not args.work and not reports else corpus, ignore_errors=True)
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
