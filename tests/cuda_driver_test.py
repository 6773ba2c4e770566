#!/usr/bin/env python3
"""What a CUDA build says where the driver is missing or too old: one line, and the exit status of an error. FATHOM: the
program; OLD_DRIVER: the folder of tests/old_driver.cc's library."""
import os
import pathlib
import subprocess
import unittest

COMMAND = [os.environ["FATHOM"], "generate", "-m", "builtin", "-p", "The", "-n", "1", "--device", "cuda"]


def run(**environment):
    return subprocess.run(COMMAND, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)


class Driver(unittest.TestCase):
    def expect(self, done, line):
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, rf"\A(fathom: )?(error: )?{line}\n\Z")

    @unittest.skipIf(pathlib.Path("/proc/driver/nvidia").exists(), "this machine has a driver")
    def test_missing(self):
        self.expect(run(), "cuda: no NVIDIA driver is installed")

    def test_too_old(self):
        self.expect(run(LD_LIBRARY_PATH=os.environ["OLD_DRIVER"]),
                    r"cuda: the NVIDIA driver is too old: it has CUDA 11\.4, this build needs 1[2-9]\.\d+")


if __name__ == "__main__":
    unittest.main()
