# SPDX-License-Identifier: MIT
"""gpu_bench.py CONTENDER RESULTS.json POINTS [MINUTES]: times nprf and PyTorch on a GPU, case by case in turn.

Prints Markdown tables, and writes all numbers and the points of the picture. CONTENDER is the program of contender.cu.
The rivals (rivals.py) run in a process of their own if python3 can import torch, since one of them may fail so that the
process cannot use the device any more. Cases that do not fit in MINUTES (default 8) are left out, and the tables say
so."""

import json
import pathlib
import subprocess
import sys
import time

import gpu_tables as tables

ONE_HEAD, MANY = (1, 1), (4, 16)  # batch, heads
TOO_LONG = 1000  # ms; cases that would take longer are not measured
LARGEST_ERROR = {"float": 1e-4, "bf16": 2e-2}  # of a row, relative to its largest entry; beyond, the result is wrong


class Program:
    """A program that answers each line with a line of JSON. It is restarted if it has ended."""

    def __init__(self, *command):
        self.command = command
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        for _ in range(2):
            try:
                print(*words, file=self.process.stdin, flush=True)
            except BrokenPipeError:
                pass  # it may have printed the reason
            answer = self.process.stdout.readline()
            if answer:
                return json.loads(answer)
            self.start()
        return {"refused": "the program ended"}


class Rivals(Program):
    """The program rivals.py. `names` are the rivals that it found to be right, `remark` says what it found of each."""

    def __init__(self):
        super().__init__(sys.executable, str(pathlib.Path(__file__).with_name("rivals.py")))
        answer = self.ask(json.dumps({"check": True}))
        self.remark = answer.get("remark", "PyTorch is left out: its program ended")
        self.names = answer.get("names", [])

    def measure(self, *case):
        """{"ms": .., "bytes": in addition to inputs} or {"failed": reason}."""
        answer = self.ask(json.dumps({"measure": case}))
        return self.failed_or(answer)

    def decode(self, *case):
        """The same for the next token."""
        return self.failed_or(self.ask(json.dumps({"decode": case})))

    @staticmethod
    def failed_or(answer):
        return {"failed": answer["refused"]} if "refused" in answer else answer


