# SPDX-License-Identifier: MIT
"""What Python adds to a call of the C++ library.

overhead.py [--out OUT.json]

A call of no tokens computes nothing, but does all that Python adds: arrays are described, never copied. It is compared with
calls of 64 tokens of 8 heads of 32 channels, and of 2048 tokens of 8 heads of 64. One thread, float32, 32 random features,
T5's biases. Medians of rounds that make all calls one after another.
"""

import argparse
import json
import statistics
import time

import nprf
import numpy as np

SIZES = {0: (1, 8, 0, 32), 64: (1, 8, 64, 32), 2048: (1, 8, 2048, 64)}


def numpy_calls():
    """{(what, tokens): function}"""
    nprf.set_num_threads(1)
    rng = np.random.default_rng(0)
    position = nprf.T5(rng.standard_normal((8, 32), dtype=np.float32))

    def call(x, attention):
        return lambda: attention(x, x, x)

    calls = {}
    for n, size in SIZES.items():
        x = rng.standard_normal(size, dtype=np.float32)
        calls["NumPy, forward", n] = call(x, nprf.Attention(nprf.orf(size[3], 32), position))
    return calls


def torch_calls():
    import torch
    from nprf import torch as nprf_torch

    torch.set_num_threads(1)
    bias = torch.randn(8, 32, requires_grad=True)
    calls = {}
    for n, size in SIZES.items():
        x, dy, features = torch.randn(size, requires_grad=True), torch.ones(size), nprf.orf(size[3], 32)

        def forward(x=x, features=features):
            return nprf_torch.attention(x, x, x, bias, features=features, position="t5")

        def without_gradients(forward=forward):
            with torch.no_grad():
                forward()

        calls["PyTorch, forward", n] = without_gradients
        calls["PyTorch, forward + backward", n] = lambda forward=forward, dy=dy: forward().backward(dy)
    return calls


def microseconds(calls, rounds=15, least=0.02):
    """The median time of each call; in each round all of them, each for at least so many seconds."""
    samples = {name: [] for name in calls}
    for _ in range(rounds + 1):  # the first warms up
        for name, call in calls.items():
            count, start = 0, time.perf_counter()
            while count == 0 or time.perf_counter() - start < least:
                call()
                count += 1
            samples[name].append(1e6 * (time.perf_counter() - start) / count)
    return {name: statistics.median(each[1:]) for name, each in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    options = parser.parse_args()
    calls = numpy_calls()
    try:
        calls.update(torch_calls())
    except ImportError:
        print("PyTorch is not installed")
    found = microseconds(calls)
    for what in dict.fromkeys(what for what, _ in calls):
        added = found[what, 0]
        others = ", ".join(
            f"{n} tokens {found[what, n]:.1f} us ({100 * added / found[what, n]:.2g} % added)" for n in SIZES if n > 0
        )
        print(f"{what}: no tokens {added:.1f} us, {others}")
    if options.out:
        with open(options.out, "w") as out:
            json.dump([{"call": what, "tokens": n, "us": us} for (what, n), us in found.items()], out, indent=1)


if __name__ == "__main__":
    main()
