#!/usr/bin/env python3
"""run_doc_commands.py [--fathom FILE] [--work DIR] [--list] [PAGE.md…]: runs every command of the documentation, small.

Pages: README.md, docs/*.md and models/*/README.md. Commands: blocks fenced as ```sh, and indented ones that begin with
`fathom`, `tools/`, `python` or `make`. The commands of a page run in one shell, in order, in a folder of their own that looks like the repository's
root; the first that fails ends the page and fails the test. What is changed for the sake of time:

- `fathom` is called with the options of SMOKE below (an option of the page gives way to them).
- Files that a page only names (`held-out.txt`, `model.gguf`, `benchmarks/`, …) are there, small: stand_ins().
- `tools/fetch_smollm2.sh` gives the file in FATHOM_SMOLLM2 where that is set. Where it is not, and in pages with the
  comment `<!-- commands: builtin stands for SmolLM2 -->`, it gives the model that ships, and the adapter for SmolLM2 is one
  made for that. (SmolLM2 itself takes 20 s before its first step of training.)
- `make …` is not run (the build, the tests and CI are what runs it), but its target must exist.

A comment just before a block says what else is to be done with it: `<!-- not run: WHY -->`, or a substitution,
`<!-- run as: s|FROM|TO| -->`.
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL_TRAINING = ["--set", "schedule_steps=20", "--set", "batch=2", "--set", "context=64", "--set", "prepare_tokens=512"]
SMOKE = {
    "train": SMALL_TRAINING,
    "tune": [*SMALL_TRAINING, "--set", "method.protect=[0]"],  # the small model has fewer layers than a recipe may name
    "calibrate": ["--window", "64", "--tokens", "2048"],
    "chat": ["--chat-template", "chatml"],  # SmolLM2's; the small model has none
    "generate": ["-n", "8"],
    "bench": ["-p", "16", "-n", "8", "-r", "1"],
    "eval": ["--limit", "2"],
    "sweep": ["--smoke"],
}
BUILTIN_STANDS_IN = "<!-- commands: builtin stands for SmolLM2 -->"


class Block:
    def __init__(self, page, line, text, comment):
        self.where, self.text = f"{page}:{line}", text
        self.skipped = re.fullmatch(r"not run: (.+)", comment)
        change = re.fullmatch(r"run as: s\|(.+)\|(.+)\|", comment)
        if change:
            if change[1] not in text:
                sys.exit(f"{self.where}: nothing to substitute: {comment}")
            self.text = text.replace(change[1], change[2])

    def make_targets(self):
        return [re.split(r"\s+#", line)[0] for line in self.text.splitlines() if line.startswith("make ")]

    def commands(self):
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("make ")).strip()


def blocks_of(path):
    """The page's blocks of commands, in order."""
    page, lines = path.relative_to(ROOT), path.read_text().splitlines()
    blocks, comment, i = [], "", 0
    while i < len(lines):
        line = lines[i]
        fence = re.fullmatch(r"```(\w*)", line)
        if fence:
            end = next((j for j in range(i + 1, len(lines)) if lines[j] == "```"), None)
            if end is None:
                sys.exit(f"{page}:{i + 1}: a fence without an end")
            text = "\n".join(lines[i + 1:end])
            if fence[1] == "sh":
                blocks.append(Block(page, i + 1, text, comment))
            elif not fence[1] or re.search(r"^(build/)?fathom |^tools/|^make\b", text, re.M):
                sys.exit(f"{page}:{i + 1}: a fence with commands, or of no kind: ```sh is run, ```text is not")
            i, comment = end + 1, ""
            continue
        if re.match(r"    ((build/)?fathom |tools/|python3? |make )", line):
            end = next((j for j in range(i, len(lines)) if not lines[j].startswith("    ")), len(lines))
            blocks.append(Block(page, i + 1, "\n".join(text[4:] for text in lines[i:end]), comment))
            i, comment = end, ""
            continue
        found = re.fullmatch(r"<!-- (.+) -->", line)
        comment = found[1] if found else comment if not line else ""
        i += 1
    return blocks


def shim(arguments):
    """What `fathom ARGUMENTS` is run as: the verb's smoke options in place of the page's own."""
    smoke = SMOKE.get(arguments[0], []) if arguments else []
    replaced = {option for option in smoke if option.startswith("-")} - {"--set", "--smoke"}  # those with one value
    kept, rest = [], iter(arguments)
    for word in rest:
        if word in replaced:
            next(rest, None)
        else:
            kept.append(word)
    return kept + smoke


def run_shim(arguments):
    fathom = os.environ["FATHOM_UNDER_TEST"]
    os.execv(fathom, [fathom, *shim(arguments)])


def copy_repository(folder):
    """What commands read of the root, as copies: they may write there. build/ and bin/ hold this script as `fathom`."""
    for name in ("configs", "docs", "models", "tools", "bench"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for place in ("build", "bin"):
        (folder / place).mkdir()
        (folder / place / "fathom").symlink_to(pathlib.Path(__file__).resolve())


def environment(folder, fathom):
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FATHOM_UNDER_TEST": fathom,
            "FATHOM_MODELS": os.environ.get("FATHOM_MODELS", str(ROOT / "models")), "XDG_CACHE_HOME": str(folder / "cache")}


