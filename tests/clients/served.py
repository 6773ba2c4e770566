"""A `fathom serve` on a free port, for the tests of clients. FATHOM: the program; FATHOM_THREADS: its -t, 0 unless set."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FATHOM = os.environ.get("FATHOM", str(ROOT / "build/fathom"))
ENVIRONMENT = dict(os.environ, FATHOM_MODELS=os.environ.get("FATHOM_MODELS", str(ROOT / "models")))
THREADS = ["-t", os.environ.get("FATHOM_THREADS", "0")]
WAIT = 180  # seconds at most for anything


def fathom(*words):
    """What the program prints for WORDS."""
    done = subprocess.run([FATHOM, *words, *THREADS], capture_output=True, text=True, env=ENVIRONMENT, timeout=WAIT)
    if done.returncode:
        raise AssertionError(f"fathom {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


class Server:
    """With `with`: it is ready inside, and told to end after."""

    def __init__(self, *options, model="builtin"):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [FATHOM, "serve", "-m", model, "--port", "0", *THREADS, *options], stdout=subprocess.PIPE, stderr=self.errors,
            text=True, env=ENVIRONMENT)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on https?://127\.0\.0\.1:(\d+)\n", line)
        if not found:
            self.process.wait(WAIT)
            raise AssertionError(f"the server said {line!r}: {self.log()}")
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        end = time.monotonic() + WAIT
        while self.status("/health") != 200:
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"the server is not ready: {self.log()}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(WAIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.process.stdout.close()
        if code:
            raise AssertionError(f"the server ended with {code}: {self.log()}")
        self.errors.close()

    def status(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=WAIT) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=WAIT) as reply:
            return reply.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT) as reply:
            return json.load(reply)

    def log(self):
        self.errors.seek(0)
        return self.errors.read()
