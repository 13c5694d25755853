# SPDX-License-Identifier: MIT
"""What Python adds to a call: calls of no tokens, which compute nothing, and of 64 tokens, 8 heads of 32 channels."""

import statistics
import time

import nprf
import numpy as np


def microseconds(run, calls=300, rounds=15):
    run()

    def once():
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return 1e6 * (time.perf_counter() - start) / calls

    return statistics.median(once() for _ in range(rounds))


def main():
    nprf.set_num_threads(1)
    rng = np.random.default_rng(0)
    features, weights = nprf.orf(32, 32), rng.standard_normal((8, 32), dtype=np.float32)
    position = nprf.T5(weights)
    for n in (0, 64):
        x = rng.standard_normal((1, 8, n, 32), dtype=np.float32)
        us = microseconds(lambda: nprf.attention(x, x, x, features=features, position=position))
        print(f"NumPy, {n} tokens: forward {us:.1f} us")
    try:
        import torch
        from nprf import torch as nprf_torch
    except ImportError:
        return
    torch.set_num_threads(1)
    bias = torch.from_numpy(weights).requires_grad_()
    for n in (0, 64):
        x = torch.randn(1, 8, n, 32, requires_grad=True)
        call = lambda: nprf_torch.attention(x, x, x, bias, features=features, position="t5")  # noqa: E731
        dy = torch.ones(1, 8, n, 32)
        with torch.no_grad():
            forward = microseconds(call)
        saving, both = microseconds(call), microseconds(lambda: call().backward(dy))
        print(
            f"PyTorch, {n} tokens: forward {forward:.1f} us, to be followed by backward {saving:.1f}, both {both:.1f}"
        )


if __name__ == "__main__":
    main()
