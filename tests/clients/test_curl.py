"""The examples with curl in docs/serving.md, as they are written: only the port that they reach is another one."""
import json
import re
import subprocess
import unittest

from served import ROOT, WAIT, Server

FENCE = re.compile(r"```sh\n(.*?)```", re.S)


class Curl(unittest.TestCase):
    def test_the_examples(self):
        blocks = [block for block in FENCE.findall((ROOT / "docs/serving.md").read_text()) if re.search(r"^curl ", block, re.M)]
        self.assertGreater(len(blocks), 3)
        with Server("--alias", "SmolLM2", "--chat-template", "chatml", "-c", "512") as server:
            for block in blocks:
                to = f"localhost:8080:127.0.0.1:{server.port}"
                script = f'curl() {{ command curl --fail --connect-to {to} "$@"; echo; }}\n{block}'
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=WAIT)
                self.assertEqual(done.returncode, 0, block + done.stdout + done.stderr)
                self.check(done.stdout, block)

    def check(self, output, block):
        self.assertTrue(output.strip(), block)
        for line in output.splitlines():
            data = line.removeprefix("data: ")
            if data.startswith("{"):
                self.assertNotIn("error", json.loads(data), block)


if __name__ == "__main__":
    unittest.main()
