# SPDX-License-Identifier: MIT
"""What Python adds to a call of the C++ library.

overhead.py [--cpp PROGRAM] [--out OUT.json]

A call of no tokens computes nothing, but does all that Python adds to each: arrays are described, never copied. It is
compared with calls of 64 tokens of 8 heads of 32 channels, and of 2048 tokens of 8 heads of 64. One thread, float32, 32
random features, T5's biases. Processor time of this process; medians of rounds that make all calls one after another.

PROGRAM, from overhead.cpp, makes the same calls in C++, in the same rounds, for x86-64-v4 (nprf.cpu_level()):

    g++ -std=c++20 -O3 -DNDEBUG -march=x86-64-v4 -fopenmp -DNPRF_SEPARATE=1 -I include \\
      -isystem /usr/include/eigen3 python/bench/overhead.cpp cmake/instances/attention_float.cpp \\
      cmake/instances/product_float.cpp -o build/overhead

It makes each call into results that it keeps, and into new ones, as Python makes them. Beside PyTorch it makes an
attention anew in each call, as PyTorch does for biases that training changes.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import time

import nprf
import numpy as np

SIZES = {0: (1, 8, 0, 32), 64: (1, 8, 64, 32), 2048: (1, 8, 2048, 64)}
FORWARD, BACKWARD = "forward", "forward + backward"
RESULTS = {"kept": False, "new": True}  # of C++


def microseconds_of(call, least):
    """Microseconds of one call, of as many as take this long."""
    count, start = 0, time.process_time()
    while count == 0 or time.process_time() - start < least:
        call()
        count += 1
    return 1e6 * (time.process_time() - start) / count


def numpy_calls():
    """{(library, what, tokens): function}"""
    nprf.set_num_threads(1)
    rng = np.random.default_rng(0)
    position = nprf.T5(rng.standard_normal((8, 32), dtype=np.float32))
    calls = {}
    for n, size in SIZES.items():
        q, k, v, dy = (rng.standard_normal(size, dtype=np.float32) for _ in range(4))
        attention = nprf.Attention(nprf.orf(size[3], 32), position)

        def backward(q=q, k=k, v=v, dy=dy, attention=attention):
            y, saved = attention.forward(q, k, v)
            attention.backward(saved, dy)

        calls["NumPy", FORWARD, n] = lambda q=q, k=k, v=v, attention=attention: attention(q, k, v)
        calls["NumPy", BACKWARD, n] = backward
    return calls


def torch_calls():
    import torch
    from nprf import torch as nprf_torch

    torch.set_num_threads(1)
    bias = torch.randn(8, 32, requires_grad=True)
    calls = {}
    for n, size in SIZES.items():
        q, k, v = (torch.randn(size, requires_grad=True) for _ in range(3))
        dy, features = torch.randn(size), nprf.orf(size[3], 32)

        def forward(q=q, k=k, v=v, features=features):
            return nprf_torch.attention(q, k, v, bias, features=features, position="t5")

        def without_gradients(forward=forward):
            with torch.no_grad():
                forward()

        def backward(forward=forward, dy=dy, inputs=(q, k, v, bias)):
            torch.autograd.grad(forward(), inputs, dy)

        calls["PyTorch", FORWARD, n] = without_gradients
        calls["PyTorch", BACKWARD, n] = backward
    return calls


class Program:
    """overhead.cpp."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, n, backward, new_biases, new_results, least):
        self.process.stdin.write(f"{n} {SIZES[n][3]} {backward:d} {new_biases:d} {new_results:d} {least}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def microseconds(calls, program, rounds=9, least=0.1):
    """The time of each call in each round, for each at least so many seconds."""
    samples = {name: [] for name in calls}
    for _ in range(rounds + 1):  # the first warms up
        for name, call in calls.items():
            samples[name].append(microseconds_of(call, least))
        for (library, what, n), results in itertools.product(calls, RESULTS) if program else ():
            us = program(n, what == BACKWARD, library == "PyTorch", RESULTS[results], least)
            samples.setdefault((f"C++ with {results} results beside {library}", what, n), []).append(us)
    return {name: each[1:] for name, each in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpp", metavar="PROGRAM")
    parser.add_argument("--out")
    options = parser.parse_args()
    calls = numpy_calls()
    try:
        calls.update(torch_calls())
    except ImportError:
        print("PyTorch is not installed")
    samples = microseconds(calls, Program(options.cpp) if options.cpp else None)
    found = {name: statistics.median(each) for name, each in samples.items()}
    for library, what, n in found:
        if n != 0:
            continue
        added = found[library, what, 0]
        print(f"{library}, {what}: no tokens {added:.1f} us", end="")
        for n in SIZES:
            if n > 0:
                us = found[library, what, n]
                print(f"; {n} tokens {us:.1f} us, of which that is {100 * added / us:.2g} %", end="")
                for results in RESULTS:
                    cpp = samples.get((f"C++ with {results} results beside {library}", what, n))
                    if cpp:
                        more = statistics.median(a / b for a, b in zip(samples[library, what, n], cpp)) - 1
                        print(f", {100 * more:.2g} % more than C++ with {results} results", end="")
        print()
    if options.out:
        with open(options.out, "w") as out:
            json.dump(
                [{"library": a, "call": b, "tokens": n, "us": us} for (a, b, n), us in found.items()], out, indent=1
            )


if __name__ == "__main__":
    main()
