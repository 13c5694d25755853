# SPDX-License-Identifier: MIT
"""torch_rivals.py OUT.json: what torch takes for one head of dense relative positions, one thread, float, d = d_v = 64,
for `targets` to print beside Engine::lanes. Medians of whole forward calls."""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

D, M = 64, 32


def normalised(n):
    return F.normalize(torch.randn(n, D), dim=-1)


def softmax(q, k, v, bias):
    """Exact, with the n x n bias ready."""
    return torch.softmax(torch.addmm(bias, q, k.T), dim=-1) @ v


def scaled_dot_product(q, k, v, bias):
    scaled = q * D**0.5  # which it divides by
    heads = [x[None, None] for x in (scaled, k, v)]
    return F.scaled_dot_product_attention(*heads, attn_mask=bias[None, None])[0, 0]


def features(x, w):
    z = x @ w.T - x.square().sum(-1, keepdim=True) / 2
    return torch.exp(z - z.max())


def paper(q, k, v, c, w):
    """y_i = phi(q_i) D1_i / phi(q_i) D2_i, D = Toeplitz(c) (phi(k) o [v 1]) by transforms (Luo et al. 2021)."""
    n = q.shape[0]
    u = torch.cat([v, torch.ones(n, 1)], dim=1)  # (n,d_v+1)
    x = features(k, w)[:, :, None] * u[:, None, :]  # (n,m,d_v+1)
    # y[i] = sum_j c[j-i] x[j]: the lag l stands at -l modulo 2n
    kernel = torch.zeros(2 * n)
    kernel[(-torch.arange(-(n - 1), n)) % (2 * n)] = c
    spectrum = torch.fft.rfft(kernel)
    t = torch.fft.irfft(torch.fft.rfft(x, 2 * n, dim=0) * spectrum[:, None, None], 2 * n, dim=0)[:n]
    y = torch.einsum("nr,nrp->np", features(q, w), t)
    return y[:, :D] / y[:, D:]


def seconds_of(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_ms(run):
    """After a call that warms up; one that takes more than a second is a measurement, and not repeated."""
    first = seconds_of(run)
    if first > 1:
        return 1e3 * first
    return 1e3 * statistics.median(seconds_of(run) for _ in range(max(3, min(21, int(2 / first)))))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(2021)
    rivals = []
    with torch.no_grad():
        for n in (1024, 8192):
            q, k, v, w = normalised(n), normalised(n), torch.randn(n, D), torch.randn(M, D)
            b = torch.randn(2 * n - 1)
            lags = torch.arange(n)[None, :] - torch.arange(n)[:, None] + n - 1  # j - i + n - 1
            bias, c = b[lags], torch.exp(b - b.max())
            runs = {
                "torch, softmax with a ready bias": lambda: softmax(q, k, v, bias),
                "torch, the paper's formula": lambda: paper(q, k, v, c, w),
            }
            if hasattr(F, "scaled_dot_product_attention"):
                runs["torch, scaled_dot_product_attention"] = lambda: scaled_dot_product(q, k, v, bias)
            for rival, run in runs.items():
                rivals.append({"rival": rival, "n": n, "ms": median_ms(run)})
    with open(sys.argv[1], "w") as out:
        json.dump({"rivals": rivals}, out, indent=1)


if __name__ == "__main__":
    main()
