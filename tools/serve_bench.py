#!/usr/bin/env python3
"""fathom serve against llama.cpp's server on the same files, in turns: tokens a second and the time to the first token.

    tools/serve_bench.py --peer PATH/TO/llama-server -m SmolLM2-135M.Q8_0.gguf [-m …] [--rounds 3]

Without --peer: fathom alone. --shares: the CPU time of the server's threads at 1, 16 and 64 streams instead.

Other programs on the machine spoil a measurement: a run in which they took more than --others of the CPU time is made again,
up to --tries times, after waiting for a quiet moment; the last column says what they took in the runs that count."""
import argparse
import contextlib
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOAD_SECONDS = 120  # until a server must be ready


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_ready(process, port):
    end = time.monotonic() + LOAD_SECONDS
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the server did not become ready: {' '.join(process.args)}")
        time.sleep(0.2)


@contextlib.contextmanager
def running(command, port):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(process, port)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def fathom_command(args, model, port, slots):
    return [args.fathom, "serve", "-m", model, "-t", str(args.threads), "--port", str(port), "--parallel", str(slots),
            "--quiet"]


def peer_command(args, model, port, context):
    """A context for each slot, and no memory of earlier prompts beyond the slots: none comes twice."""
    return [args.peer, "-m", model, "-t", str(args.threads), "-tb", str(args.threads), "--host", "127.0.0.1", "--port",
            str(port), "-np", str(args.slots), "-c", str(context * args.slots), "--cache-ram", "0"]


def busy_seconds():
    """CPU seconds of the whole machine since its start, and how many there could have been."""
    ticks = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), sum(ticks) / os.sysconf("SC_CLK_TCK")


def own_seconds(processes):
    """CPU seconds of the servers, of this script and of what it ran to the end."""
    total = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    for process in processes:
        words = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def wait_for_quiet(args, processes):
    end = time.monotonic() + args.patience
    while time.monotonic() < end:
        if others_during(processes, lambda: time.sleep(1))[1] <= args.others:
            return


def others_during(processes, call):
    """What the call returns, and the share of the machine's CPU time that other programs took meanwhile."""
    (busy, possible), own = busy_seconds(), own_seconds(processes)
    result = call()
    (busy_then, possible_then), own_then = busy_seconds(), own_seconds(processes)
    return result, max(0.0, (busy_then - busy - (own_then - own)) / (possible_then - possible))


def undisturbed(args, processes, call):
    """The least disturbed of some runs, and what others took in it."""
    best = None
    for _ in range(args.tries):
        wait_for_quiet(args, processes)
        found = others_during(processes, call)
        best = min(best or found, found, key=lambda each: each[1])
        if best[1] <= args.others:
            break
    return best


def load(args, servers, *options):
    """serve_load's JSON."""
    command = [args.load, "--json", "--new-tokens", str(args.new), "--text", args.text]
    for name, port in servers.items():
        command += ["--server", f"{name}=127.0.0.1:{port}"]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["loads"]


def spread(values):
    middle = statistics.median(values)
    return f"{middle:.0f} ({min(values):.0f}–{max(values):.0f})"


def together(rounds):
    """One load of several rounds: speeds in a list, of the other numbers the median."""
    merged = dict(rounds[0])
    merged["tokens_per_second"] = [speed for each in rounds for speed in each["tokens_per_second"]]
    merged["errors"] = sum(each["errors"] for each in rounds)
    merged["first_token_seconds"] = {"p95": statistics.median(each["first_token_seconds"]["p95"] for each in rounds)}
    return merged