def stand_ins(folder, fathom):
    """The files that pages name and do not make: text, benchmarks, a model and routers for it."""
    (folder / "README.md").write_text((ROOT / "README.md").read_text()[:500])  # it is scored
    novel = (ROOT / "configs/small/secret_garden.txt").read_text()[:40000]
    (folder / "data").mkdir()
    for name in ("text", "held-out", "novels", "articles", "wikitext2-test", "data/wikipedia-train", "data/wikinews-train",
                 "data/novels-train"):
        (folder / f"{name}.txt").write_text(novel)
    (folder / "PROMPT").write_text("Mary went to the garden")
    (folder / "prompts.jsonl").write_text('{"prompt": "Mary went"}\n{"prompt": "The garden", "max_tokens": 4}\n')
    (folder / "data/dolly.jsonl").write_text('{"text": "Mary is a girl in a garden."}\n' * 20)
    item = '{"id": "%d", "ctx": "The garden was", "choices": ["green", "seven", "on", "and"], "gold": 0}\n'
    for task in ("arc_challenge/test", "hellaswag/validation_1000", "piqa/validation"):
        path = folder / "benchmarks" / f"{task}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(item % i for i in range(4)))
    for command in (["convert", "-m", "builtin", "-o", "model.gguf"],
                    ["tune", "--config", "configs/small/priced.json", "-o", "routers"],
                    ["calibrate", "-m", "builtin", "--adapter", "routers", "--data", "text.txt", "--budgets", "0.9,0.8,0.7"]):
        subprocess.run([fathom, *shim([*command, "-q"])], cwd=folder, env=environment(folder, fathom), check=True,
                       stdout=subprocess.DEVNULL)


def script_of(blocks):
    lines = ["set -euo pipefail"]
    for block in blocks:
        lines += [f"echo {shlex.quote('== ' + block.where)} >&2", block.commands()]
    return "\n".join(lines) + "\n"


def run_page(path, blocks, folder, prepared, fathom):
    """Runs a page's blocks; returns what went wrong, or nothing."""
    shutil.copytree(prepared, folder, symlinks=True)
    smollm2 = os.environ.get("FATHOM_SMOLLM2")
    if not smollm2 or BUILTIN_STANDS_IN in path.read_text():
        smollm2 = "builtin"
        for shipped in folder.glob("models/smollm2-*"):
            shutil.copytree(folder / "routers", shipped, dirs_exist_ok=True)
    (folder / "tools/fetch_smollm2.sh").write_text(f"#!/bin/sh\necho {shlex.quote(smollm2)}\n")
    result = subprocess.run(["bash", "-x", "-c", script_of(blocks)], cwd=folder, env=environment(folder, fathom),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace")
    (folder / "log.txt").write_text(result.stdout)
    if result.returncode == 0:
        return ""
    begun = re.findall(r"^== (\S+:\d+)$", result.stdout, re.M)
    tail = "\n".join(result.stdout.splitlines()[-12:])
    return f"{begun[-1] if begun else path}: exit {result.returncode}\n{tail}"


def missing_targets(blocks):
    """Of the make lines: those that make does not know."""
    for block in blocks:
        for line in block.make_targets():
            known = subprocess.run(["make", "-n", *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True)
            if known.returncode:
                yield f"{block.where}: {line}: {known.stderr.strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fathom", default=str(ROOT / "build/fathom"))
    parser.add_argument("--work", default=str(ROOT / "build"), help="where the folder doc-commands is made, or made anew")
    parser.add_argument("--list", action="store_true", help="say what would run, and why the rest would not")
    parser.add_argument("pages", nargs="*")
    args = parser.parse_args()

    pages = [pathlib.Path(page).resolve() for page in args.pages] or [
        ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "models").glob("*/README.md"))]
    work, fathom = pathlib.Path(args.work).resolve() / "doc-commands", os.path.abspath(args.fathom)
    prepared, problems = work / "prepared", []
    if not args.list:
        shutil.rmtree(work, ignore_errors=True)
        copy_repository(prepared)
        stand_ins(prepared, fathom)
    for page in pages:
        blocks = blocks_of(page)
        runnable = [block for block in blocks if not block.skipped and block.commands()]
        for block in blocks:
            for line in block.make_targets():
                print(f"{block.where}: {line}: run elsewhere")
            if block.skipped:
                print(f"{block.where}: not run: {block.skipped[1]}")
        if args.list:
            print("\n".join(f"{block.where}:\n{block.commands()}" for block in runnable))
            continue
        problems += missing_targets(blocks)
        if not runnable:
            continue
        begun = time.monotonic()
        wrong = run_page(page, runnable, work / str(page.relative_to(ROOT)).replace("/", "-"), prepared, fathom)
        print(f"{page.relative_to(ROOT)}: {len(runnable)} blocks, {time.monotonic() - begun:.1f} s", flush=True)
        problems += [wrong] if wrong else []
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    if os.path.basename(sys.argv[0]) == "fathom":  # called by a page, through a link
        run_shim(sys.argv[1:])
    main()
