#!/usr/bin/env python3
"""A soak of `fathom serve`: thousands of mixed requests, many of them cancelled, cut off or malformed.

Every answer must be what the same request gets alone (`fathom generate`, or a server that writes one answer at a time where
that program has no such option); an answer that was cut is a prefix of it. In the end no thread, socket or page of the cache
is left, and memory has not grown.

    tests/soak.py --requests 10000
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import queue
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FATHOM = os.environ.get("FATHOM", str(ROOT / "build/fathom"))
ENVIRONMENT = dict(os.environ, FATHOM_MODELS=os.environ.get("FATHOM_MODELS", str(ROOT / "models")))
WAIT = 300  # seconds at most for one reply
PLACES = 8
ROUNDS = 5
MODEL = ["-m", "builtin", "-c", "256", "-t", os.environ.get("FATHOM_THREADS", "0")]
PROMPTS = ["The old man", "The old man and the sea", "Once upon a time there was a", "The United States", "In 1990, the",
           "She said that the government would not, and that it had no plans to", "Über den Bäumen 世界", "1 2 3 4 5 6 7 8"]
SCHEMAS = [{"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["name", "n"], "additionalProperties": False},
           {"type": "array", "items": {"enum": ["red", "grün", 3, None]}, "minItems": 1, "maxItems": 3}]


class Trouble(Exception):
    pass


# ---- the requests


class Case:
    """A request, and what it must be answered with: texts and reasons by choice."""

    def __init__(self, path, body, words=None):
        self.path, self.body, self.words = path, body, words  # words: as `fathom generate` has it; None: it cannot
        self.want = None

    def texts_of(self, reply):
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        return [(choice["message"]["content"] if "message" in choice else choice["text"], choice["finish_reason"]) for choice in choices]


def sampling(rng, body, words):
    if rng.random() < 0.4:
        body["temperature"] = 0
        words += ["--temp", "0"]
        return
    body.update(temperature=rng.choice([0.7, 1, 1.3]), seed=rng.randrange(1000), top_k=rng.choice([0, 20]), top_p=rng.choice([1, 0.9]))
    words += ["--temp", str(body["temperature"]), "-s", str(body["seed"]), "--top-k", str(body["top_k"]), "--top-p", str(body["top_p"]),
              "--min-p", "0"]


def extras(rng, body, words, masked):
    if rng.random() < 0.5:
        body["budget"] = rng.choice([0.6, 0.65, 0.7, 0.8, 0.9, 0.95, 1])
        words += ["--budget", str(body["budget"])]
    if rng.random() < 0.3 and not masked:
        body["stop"] = rng.choice([["."], [" the", "\n"], ["zebra"], ["is", " a "]])
        words += [word for stop in body["stop"] for word in ("--stop", stop)]
    if rng.random() < 0.3 and not masked:
        body["ignore_eos"] = True
        words += ["--ignore-eos"]
    if rng.random() < 0.2:
        body["logit_bias"] = {"261": -100, "14": 2}
        words += ["--logit-bias", "261:-100", "--logit-bias", "14:2"]
    if rng.random() < 0.3 and body.get("budget", 1) > 0.65:  # drafts run at 0.6
        body["speculate"] = rng.choice([2, 4])
        words += ["--speculate", str(body["speculate"])]


def make_case(rng):
    prompt, body, words = rng.choice(PROMPTS), {"max_tokens": rng.randint(1, 40) if rng.random() < 0.8 else 160}, []
    masked = rng.random() < 0.2
    sampling(rng, body, words)
    extras(rng, body, words, masked)
    words += ["-n", str(body["max_tokens"]), "-p", prompt]
    if rng.random() < 0.3 or masked:
        body["messages"] = [{"role": "user", "content": prompt}]
        case = Case("/v1/chat/completions", body, words + ["--chat-template", "chatml"])
    else:
        body["prompt"] = prompt
        case = Case("/v1/completions", body, words)
    if masked:
        body["response_format"] = rng.choice(
            [{"type": "json_object"}, *({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}} for schema in SCHEMAS)])
    elif rng.random() < 0.2:
        body["n"], case.words = rng.randint(2, 4), None
    if rng.random() < 0.2:
        body["return_depth"] = True
    return case


# Each is (request, statuses); a body of None is a GET.
def malformed(rng):
    plain = {"prompt": "a", "max_tokens": 2}
    return rng.choice([
        ("/v1/completions", b"{\"prompt\": ", {}, {400}),
        ("/v1/completions", b"[1, 2]", {}, {400}),
        ("/v1/completions", b"[" * 3000, {}, {400}),
        ("/v1/completions", {"prompt": 5}, {}, {400}),
        ("/v1/completions", {**plain, "temperature": "hot"}, {}, {400}),
        ("/v1/completions", {**plain, "n": 1000000}, {}, {400}),
        ("/v1/completions", {**plain, "budget": 0.01}, {}, {400}),
        ("/v1/completions", {**plain, "tools": [{}]}, {}, {400}),
        ("/v1/completions", {**plain, "model": "another"}, {}, {404}),
        ("/v1/completions", {"prompt": "word " * 2000}, {}, {400}),
        ("/v1/completions", {"prompt": [99999999]}, {}, {400}),
        ("/v1/completions", {**plain, "response_format": {"type": "json_schema", "json_schema": {"schema": {"multipleOf": 2}}}}, {}, {400}),
        ("/v1/chat/completions", {"messages": []}, {}, {400}),
        ("/v1/completions", plain, {"Content-Type": "text/plain"}, {400, 415}),
        ("/v1/completions", plain, {"Origin": "http://elsewhere.example"}, {403}),
        ("/v1/completions", plain, {"Host": "elsewhere.example"}, {400, 403, 421}),
        ("/v1/completions", plain, {"X-Long": "x" * 40000}, {431}),
        ("/v1/completions", plain, {"Transfer-Encoding": "gzip"}, {400}),
        ("/v1/completions", None, {}, {405}),
        ("/nothing", None, {}, {404}),
    ])


# ---- the server


class Server:
    def __init__(self, *options):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([FATHOM, "serve", *MODEL, "--port", "0", "--speculate", "--chat-template", "chatml", "-q", *options],
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True, env=ENVIRONMENT)
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)\n", line)
        if not found:
            raise Trouble(f"the server said {line!r}: {self.log()}")
        self.port = int(found[1])
        self.wait_for(lambda: self.ask("/health")[0] == 200, "being ready")

    def wait_for(self, done, what, seconds=WAIT):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end or self.process.poll() is not None:
                raise Trouble(f"waited in vain for {what}: {self.log()}")
            time.sleep(0.05)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)

    def ask(self, path, body=None, connection=None):
        used = connection or self.connect()
        send(used, path, body)
        reply = used.getresponse()
        text = reply.read().decode()
        if not connection:
            used.close()
        return reply.status, json.loads(text) if text.startswith("{") else text

    def metric(self, name, label=""):
        found = re.search(rf"^fathom:{name}\{{.*{label}\}} (\S+)$", self.ask("/metrics")[1], re.M)
        return float(found[1]) if found else 0.0

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def sockets(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def megabytes(self):
        return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def quiet(self):
        self.wait_for(lambda: self.metric("num_requests_running") == 0 and self.metric("num_requests_waiting") == 0, "the last answers")

    def emptied_cache(self):
        """The share of the cache in use when every place keeps one short prefix: the same as long as no page is lost."""
        self.quiet()
        for i in range(PLACES):
            self.ask("/v1/completions", {"prompt": [300 + i], "max_tokens": 1, "temperature": 0})
        self.quiet()
        return self.metric("kv_cache_usage_perc")

    def log(self):
        self.errors.seek(0)
        return self.errors.read()[-4000:]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT)
        if code:
            raise Trouble(f"the server ended with {code}: {self.log()}")


def send(connection, path, body, headers=None):
    data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    fields = {} if data is None else {"Content-Type": "application/json"}
    connection.request("GET" if data is None else "POST", path, data, {**fields, **(headers or {})})


# ---- what the answers must be


def alone_by_program(case):
    shape = case.body.get("response_format")
    with tempfile.NamedTemporaryFile("w") as schema:
        words = ["generate", *MODEL, "--json", "-q", *case.words]
        if shape and "json_schema" in shape:
            json.dump(shape["json_schema"]["schema"], schema)
            schema.flush()
            words += ["--json-schema", schema.name]
        elif shape:
            words += ["--json-object"]
        done = subprocess.run([FATHOM, *words], capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        raise Trouble(f"fathom {words}: {done.stderr}")
    answer = json.loads(done.stdout)
    case.want = [(answer["text"], answer["finish_reason"])]


def find_wants(cases):
    lone = Server("--parallel", "1")
    for case in cases:
        if case.words:
            alone_by_program(case)
        else:
            status, reply = lone.ask(case.path, case.body)
            if status != 200:
                raise Trouble(f"{case.body}: {status}, {reply}")
            case.want = case.texts_of(reply)
        check_json(case)
    lone.end()


def check_json(case):
    for text, reason in case.want if "response_format" in case.body else []:
        if reason == "stop":
            json.loads(text)


# ---- the load


class Load:
    def __init__(self, server, cases, seed):
        self.server, self.cases, self.seed = server, cases, seed
        self.counts, self.troubles, self.lock = collections.Counter(), [], threading.Lock()

    def run(self, first, last, workers):
        """Requests number FIRST to LAST, by WORKERS at a time."""
        numbers = queue.SimpleQueue()
        for number in range(first, last):
            numbers.put(number)
        threads = [threading.Thread(target=self.work, args=(numbers,)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def work(self, numbers):
        connection = self.server.connect()  # kept open between whole answers
        while len(self.troubles) < 5:
            try:
                number = numbers.get_nowait()
            except queue.Empty:
                break
            rng = random.Random(f"{self.seed} {number}")
            kind = rng.choices(["whole", "stream", "cancel", "disconnect", "deadline", "malformed"], [40, 25, 10, 10, 5, 10])[0]
            case = rng.choice(self.cases)
            try:
                outcome = getattr(self, kind)(rng, case, connection)
            except (Trouble, OSError, http.client.HTTPException, ValueError, KeyError) as trouble:
                connection.close()
                outcome = "trouble"
                with self.lock:
                    self.troubles.append(f"request {number}, {kind}, {case.path} {json.dumps(case.body)}: {trouble!r}")
            with self.lock:
                self.counts[f"{kind}: {outcome}"] += 1
        connection.close()

    def whole(self, _, case, connection):
        status, reply = self.server.ask(case.path, case.body, connection)
        if status != 200:
            raise Trouble(f"status {status}: {reply}")
        got = case.texts_of(reply)
        if got != case.want:
            raise Trouble(f"got {got}, alone it is {case.want}")
        return "ok"

    def stream(self, _, case, connection):
        with_usage = {**case.body, "stream": True, "stream_options": {"include_usage": True}}
        got, reasons, ended = self.read_events(case, with_usage, connection, None)
        if not ended or list(zip(got, reasons)) != case.want:
            raise Trouble(f"got {got} {reasons} (ended: {ended}), alone it is {case.want}")
        return "ok"

    def cancel(self, rng, case, _):
        """Closes after some events, or while the whole answer is awaited."""
        return self.leave(rng, case, reset=False)

    def disconnect(self, rng, case, _):
        """The same with a reset; some leave in the middle of the request."""
        if rng.random() < 0.2:
            return self.leave_in_request(case)
        return self.leave(rng, case, reset=True)

    def leave(self, rng, case, reset):
        connection = self.server.connect()
        connection.connect()
        if reset:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if rng.random() < 0.3:
            send(connection, case.path, case.body)
            time.sleep(rng.random() * 0.05)
            connection.close()
            return "while it waited"
        got, _, ended = self.read_events(case, {**case.body, "stream": True}, connection, rng.randint(1, 12))
        connection.close()
        self.check_prefixes(got, case)
        return "after its end" if ended else "in the middle"

    def leave_in_request(self, case):
        body = json.dumps(case.body).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), WAIT) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            head = f"POST {case.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            raw.sendall(head.encode() + body[:len(body) // 2])
        return "in the request"

    def deadline(self, rng, case, connection):
        body = {**case.body, "timeout": rng.choice([0.001, 0.02, 0.1])}
        if rng.random() < 0.5:
            status, reply = self.server.ask(case.path, body, connection)
            if status not in (200, 504) or (status == 200 and case.texts_of(reply) != case.want):
                raise Trouble(f"status {status}: {reply}")
            return str(status)
        got, _, ended = self.read_events(case, {**body, "stream": True}, connection, None, may_fail=True)
        self.check_prefixes(got, case)
        return "ended" if ended else "cut"

    def malformed(self, rng, *_):
        path, body, headers, statuses = malformed(rng)
        connection = self.server.connect()
        try:
            send(connection, path, body, headers)
            status = connection.getresponse().status
        except (BrokenPipeError, ConnectionResetError):  # answered and closed before all of it was sent
            return "closed"
        finally:
            connection.close()
        if status not in statuses:
            raise Trouble(f"{path} {str(body)[:80]} {str(headers)[:80]}: status {status}, not one of {statuses}")
        return "refused"

    def read_events(self, case, body, connection, most, may_fail=False):
        """Texts and reasons of the choices, and whether the stream ended as it should; MOST: leaves after so many events."""
        send(connection, case.path, body)
        reply = connection.getresponse()
        texts, reasons, events = [""] * len(case.want), [None] * len(case.want), 0
        if reply.status != 200:
            text = reply.read()
            if may_fail and reply.status == 504:
                return texts, reasons, False
            raise Trouble(f"status {reply.status}: {text}")
        while line := reply.readline():
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                reply.read()
                return texts, reasons, True
            event = json.loads(line[6:])
            if "error" in event:
                if not may_fail:
                    raise Trouble(f"an error came: {event}")
                reply.read()
                if connection.sock.recv(1):  # the server closes behind an error
                    raise Trouble("bytes came after the end of a stream with an error")
                connection.close()
                return texts, reasons, False
            for choice in event["choices"]:
                texts[choice["index"]] += (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
                reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
            events += 1
            if most and events >= most:
                reply.close()
                return texts, reasons, False
        return texts, reasons, False

    def check_prefixes(self, got, case):
        for text, (want, _) in zip(got, case.want):
            if not want.startswith(text):
                raise Trouble(f"got {text!r}, which is no prefix of {want!r}")


# ---- the whole


def soak(options):
    rng = random.Random(options.seed)
    cases = [make_case(rng) for _ in range(options.cases)]
    begun = time.monotonic()
    find_wants(cases)
    print(f"soak: {len(cases)} requests alone in {time.monotonic() - begun:.0f} s", flush=True)
    server = Server("--parallel", str(PLACES), "--queue", "512", "--cache-size", options.cache)
    try:
        wrong = run_rounds(server, Load(server, cases, options.seed), options)
    except BaseException:
        server.process.kill()
        raise
    server.end()
    return wrong


def run_rounds(server, load, options):
    empty, sockets = server.emptied_cache(), server.sockets()
    memory, threads, begun, edge = [], [], time.monotonic(), 0
    for number in range(1, ROUNDS + 1):
        first, edge = edge, options.requests * number // ROUNDS
        load.run(first, edge, options.workers)
        server.quiet()
        memory.append(server.megabytes())
        threads.append(server.threads())
        print(f"soak: {edge} requests, {time.monotonic() - begun:.0f} s, {memory[-1]:.1f} MB, {threads[-1]} threads", flush=True)
        if load.troubles:
            return load.troubles
    for name, count in sorted(load.counts.items()):
        print(f"soak: {count:6} {name}")
    print(f"soak: {server.metric('num_preemptions_total'):6.0f} times an answer made room for others")
    wrong = list(load.troubles)
    if len(set(threads)) > 1:
        wrong.append(f"threads after each round: {threads}")
    if memory[-1] > memory[0] + options.growth:
        wrong.append(f"memory grew by more than {options.growth} MB: {memory}")
    gone = load.counts["cancel: in the middle"] + load.counts["disconnect: in the middle"]
    aborted = server.metric("request_success_total", 'finished_reason="abort"')
    if gone and not aborted:  # some were written to their end before the server saw it
        wrong.append(f"{gone} clients left in the middle of an answer, {aborted:.0f} answers were cancelled for it")
    left = server.emptied_cache()
    if left != empty:
        wrong.append(f"the emptied cache holds {left}, before the first request it was {empty}")
    try:
        server.wait_for(lambda: server.sockets() <= sockets, "closed sockets", 30)
    except Trouble:
        wrong.append(f"{server.sockets()} open files, before the first request {sockets}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--cases", type=int, default=48, help="different requests")
    parser.add_argument("--workers", type=int, default=16, help="clients at a time")
    parser.add_argument("--growth", type=float, default=24, help="MB that memory may grow by after the first fifth")
    parser.add_argument("--cache", default="3M", help="the server's cache; 3M: not enough for long answers in all places")
    parser.add_argument("--seed", type=int, default=1)
    wrong = soak(parser.parse_args())
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
