#!/usr/bin/env python3
"""What was checked on a GPU, and on which sources: docs/gpu_check.json.

    tools/gpu_report.py hash                        # of the CUDA sources as they are
    tools/gpu_report.py write NAME=LOG ...          # GoogleTest's output of each program: tools/gpu_check.sh does it
    tools/gpu_report.py check                       # warns when the sources have changed since

CI has no GPU: it compiles the CUDA sources, and this report says when they last ran.
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


def sources_hash():
    files = sorted(p for p in (ROOT / "src").rglob("*") if p.suffix in (".cu", ".cuh"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def said(*command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def counts(log):
    """Tests that passed, failed and were left out, from GoogleTest's last lines."""
    text = pathlib.Path(log).read_text()
    number = {kind: int(found[-1]) if (found := re.findall(rf"^\[  {kind} *\] (\d+) tests?", text, re.M)) else 0
              for kind in ("PASSED", "FAILED", "SKIPPED")}
    return {"passed": number["PASSED"], "failed": number["FAILED"], "skipped": number["SKIPPED"]}


def write(logs):
    report = {"sources": sources_hash(), "date": datetime.date.today().isoformat(),
              "commit": said("git", "rev-parse", "--short", "HEAD"),
              "gpu": said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
              "tests": {name: counts(log) for name, log in (entry.split("=", 1) for entry in logs)}}
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
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
        case ["write", *logs] if logs:
            write(logs)
        case ["check"]:
            check()
        case _:
            sys.exit(__doc__)


main()
