#!/usr/bin/env python3
"""The papers' tables in small: results.py PAPER runs what configs/results/PAPER.json lists and writes its tables.

    tools/results.py skipmiddle                      # about an hour on two cores; kill it, start it again: it goes on
    tools/results.py skiplayer --jobs 16 --threads 1 # rows side by side
    tools/results.py gateskip --only 'Table 5'       # the rows whose table or name has this in it
    tools/results.py mindskip --commands             # what would run, as shell commands

In OUT (runs/results/PAPER): steps/*.json, what every command printed, kept when it is done; tables.md; results.json.
A step runs again when its command, its recipe or what it was made from has changed. --into FILE puts the tables between
FILE's lines `<!-- results PAPER -->` and `<!-- end of results PAPER -->`. Exit status 1 if a row failed; the others are
kept.
"""
import argparse
import concurrent.futures
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

import results_plan
import results_tables

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", help="a file of configs/results: gateskip, mindskip, skipmiddle, skiplayer, …-gpu, shipped; or one like them")
    parser.add_argument("--smoke", action="store_true", help="tiny models and texts: every command, no meaning")
    parser.add_argument("--out", type=here, help="folder of models and results")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="rows whose table or name has it")
    parser.add_argument("--jobs", type=at_least_one, default=2, help="commands side by side (2)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each (1)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N for every command but bench (the CPU)")
    parser.add_argument("--fathom", type=here, default=os.environ.get("FATHOM", str(ROOT / "build/fathom")),
                        help="the program (FATHOM, or build/fathom)")
    parser.add_argument("--data", type=here, default=ROOT / "data", help="the texts, see docs/results.md (data)")
    parser.add_argument("--benchmarks", type=here, help="folder of eval's tasks (DATA/benchmarks)")
    parser.add_argument("--base", type=here, help="the pretrained model (SmolLM2, fetched)")
    parser.add_argument("--untimed", action="store_true", help="leave for another time what measures time, and waits for a quiet machine")
    parser.add_argument("--commands", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--tables", action="store_true", help="write the tables of what is done, run nothing")
    parser.add_argument("--into", type=here, help="a Markdown file to put the tables into")
    args = parser.parse_args()
    if args.into and args.only:
        parser.error("--into takes all tables: leave --only out")
    args.benchmarks = args.benchmarks or args.data / "benchmarks"
    if args.paper.endswith(".json"):
        args.paper = str(here(args.paper))
    return args


def here(path):
    """A path as the caller means it, from the caller's folder."""
    return pathlib.Path(path).absolute()


def at_least_one(text):
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def files_named(argv):
    """The texts and the model that a command names, without their weights."""
    return {file for word in argv for file in re.findall(r'\{base\}|\{data\}/[^":]+', word)}


class Runner:
    def __init__(self, args, paper, out, steps):
        self.paper, self.out, self.steps, self.threads, self.jobs = paper, out, steps, args.threads, args.jobs
        self.device = ["--device", args.device] if args.device else []
        self.names = {"fathom": args.fathom, "out": out, "data": args.data, "benchmarks": args.benchmarks,
                      "base": args.base or "SmolLM2.gguf", "python": sys.executable}
        self.done, self.failed = {}, {}

    def argv(self, step):
        names = {**self.names, "threads": self.threads * self.jobs if step.alone else self.threads}
        argv = [re.sub(r"\{(\w+)\}", lambda m: str(names[m[1]]), a) for a in step.argv]
        scores = step.argv[1] == "tools/window_nll.py"  # hands its options on
        takes_it = scores or step.argv[0] == "{fathom}" and step.argv[1] not in ("bench", "info")
        return argv + (self.device if takes_it else [])

    def sources(self, step):
        """The sizes of the texts and the model that the command names: they survive a move of the folders."""
        paths = {w: pathlib.Path(re.sub(r"\{(\w+)\}", lambda m: str(self.names[m[1]]), w)) for w in files_named(step.argv)}
        return {word: path.stat().st_size for word, path in paths.items() if path.is_file()}

    def folder(self, step):
        return pathlib.Path(step.folder.replace("{out}", str(self.out))) if step.folder else None

    def kept(self, step):
        """What the step printed when it was done before, as it is now."""
        try:
            record = json.loads((self.out / "steps" / f"{step.name}.json").read_text())
        except (OSError, ValueError):
            return None
        sizes, now = record.get("sources", {}), self.sources(step)
        same = all(sizes.get(word, size) == size for word, size in now.items())
        return record if record["key"] == step.key and same else None

    def prepare(self, step):
        """Empties the folder of a step that starts anew; says whether a training goes on instead."""
        folder = self.folder(step)
        if not folder:
            return []
        mark = folder.with_name(folder.name + ".key")
        made_from = json.dumps([step.key, self.sources(step)], sort_keys=True)
        if (folder / "last").exists() and mark.exists() and mark.read_text() == made_from:
            return ["--resume"]
        shutil.rmtree(folder, ignore_errors=True)
        write(mark, made_from)
        return []

    def run(self, step):
        samples = self.out / "steps" / f"{step.name}.samples" if step.samples else None
        argv = self.argv(step) + self.prepare(step)
        if samples:
            samples.parent.mkdir(parents=True, exist_ok=True)
            argv += ["--samples", str(samples)]
        start = time.monotonic()
        # A step never outlives this program: a second one would write into the same folder.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        done = subprocess.run(guard + argv, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise RuntimeError(lines[-1])
        record = {"key": step.key, "sources": self.sources(step), "command": shlex.join(argv), "seconds": round(time.monotonic() - start, 1),
                  "output": json.loads(done.stdout.strip().splitlines()[-1])}
        if samples:
            record["items"] = results_tables.item_scores(samples.read_text(), record["output"]["tasks"])
            samples.unlink()
        shape = self.folder(step) and self.folder(step) / "last/config.json"
        if shape and shape.exists():  # steps/ alone is enough to write the tables again, anywhere
            record["shape"] = json.loads(shape.read_text())
        write(self.out / "steps" / f"{step.name}.json", json.dumps(record, indent=1))
        return record

    def finish(self, step, future, progress):
        try:
            self.done[step.name] = future.result()
            progress(step, f"{self.done[step.name]['seconds']} s")
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            self.failed[step.name] = str(error)
            progress(step, f"failed: {error}")

    def ready(self, waiting):
        for step in list(waiting):
            why = [self.failed[n.name] for n in step.needs if n.name in self.failed]
            if why:
                waiting.remove(step)
                self.failed[step.name] = why[0]
        return [s for s in waiting if all(n.name in self.done for n in s.needs)]

    def look_up(self):
        for step in self.steps.values():
            if all(need.name in self.done for need in step.needs) and (record := self.kept(step)):
                self.done[step.name] = record

    def run_all(self, progress, untimed):
        for alone in (False,) if untimed else (False, True):  # what measures time comes last, one by one
            waiting = [s for s in self.steps.values() if s.alone == alone and s.name not in self.done]
            running = {}
            with concurrent.futures.ThreadPoolExecutor(1 if alone else self.jobs) as pool:
                while waiting or running:
                    for step in self.ready(waiting)[:(1 if alone else self.jobs) - len(running)]:
                        waiting.remove(step)
                        running[pool.submit(self.run, step)] = step
                    for future in concurrent.futures.wait(running, return_when="FIRST_COMPLETED").done:
                        self.finish(running.pop(future), future, progress)


def select(config, words):
    """The tables with the rows that were asked for."""
    tables = []
    for table in config["tables"]:
        rows = [r for r in table["rows"] if not words or any(
            w.lower() in f"{table['name']}: {r['row']}".lower() for w in words)]
        if rows:
            tables.append({**table, "rows": rows})
    if not tables:
        sys.exit(f"results.py: no row has {' or '.join(words)} in its table or name")
    return tables


def check_files(args, steps):
    """Everything is there before the first hour is spent."""
    words = {word for step in steps for word in step.argv}
    files = {file for step in steps for file in files_named(step.argv)}
    if "{base}" in files and not args.base:
        fetched = subprocess.run(["tools/fetch_smollm2.sh"], capture_output=True, text=True)
        if fetched.returncode:
            sys.exit(f"results.py: no pretrained model (--base): {fetched.stderr.strip()}")
        args.base = here(fetched.stdout.strip())
    texts = sorted(args.data / file.removeprefix("{data}/") for file in files - {"{base}"})
    tasks = [args.benchmarks] if "{benchmarks}" in words and not args.smoke else []
    for path in [args.fathom, *texts, *tasks]:
        if not path.exists():
            sys.exit(f"results.py: there is no {path}: docs/results.md says where the data comes from")


def put_into(path, paper, text):
    begin, end = f"<!-- results {paper} -->\n", f"<!-- end of results {paper} -->\n"
    whole = path.read_text()
    if begin not in whole or end not in whole:
        sys.exit(f"results.py: {path} has no lines '{begin.strip()}' and '{end.strip()}'")
    head, rest = whole.split(begin, 1)
    write(path, head + begin + text + end + rest.split(end, 1)[1])


def main():
    args = arguments()
    os.chdir(ROOT)  # configs, tools and default folders are named from there
    paper = pathlib.Path(args.paper).stem
    out = args.out or pathlib.Path("runs/results") / (paper + "-smoke" * args.smoke)
    config, values = results_plan.read(args.paper, "smoke" if args.smoke else "full")
    tables = select(config, args.only)
    plan = results_plan.Plan(config, values, args.smoke)
    points = results_tables.points(tables, plan)
    if not (args.commands or args.tables):
        check_files(args, plan.steps.values())
    runner = Runner(args, paper, out, plan.steps)
    if args.commands:
        print("\n".join(shlex.join(runner.argv(s)) for s in plan.steps.values()))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    lock = open(out / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"results.py: another results.py is at work in {out}")
    if args.fresh:
        for folder in ("steps", "models", "inspect", "tokens"):
            shutil.rmtree(out / folder, ignore_errors=True)

    def progress(step, how):
        print(f"{len(runner.done) + len(runner.failed)}/{len(plan.steps)} {step.name}: {how}", file=sys.stderr)

    runner.look_up()
    if not args.tables:
        runner.run_all(progress, args.untimed)
    results = results_tables.results(points, runner)
    text = results_tables.markdown(paper, tables, results)
    write(out / "results.json", json.dumps(results, indent=1))
    write(out / "tables.md", text)
    if args.into:
        put_into(args.into, paper, text)
    print(f"{len(results)} rows in {out}/tables.md, {len(runner.failed)} of {len(plan.steps)} commands failed")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
