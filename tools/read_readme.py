#!/usr/bin/env python3
"""read_readme.py FATHOM: runs README.md's examples that write text, as they stand, and reads what they write.

No token may come more than four times in a row. What an example needs (routers, their table) is made first, by README's
own commands. Examples with SmolLM2 run where FATHOM_SMOLLM2 names its file.
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

import run_doc_commands

ROOT = run_doc_commands.ROOT
MOST = 4


def longest_run(ids):
    longest = run = 0
    before = None
    for token in ids:
        run = run + 1 if token == before else 1
        before, longest = token, max(longest, run)
    return longest


def commands():
    """README's lines that are shell commands, in order, without their comments."""
    for block in run_doc_commands.blocks_of(ROOT / "README.md"):
        if not block.skipped:
            yield from (line.split("  #")[0].strip() for line in block.commands().splitlines() if line.strip())


def verb_of(line):
    words = shlex.split(line)
    return words[1] if words and words[0] == "build/fathom" else ""


def makes_text(line):
    return verb_of(line) == "generate"


def main():
    fathom, smollm2 = os.path.abspath(sys.argv[1]), os.environ.get("FATHOM_SMOLLM2")
    lines = [line for line in commands() if "fetch_smollm2" not in line or makes_text(line)]
    read = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name in ("configs", "models", "tools", "README.md"):
            (work / name).symlink_to(ROOT / name)
        (work / "build").mkdir()
        (work / "build/fathom").symlink_to(fathom)
        environment = {**os.environ, "model": smollm2 or "", "FATHOM_MODELS": str(ROOT / "models"),
                       "XDG_CACHE_HOME": str(work / "cache")}
        for line in lines:
            needs_model = "$model" in line or "fetch_smollm2" in line
            prepares = verb_of(line) in ("tune", "calibrate") or line.startswith(("head ", "tail "))
            if not makes_text(line) and not prepares or needs_model and not smollm2:
                continue
            line = line.replace("$(tools/fetch_smollm2.sh)", "$model")
            if makes_text(line) and "--json" not in line:
                line += " --json"
            result = subprocess.run(["bash", "-c", line], cwd=work, env=environment, capture_output=True, text=True)
            if result.returncode:
                sys.exit(f"{line}: {result.stderr}")
            if not makes_text(line):
                continue
            answer, read = json.loads(result.stdout), read + 1
            print(f"{line}\n  {answer['text'][:200]!r}", flush=True)
            if longest_run(answer["ids"]) > MOST:
                sys.exit(f"{line}: a token comes {longest_run(answer['ids'])} times in a row: {answer['text']!r}")
    if read < 2:
        sys.exit("README.md has no examples that write text")


if __name__ == "__main__":
    main()
