#!/usr/bin/env python3
"""tools/gpu_report.py: its hash follows everything that nvcc reads, and nothing else; the report counts what ran, and is
written of programs that these sources made."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent / "tools/gpu_report.py"
FILES = {
    "src/ops/rows/steer_cuda.cu": '#include "ops/rows/steer.h"\n#include <vector>\n',
    "src/ops/rows/steer.h": '#pragma once\n#include "base/both.h"\n',
    "src/base/both.h": "#pragma once\n",
    "src/ops/kernels/warp.cuh": "#pragma once\n",
    "src/ops/rows/steer_cpu.cc": '#include "ops/rows/cpu.h"\n',
    "src/ops/rows/cpu.h": "#pragma once\n",
}


class Tool(unittest.TestCase):
    """A folder of sources with the tool in it, and a build folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        for name in ("tools", "docs", "build"):
            (self.root / name).mkdir()
        shutil.copy(TOOL, self.root / "tools")
        self.build = self.root / "build"

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, self.root / "tools/gpu_report.py", *arguments], capture_output=True,
                              text=True)

    def output(self, *arguments):
        done = self.run_tool(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refusal(self, *arguments):
        done = self.run_tool(*arguments)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def log(self, name, *lines):
        path = self.build / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def report(self):
        return json.loads((self.root / "docs/gpu_check.json").read_text())


class Hash(Tool):
    def hash(self):
        return self.output("hash")

    def test_follows_what_nvcc_reads(self):
        before = self.hash()
        self.assertEqual(before, self.hash())
        for name in FILES:
            path = self.root / name
            with self.subTest(name):
                path.write_text(FILES[name] + "int changed;\n")
                self.assertEqual(self.hash() != before, not name.endswith(("cpu.cc", "cpu.h")))
                path.write_text(FILES[name] + "// a comment\n\n/* another\n*/\n")
                self.assertEqual(self.hash(), before)
            path.write_text(FILES[name])

    def test_what_looks_like_a_comment_in_a_string_counts(self):
        path = self.root / "src/ops/kernels/warp.cuh"
        path.write_text('const char* site = "//one"; // here\n')
        before = self.hash()
        path.write_text('const char* site = "//two"; // there\n')
        self.assertNotEqual(self.hash(), before)


class Programs(Tool):
    def test_are_those_that_were_built(self):
        self.assertIn("there is no", self.refusal("programs", self.build))
        self.output("begin", self.build, "ops_test", "train_test")
        self.assertIn("there is no", self.refusal("programs", self.build), "the build may have failed")
        self.output("end", self.build)
        self.assertEqual(self.output("programs", self.build), "ops_test train_test\n")

    def test_of_other_sources_are_refused(self):
        self.output("begin", self.build, "ops_test")
        self.output("end", self.build)
        path = self.root / "src/ops/rows/steer_cpu.cc"
        path.write_text(FILES["src/ops/rows/steer_cpu.cc"] + "// changed\n")
        self.assertIn("other sources than these", self.refusal("programs", self.build))
        path.write_text(FILES["src/ops/rows/steer_cpu.cc"])
        self.output("programs", self.build)

    def test_of_a_folder_that_is_gone_are_refused(self):
        self.output("begin", self.build, "ops_test")
        self.output("end", self.build)
        notes = json.loads((self.build / "gpu_built.json").read_text())
        (self.build / "gpu_built.json").write_text(json.dumps(notes | {"folder": "/not/here"}))
        self.assertIn("ln -s", self.refusal("programs", self.build))


WHOLE = ("[       OK ] Steer.Rows (12 ms)", "[       OK ] Steer.Blocks (3 ms)", "[  FAILED  ] Steer.Lists (5 ms)",
         "[==========] 4 tests from 1 test suite ran. (20 ms total)", "[  PASSED  ] 2 tests.",
         "[  SKIPPED ] 1 test, listed below:", "[  FAILED  ] 1 test, listed below:")


class Write(Tool):
    def setUp(self):
        super().setUp()
        self.output("begin", self.build, "ops_test", "train_test")
        self.output("end", self.build)

    def counts(self, *logs):
        self.output("write", self.build, *logs)
        return self.report()["tests"]

    def test_counts_each_kind(self):
        self.assertEqual(self.counts(f"ops_test={self.log('a.log', *WHOLE)}"),
                         {"ops_test": {"passed": 2, "failed": 1, "skipped": 1}})

    def test_parts_of_a_program_add_up(self):
        logs = [self.log(f"{part}.log", *WHOLE) for part in "ab"] + [self.log("c.log", *WHOLE[:5])]
        tests = self.counts(f"ops_test={logs[0]}", f"ops_test={logs[1]}", f"train_test={logs[2]}")
        self.assertEqual(tests, {"ops_test": {"passed": 4, "failed": 2, "skipped": 2},
                                 "train_test": {"passed": 2, "failed": 0, "skipped": 0}})

    def test_a_log_that_is_cut_off_counts_as_one_that_failed(self):
        self.assertEqual(self.counts(f"ops_test={self.log('a.log', *WHOLE[:2])}"),
                         {"ops_test": {"passed": 0, "failed": 1, "skipped": 0}})

    def test_says_of_which_sources(self):
        said = self.output("write", self.build, f"ops_test={self.log('a.log', *WHOLE)}")
        self.assertIn("Steer.Rows 0.0", said)
        self.assertEqual(self.report()["sources"], self.output("hash").strip())
        self.assertEqual(self.run_tool("check").stderr, "")
        (self.root / "src/ops/kernels/warp.cuh").write_text("#pragma twice\n")
        self.assertIn("have changed", self.run_tool("check").stderr)

    def test_says_what_the_sanitizers_found(self):
        log = f"ops_test={self.log('a.log', *WHOLE)}"
        self.output("write", self.build, "memcheck:yes:yes", "racecheck:no:yes", log)
        self.assertEqual(self.report()["sanitizers"], {"memcheck": {"clean": True, "planted_found": True},
                                                       "racecheck": {"clean": False, "planted_found": True}})
        self.output("write", self.build, log)
        self.assertNotIn("sanitizers", self.report())
        self.assertIn("memcheck:yes", self.refusal("write", self.build, "memcheck:yes", log))

    def test_other_sources_are_refused(self):
        (self.root / "src/ops/kernels/warp.cuh").write_text("#pragma twice\n")
        self.assertIn("other sources", self.refusal("write", self.build, f"ops_test={self.log('a.log', *WHOLE)}"))
        self.assertFalse((self.root / "docs/gpu_check.json").exists())


if __name__ == "__main__":
    unittest.main()
