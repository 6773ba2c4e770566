#!/usr/bin/env python3
"""fathom serve, the real program on a free port: requests as clients send them, the curl examples of docs/serving.md, and
how it ends. FATHOM: the program."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
WAIT = 120  # seconds at most for anything
ENDLESS = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


class Server:
    def __init__(self, *options):
        environment = dict(os.environ, FATHOM_MODELS=str(ROOT / "models"))
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [os.environ["FATHOM"], "serve", "-m", "builtin", "-c", "512", "--port", "0", "--alias", "small", *options],
            stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment)
        line = self.process.stdout.readline()
        self.port = int(re.fullmatch(r"listening on https?://127\.0\.0\.1:(\d+)\n", line)[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)

    def ask(self, path, body=None, headers=None):
        """The status, and the reply as JSON or text."""
        connection = self.connect()
        headers = dict(headers or {})
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, json.loads(text) if reply.getheader("Content-Type") == "application/json" else text

    def wait_until_ready(self):
        end = time.monotonic() + WAIT
        while self.ask("/health")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("not ready: " + self.log())
            time.sleep(0.02)
        return self

    def log(self):
        self.errors.seek(0)
        return self.errors.read()

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self

    def wait(self):
        """The exit code."""
        code = self.process.wait(WAIT)
        self.process.stdout.close()
        return code

    def __del__(self):
        if self.process.poll() is None:
            self.process.kill()
            self.wait()
        self.errors.close()


def events(text):
    return [line[6:] for line in text.split("\n") if line.startswith("data: ")]


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--chat-template", "chatml", "--log-format", "json", "--timeout", "60").wait_until_ready()

    @classmethod
    def tearDownClass(cls):
        code = cls.server.signal().wait()
        assert code == 0, f"exit {code}: {cls.server.log()}"
        lines = cls.server.log().splitlines()
        records = [json.loads(line) for line in lines]  # every line, those of the start included
        assert any(r.get("path") == "/v1/completions" and r["status"] == 200 for r in records), lines
        assert any(r.get("level") == "info" and r["message"].startswith("ready: ") for r in records), lines
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", r["time"]) for r in records), lines

    def test_whole_and_streamed(self):
        body = {"model": "small", "prompt": "The old man", "max_tokens": 20, "temperature": 0}
        status, whole = self.server.ask("/v1/completions", body)
        self.assertEqual(status, 200, whole)
        self.assertEqual(whole["usage"]["completion_tokens"], 20)
        status, text = self.server.ask("/v1/completions", {**body, "stream": True})
        self.assertEqual(status, 200)
        pieces = events(text)
        self.assertEqual(pieces[-1], "[DONE]")
        self.assertEqual("".join(json.loads(p)["choices"][0]["text"] for p in pieces[:-1]), whole["choices"][0]["text"])

    def test_the_same_text_as_generate(self):
        body = {"prompt": "The old man", "max_tokens": 24, "temperature": 0, "budget": 0.8}
        _, served = self.server.ask("/v1/completions", body)
        alone = subprocess.run(
            [os.environ["FATHOM"], "generate", "-m", "builtin", "-c", "512", "-p", "The old man", "-n", "24", "--temp", "0",
             "--budget", "0.8", "--json"], capture_output=True, text=True, check=True,
            env=dict(os.environ, FATHOM_MODELS=str(ROOT / "models")))
        self.assertEqual(served["choices"][0]["text"], json.loads(alone.stdout)["text"])

    def test_chat(self):
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "stream": True,
                "stream_options": {"include_usage": True}}
        status, text = self.server.ask("/v1/chat/completions", body)
        chunks = [json.loads(p) for p in events(text)[:-1]]
        self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 5)

    def test_an_answer_by_a_schema(self):
        schema = {"type": "object", "properties": {"z": {"type": "integer", "minimum": 1, "maximum": 9}, "a": {"type": "boolean"}},
                  "required": ["z", "a"], "additionalProperties": False}
        shape = {"type": "json_schema", "json_schema": {"name": "both", "schema": schema}}
        status, reply = self.server.ask("/v1/completions", {"prompt": "Once", "max_tokens": 60, "seed": 1, "response_format": shape})
        self.assertEqual(status, 200, reply)
        self.assertEqual(list(json.loads(reply["choices"][0]["text"])), ["z", "a"])  # in the schema's order

    def test_many_at_once(self):
        body = {"prompt": "The old man", "max_tokens": 30, "temperature": 1, "seed": 3}
        want = self.server.ask("/v1/completions", body)[1]["choices"][0]["text"]
        got = []

        def one(streams):
            text = self.server.ask("/v1/completions", {**body, "stream": streams})[1]
            if streams:
                got.append("".join(json.loads(p)["choices"][0]["text"] for p in events(text)[:-1]))
            else:
                got.append(text["choices"][0]["text"])

        threads = [threading.Thread(target=one, args=(i % 2 == 0,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, [want] * 16)

    def test_errors(self):
        status, reply = self.server.ask("/v1/completions", {"prompt": "a", "tools": [{}]})
        self.assertEqual((status, reply["error"]["param"]), (400, "tools"))
        self.assertEqual(self.server.ask("/nothing")[0], 404)
        self.assertEqual(self.server.ask("/v1/completions")[0], 405)
        self.assertEqual(self.server.ask("/v1/completions", {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "timeout": 0.001})[0], 504)

    def test_a_client_that_goes_cancels(self):
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps({**ENDLESS, "n": 4}), {"Content-Type": "application/json"})
        time.sleep(0.05)
        connection.close()
        end = time.monotonic() + WAIT
        while not re.search(r"num_requests_running\S* 0\n", self.server.ask("/metrics")[1]):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_the_documentations_examples(self):
        page = (ROOT / "docs" / "serving.md").read_text()
        blocks = [b for b in re.findall(r"```sh\n(.*?)```", page, re.S) if "curl" in b]
        self.assertGreater(len(blocks), 3)
        for block in blocks:
            command = block.replace("localhost:8080", f"127.0.0.1:{self.server.port}").replace("SmolLM2", "small")
            done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, timeout=WAIT)
            self.assertEqual(done.returncode, 0, command + done.stderr)
            self.assertNotIn('"error"', done.stdout, command)
            self.assertTrue(done.stdout.strip(), command)


class Ending(unittest.TestCase):
    def stream(self, server, answers):
        """A streamed reply that has begun."""
        connection = server.connect()
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps({**ENDLESS, "n": answers, "stream": True}),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read(10)
        return reply

    def signal_is_taken(self, server):
        """SIGTERM, and the server drains."""
        server.signal()
        end = time.monotonic() + WAIT
        while server.ask("/health")[0] != 503:
            self.assertLess(time.monotonic(), end)

    def test_what_runs_may_end(self):
        server = Server().wait_until_ready()
        reply = self.stream(server, 16)
        self.signal_is_taken(server)
        self.assertEqual(server.ask("/v1/completions", ENDLESS)[0], 503)
        rest = reply.read().decode()
        self.assertTrue(rest.endswith("data: [DONE]\n\n"), rest[-200:])
        self.assertEqual(server.wait(), 0, server.log())

    def test_what_takes_too_long_is_cut_and_told(self):
        server = Server("--drain-seconds", "0").wait_until_ready()
        reply = self.stream(server, 16)
        server.signal()
        self.assertIn("shutting down", reply.read().decode())
        self.assertEqual(server.wait(), 0, server.log())

    def test_a_second_signal_ends_at_once(self):
        server = Server("--drain-seconds", "100").wait_until_ready()
        reply = self.stream(server, 32)
        self.signal_is_taken(server)
        server.signal()
        self.assertEqual(server.wait(), -signal.SIGTERM)  # by the signal that was sent, no other
        with self.assertRaises((http.client.IncompleteRead, ConnectionError)):
            reply.read()

    def test_one_after_the_other_is_never_429(self):
        server = Server("--parallel", "2", "--queue", "0").wait_until_ready()
        connection = server.connect()
        self.addCleanup(connection.close)
        for number in range(40):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 2, "n": 2}),
                               {"Content-Type": "application/json", "X-Request-Id": f"mine-{number}"})
            reply = connection.getresponse()
            reply.read()
            self.assertEqual((reply.status, reply.getheader("X-Request-Id")), (200, f"mine-{number}"))
        self.assertEqual(server.signal().wait(), 0)

    def test_ctrl_c(self):
        self.assertEqual(Server().wait_until_ready().signal(signal.SIGINT).wait(), 130)

    def test_keys(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("alice:secret-one\n")
            keys.flush()
            server = Server("--api-key-file", keys.name).wait_until_ready()
            self.assertEqual(server.ask("/v1/models")[0], 401)
            self.assertEqual(server.ask("/v1/models", headers={"Authorization": "Bearer secret-one"})[0], 200)
            self.assertEqual(server.signal().wait(), 0)
            self.assertNotIn("secret-one", server.log())

    def test_bad_options(self):
        def run(*words):
            return subprocess.run([os.environ["FATHOM"], "serve", *words], capture_output=True, text=True, timeout=WAIT,
                                  env=dict(os.environ, FATHOM_MODELS=str(ROOT / "models")))
        for name in ["--host", "--api-key-file", "--tls-cert", "--tls-key"]:
            done = run("-m", "builtin", "--port", "0", name, "")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(name + " is empty", done.stderr)
        for words, said in [(["-m", "builtin", "--allow-origin", "https://x/"], "--allow-origin"),
                            (["-m", "builtin", "--allow-host", "a b"], "--allow-host"),
                            (["-m", "builtin", "--timeout", "1e10"], "--timeout"),
                            (["-m", "builtin", "--tls-cert", "x"], "--tls-key"), (["-m", "builtin", "--cache-size", "much"], "--cache-size"),
                            (["-m", "builtin", "--budget-floor", "2"], "--budget-floor"),
                            (["-m", "builtin", "--port", "0", "--chat-template", "no-such"], "--chat-template: "), ([], "-m is missing")]:
            done = run(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
        self.assertEqual(run("-m", "/nonexistent", "--port", "0").returncode, 1)


if __name__ == "__main__":
    unittest.main()
