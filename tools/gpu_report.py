#!/usr/bin/env python3
"""What was checked on a GPU, and on which sources: docs/gpu_check.json.

    tools/gpu_report.py hash                        # of the CUDA sources as they are, without comments
    tools/gpu_report.py begin BUILD PROGRAM ...     # notes in BUILD what they are about to be built from
    tools/gpu_report.py end BUILD                   # they are built
    tools/gpu_report.py programs BUILD              # names them; an error where the sources are others now
    tools/gpu_report.py write BUILD [TOOL:CLEAN:FOUND ...] NAME=LOG ...
        # GoogleTest's output of each program, or of each part of it; of each tool of compute-sanitizer, yes or no: was it
        # silent on them, did it find a planted fault
    tools/gpu_report.py check                       # warns when the sources have changed since

CI has no GPU: it compiles the CUDA sources, and this report says when they last ran. tools/gpu_check.sh writes it.
"""
import datetime
import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs/gpu_check.json"
NOTES = "gpu_built.json"  # in the build folder


def files_below(*suffixes):
    return [p for p in (ROOT / "src").rglob("*") if p.suffix in suffixes]


def cuda_sources():
    """What nvcc reads: the CUDA sources and each header that one of them includes, directly or through another."""
    found, left = set(), files_below(".cu", ".cuh")
    while left:
        path = left.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        left += [ROOT / "src" / name for name in re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(), re.M)]
    return found


def what_compiles(text):
    """The text without comments, each stretch of white space as one blank: what is left changes programs."""
    text = re.sub(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', lambda m: m[1] or " ", text, flags=re.S)
    return " ".join(text.split())


def hash_of(files, read):
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(ROOT)}\0{read(path.read_text())}\0".encode())
    return digest.hexdigest()


def sources_hash():
    return hash_of(cuda_sources(), what_compiles)


def all_sources():
    return hash_of(files_below(".cu", ".cuh", ".cc", ".h", ".inc"), str)


def said(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def begin(build, programs):
    notes = {"sources": all_sources(), "commit": said("git", "rev-parse", "--short", "HEAD"), "folder": str(ROOT),
             "programs": programs}
    path = pathlib.Path(build) / NOTES
    path.unlink(missing_ok=True)  # a build that fails leaves no notes
    path.with_name(NOTES + ".begun").write_text(json.dumps(notes, indent=1) + "\n")


def end(build):
    path = pathlib.Path(build) / NOTES
    path.with_name(NOTES + ".begun").rename(path)


def built(build):
    path = pathlib.Path(build) / NOTES
    if not path.exists():
        sys.exit(f"gpu_report: there is no {path}: tools/gpu_check.sh BUILD build writes it")
    notes = json.loads(path.read_text())
    if notes["sources"] != all_sources():
        sys.exit(f"gpu_report: the programs of {build} were built from other sources than these")
    if not pathlib.Path(notes["folder"]).exists():  # its name is compiled in
        sys.exit(f"gpu_report: the programs of {build} read their data below {notes['folder']}: "
                 f"ln -s {ROOT} {notes['folder']}")
    return notes


def counts(log):
    """Tests that passed, failed and were left out, from GoogleTest's last lines; and how long each took, in ms. What did
    not end counts as one more that failed."""
    text = pathlib.Path(log).read_text(errors="replace")
    number = {kind: int(found[-1]) if (found := re.findall(rf"^\[  {kind} *\] (\d+) tests?", text, re.M)) else 0
              for kind in ("PASSED", "FAILED", "SKIPPED")}
    if not re.search(r"^\[==========\] \d+ tests? .* ran\.", text, re.M):
        number["FAILED"] += 1
    times = {name: int(ms) for name, ms in re.findall(r"^\[ +(?:OK|FAILED) +\] (\S+).* \((\d+) ms\)$", text, re.M)}
    return {kind.lower(): count for kind, count in number.items()}, times


def sanitizer(entry):
    tool, *answers = entry.split(":")
    if len(answers) != 2 or not set(answers) <= {"yes", "no"}:
        sys.exit(f"gpu_report: expected TOOL:CLEAN:FOUND with yes or no, got {entry}")
    return tool, {"clean": answers[0] == "yes", "planted_found": answers[1] == "yes"}


def write(build, entries):
    tests, times = {}, {}
    sanitizers = dict(sanitizer(entry) for entry in entries if "=" not in entry)
    for name, log in (entry.split("=", 1) for entry in entries if "=" in entry):
        number, lasted = counts(log)
        sums = tests.setdefault(name, dict.fromkeys(number, 0))
        for kind in number:
            sums[kind] += number[kind]
        times.setdefault(name, {}).update(lasted)
    report = {"sources": sources_hash(), "date": datetime.date.today().isoformat(), "commit": built(build)["commit"],
              "gpu": said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"), "tests": tests}
    if sanitizers:
        report["sanitizers"] = sanitizers
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    for name, lasted in times.items():
        slow = ", ".join(f"{case} {lasted[case] / 1000:.1f}" for case in sorted(lasted, key=lasted.get)[:-6:-1])
        said_of = ", ".join(f"{count} {kind}" for kind, count in tests[name].items())
        print(f"{name}: {said_of}; {sum(lasted.values()) / 1000:.0f} s, most of them {slow}")
    print(f"gpu_report: {REPORT.relative_to(ROOT)} written")


def check():
    if not REPORT.exists():
        print("gpu_report: warning: the CUDA sources were never checked on a GPU", file=sys.stderr)
        return
    report = json.loads(REPORT.read_text())
    if report["sources"] != sources_hash():
        print(f"gpu_report: warning: the CUDA sources have changed since they ran on a GPU ({report['gpu']}, "
              f"{report['date']}, {report['commit']}): run tools/gpu_check.sh on one", file=sys.stderr)


def main():
    match sys.argv[1:]:
        case ["hash"]:
            print(sources_hash())
        case ["begin", build, *programs] if programs:
            begin(build, programs)
        case ["end", build]:
            end(build)
        case ["programs", build]:
            print(*built(build)["programs"])
        case ["write", build, *entries] if entries:
            write(build, entries)
        case ["check"]:
            check()
        case _:
            sys.exit(__doc__)


main()
