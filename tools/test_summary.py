#!/usr/bin/env python3
"""test_summary.py BUILD: the cases of the tests that ctest has run, counted, and those that failed by name.

Reads BUILD/test_results: ctest.xml, what ctest says of its tests, and NAME.xml, the cases of a GoogleTest program or of a
part of it. A test without such a file is one case. The last line has the form of ctest's own, which .ci/run reads. Exit
status 1 if a case failed.
"""
import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def cases_of(test, folder):
    """Of one of ctest's tests: (name, status, why it was skipped) for each of its cases."""
    name, passed = test.get("name"), test.get("status") == "run"
    prefix, file = name.rsplit(".", 1)[0], folder / f"{name}.xml"
    if not file.exists():  # no GoogleTest program, or one that crashed
        return [(name, "run" if passed else "failed", "")]
    cases = []
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        skipped = case.find("skipped")
        status = "failed" if case.find("failure") is not None else "skipped" if skipped is not None else case.get("status")
        why = "" if skipped is None else skipped.get("message", "").strip().split("\n")[-1]
        cases.append((f"{prefix}.{case.get('classname')}.{case.get('name')}", status, why))
    cases = [case for case in cases if case[1] != "notrun"]
    if not passed and all(status != "failed" for _, status, _ in cases):  # it ended badly after its last case
        cases.append((name, "failed", ""))
    return cases


def main():
    folder = pathlib.Path(sys.argv[1]) / "test_results"
    tests = ElementTree.parse(folder / "ctest.xml").getroot().iter("testcase")
    cases = [case for test in tests for case in cases_of(test, folder)]
    failed = [name for name, status, _ in cases if status == "failed"]
    skipped = collections.Counter(why for _, status, why in cases if status == "skipped")
    for why, count in skipped.most_common():
        print(f"{count} skipped: {why}")
    for name in failed:
        print(f"failed: {name}")
    share = 100 * (len(cases) - len(failed)) // max(1, len(cases))
    print(f"{share}% tests passed, {len(failed)} tests failed out of {len(cases)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