class Bench:
    def __init__(self, contender, rivals, deadline):
        self.contender, self.rivals, self.deadline = contender, rivals, deadline
        self.ours, self.theirs = {}, {}
        self.slow = {}  # the last n and time of each quadratic case
        self.decoding, self.decoding_rivals = [], None

    def left_out(self, what, n):
        """The reason why a case is not measured; None if it is."""
        if time.monotonic() > self.deadline:
            return "out of time"
        if what in self.slow:
            last, ms = self.slow[what]
            if ms * (n / last) ** 2 > TOO_LONG:
                return f"would take about {ms * (n / last) ** 2:.0f} ms"
        return None

    def measure_ours(self, case):
        what = tuple(value for field, value in case.items() if field != "n")
        reason = self.left_out(what, case["n"])
        found = {"refused": reason} if reason else self.contender.ask("case", *tables.key(case))
        if found.get("engine") == "direct":
            self.slow[what] = case["n"], found["ms"]
        if "error" in found and not found["error"] <= LARGEST_ERROR[case["storage"]]:
            found["refused"] = f"WRONG: error {found['error']:.2g}"
        self.ours[tables.key(case)] = {**case, "asked": case["engine"], **found}

    def measure_rivals(self, case, ms):
        for name in self.rivals.names:
            for m in ms if name.startswith("paper") else [None]:
                if tables.rival_key(case) + (name, m) in self.theirs:
                    continue
                passes = tables.rival_key(case)[0]
                what = (name, m, passes, case["direction"], case["batch"], case["heads"])
                reason = self.left_out(what, case["n"])
                found = (
                    {"failed": reason}
                    if reason
                    else self.rivals.measure(
                        name, case["n"], case["batch"], case["heads"], case["direction"], passes, m
                    )
                )
                if not m and "ms" in found:
                    self.slow[what] = case["n"], found["ms"]
                self.theirs[tables.rival_key(case) + (name, m)] = {**case, "rival": name, "m": m, **found}

    def run(self, ns, ms, heads=ONE_HEAD, direction="bidirectional", passes="forward", storages=("float", "bf16")):
        """Measures all engines and all rivals for each n, in turn."""
        for n in ns:
            print(f"  {passes}, {direction}, {heads[0]} x {heads[1]} heads, n = {n}", file=sys.stderr, flush=True)
            shape = {"pass": passes, "direction": direction, "batch": heads[0], "heads": heads[1], "n": n}
            for m in ms:
                for position in ("dense", "t5"):
                    for storage in storages:
                        for engine in tables.ENGINES:
                            rest = {"storage": storage, "position": position, "m": m, "engine": engine}
                            # banded equals direct here; FFTs use no tensor cores, and are not measured for causal weights
                            without_ffts = direction == "causal" or passes == "both16"
                            if (position, engine) == ("dense", "banded") or without_ffts and engine in tables.FFTS:
                                continue
                            self.measure_ours({**shape, **rest})
            self.measure_rivals(shape, ms)

    def run_decoding(self, heads, tokens):
        """The next token: ours, which do not depend on the number of tokens before, and the rivals after so many."""
        print(f"  decoding, {heads[0]} x {heads[1]} heads", file=sys.stderr, flush=True)
        if self.decoding_rivals is None:
            answer = self.rivals.ask(json.dumps({"check_decoding": True}))
            self.decoding_rivals = answer.get("names", [])
            print(f"Decoding: {answer.get('remark', 'PyTorch is left out: its program ended')}", flush=True)
        for storage in ("float", "bf16"):
            for position, map_, near in (("t5", "orf", 0), ("alibi", "orf", 0), ("t5", "taylor", 32)):
                case = {"storage": storage, "position": position, "map": map_, "near": near}
                late = self.left_out("decoding", 0)
                found = {"refused": late} if late else self.contender.ask("decode", *case.values(), *heads)
                if "error" in found and not found["error"] <= LARGEST_ERROR[storage]:
                    found["refused"] = f"WRONG: error {found['error']:.2g}"
                self.decoding.append({**case, "batch": heads[0], "heads": heads[1], **found})
        for n in tokens:
            for name in self.decoding_rivals:
                late = self.left_out("decoding", n)
                found = {"failed": late} if late else self.rivals.decode(name, n, *heads)
                self.decoding.append({"rival": name, "batch": heads[0], "heads": heads[1], "n": n, **found})

    def rival_times(self, case):
        """{name: ms} of the rivals that were measured."""
        return {
            name: found["ms"]
            for (*shape, name, m), found in self.theirs.items()
            if tuple(shape) == tables.rival_key(case) and m in (None, case["m"]) and "ms" in found
        }


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: gpu_bench.py CONTENDER RESULTS.json POINTS [MINUTES]")
    start, minutes = time.monotonic(), float(sys.argv[4]) if len(sys.argv) == 5 else 8
    contender = Program(sys.argv[1])
    device = contender.ask("device")
    if "refused" in device:
        print(f"skipped: no CUDA device ({device['refused']})")
        sys.exit(77)
    ceilings = contender.ask("ceilings")
    rivals = Rivals()
    print(f"{device['device']}, {device['multiprocessors']} multiprocessors. {rivals.remark}\n", flush=True)
    bench = Bench(contender, rivals, start + 60 * minutes)
    bench.run(tables.NS, [16, 32])
    bench.run([1024, 2048, 4096, 8192, 16384, 65536], [32], heads=MANY)
    bench.run([4096, 16384, 65536], [32], direction="causal")
    bench.run([4096, 16384, 65536], [32], passes="both")
    bench.run([4096, 16384, 65536], [32], passes="both16", storages=["bf16"])
    bench.run([4096, 16384, 65536], [64])
    bench.run_decoding((1, 16), [1024, 8192, 65536])
    bench.run_decoding((8, 16), [1024, 8192, 65536])
    bench.run_decoding((64, 16), [1024, 8192])
    rows = tables.compare(bench)
    tables.print_ours(bench)
    tables.print_rivals(bench)
    tables.print_decoding(bench)
    tables.print_rates(bench, ceilings)
    tables.print_targets(rows, bench)
    found = tables.curves(bench)
    with open(sys.argv[2], "w") as out:
        results = {
            "device": device,
            "ceilings": ceilings,
            "ours": [*bench.ours.values()],
            "rivals": [*bench.theirs.values()],
            "decoding": bench.decoding,
        }
        json.dump({**results, "targets": rows, "pictures": {"gpu": found}}, out, indent=1)
    tables.write_points(sys.argv[3], found)
    print(f"\n{(time.monotonic() - start) / 60:.1f} minutes. All numbers: {sys.argv[2]}")


if __name__ == "__main__":
    main()