def row(model, prompt, ours, theirs, others):
    name = pathlib.Path(model).stem
    speed = ours["tokens_per_second"]
    cells = [name, prompt, int(ours["clients"]), spread(speed)]
    first = ours["first_token_seconds"]["p95"]
    errors = ours["errors"]
    if theirs:
        ratios = [a / b for a, b in zip(speed, theirs["tokens_per_second"])]
        cells += [spread(theirs["tokens_per_second"]),
                  f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"]
        errors += theirs["errors"]
    cells.append(f"{first:.2f}")
    if theirs:
        cells.append(f"{theirs['first_token_seconds']['p95']:.2f}")
    return cells + [errors, f"{100 * max(others):.0f} %"]


def compare(args, model, prompt):
    """A row for each number of clients."""
    ports = {"fathom": free_port()}
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(running(fathom_command(args, model, ports["fathom"], args.slots), ports["fathom"]))]
        if args.peer:
            ports["peer"] = free_port()
            context = (prompt + args.new + 127) // 128 * 128
            processes.append(stack.enter_context(running(peer_command(args, model, ports["peer"], context), ports["peer"])))
        rows = []
        for clients in args.clients.split(","):
            requests = max(args.least, args.waves * int(clients))
            rounds = []
            seed = iter(range(1000 * int(clients), 1000 * int(clients) + 1000))  # no prompt comes twice
            for _ in range(args.rounds):
                rounds.append(undisturbed(args, processes, lambda: load(
                    args, ports, "--clients", clients, "--requests", str(requests), "--prompt-tokens", str(prompt),
                    "--seed", str(next(seed)))))
            lines = [together([loads[i] for loads, _ in rounds]) for i in range(len(ports))]
            rows.append(row(model, prompt, lines[0], lines[1] if args.peer else None, [each for _, each in rounds]))
            show(rows[-1])
        return rows


def shares(args, model):
    """CPU time by thread: the server's own threads against the engine's and its pool's."""
    show(["streams", "tokens/s", "fathom-http", "others but engine and pool", "other programs"])
    for streams in (1, 16, 64):
        port = free_port()
        with running(fathom_command(args, model, port, streams), port) as process:
            seed = iter(range(1000))
            found, others = undisturbed(args, [process], lambda: load(
                args, {"fathom": port}, "--clients", str(streams), "--requests", str(max(4, 2 * streams)), "--prompt-tokens",
                "16", "--rounds", str(args.rounds), "--pid", str(process.pid), "--seed", str(next(seed)))[0])
        by_name = found["thread_seconds"]
        all_threads = sum(by_name.values())
        rest = sum(share for name, share in by_name.items()
                   if name not in ("fathom-http", "fathom-engine", "fathom-pool"))
        show([streams, spread(found["tokens_per_second"]), f"{100 * by_name['fathom-http'] / all_threads:.2f} %", f"{100 * rest / all_threads:.2f} %",
              f"{100 * others:.0f} %"])


def show(cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", required=True, help="GGUF; may be repeated")
    parser.add_argument("--peer", help="llama.cpp's llama-server")
    parser.add_argument("--fathom", default=str(ROOT / "build/fathom"))
    parser.add_argument("--load", default=str(ROOT / "build/bench/serve_load"))
    parser.add_argument("--text", default=str(ROOT / "docs/benchmarks.md"), help="prompts are pieces of it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--prompts", default="128,1024", help="their lengths in tokens")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--waves", type=int, default=1, help="requests of each client in a round")
    parser.add_argument("--least", type=int, default=4, help="requests of a round, at least")
    parser.add_argument("--others", type=float, default=0.05, help="share of the CPU time that other programs may take")
    parser.add_argument("--tries", type=int, default=3, help="runs of a round until others took no more")
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for a quiet moment")
    parser.add_argument("--shares", action="store_true")
    args = parser.parse_args()
    if args.shares:
        for model in args.model:
            shares(args, model)
        return 0
    columns = ["model", "prompt", "clients", "tokens/s"]
    columns += ["peer's tokens/s", "ratio"] if args.peer else []
    columns += ["first token p95, s"] + (["peer's"] if args.peer else []) + ["errors", "other programs"]
    show(columns)
    show(["---"] * len(columns))
    for model in args.model:
        for prompt in args.prompts.split(","):
            compare(args, model, int(prompt))
    return 0


if __name__ == "__main__":
    sys.exit(main())
