# SPDX-License-Identifier: MIT
"""One causal head whose near biases depend on the query (nprf.QueryBiased), beside exact softmax with the same biases.

query_bias.py [--tokens N ...] [--channels D] [--near W] [--rank R]

Seconds of a second forward pass, one thread, float32, queries and keys of norm 1: nprf with Taylor features beyond the near
field; PyTorch's scaled_dot_product_attention, for 512 queries at a time and the keys up to them, with a mask that has
their biases; and nprf's own exact softmax, to which the error is relative.
"""

import argparse
import time

import nprf
import numpy as np
import torch


def by_sdpa(q, k, v, r, vectors, near):
    """y of unit queries and keys [n, d], in parts of queries."""
    rows = []
    for first in range(0, len(q), 512):
        end = min(first + 512, len(q))
        mask = torch.full((end - first, end), 0.0)
        lags = torch.arange(end) - torch.arange(first, end)[:, None]
        window = slice(max(first - near + 1, 0), end)  # the keys that are near to any of these queries
        biases, at = r[first:end] @ vectors, (lags[:, window] + near - 1).clamp(0, near - 1)
        mask[:, window] = torch.where(lags[:, window] > -near, biases.gather(1, at), 0)
        mask.masked_fill_(lags > 0, -torch.inf)
        part = [each[None, None] for each in (q[first:end], k[:end], v[:end], mask)]
        rows.append(torch.nn.functional.scaled_dot_product_attention(*part[:3], part[3], scale=1.0)[0, 0])
    return torch.cat(rows)


def seconds(call):
    call()  # which takes memory from the operating system
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 65536])
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--near", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    nprf.set_num_threads(1)
    d, near, rank = options.channels, options.near, options.rank
    rng = np.random.default_rng(1)
    vectors = (0.5 * rng.standard_normal((rank, near))).astype(np.float32)
    position = nprf.QueryBiased(vectors)
    attention = nprf.Attention(nprf.taylor(d), position, True, near=near)
    print(
        f"d = {d}, near = {near}, rank = {rank}\n{'tokens':>8} {'nprf, s':>9} {'SDPA':>9} {'exact':>9} {'error, %':>9}"
    )
    for n in options.tokens:
        q, k, v, r = (rng.standard_normal((n, size)).astype(np.float32) for size in (d, d, d, rank))
        q, k = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (q, k))
        joined = np.concatenate([q, r], 1)
        ours, y = seconds(lambda: attention(joined, k, v))
        tensors = [torch.from_numpy(each) for each in (q, k, v, r, vectors)]
        sdpa, of_torch = seconds(lambda: by_sdpa(*tensors, near))
        exact, expected = seconds(lambda: nprf.reference.softmax_attention(joined, k, v, position, causal=True))
        assert np.abs(of_torch.numpy() - expected).max() < 1e-4
        error = 100 * np.linalg.norm(y - expected) / np.linalg.norm(expected)
        print(f"{n:8} {ours:9.3f} {sdpa:9.3f} {exact:9.3f} {error:9.2f}", flush=True)


if __name__ == "__main__":
    main()
