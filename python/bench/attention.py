# SPDX-License-Identifier: MIT
"""nprf.torch.attention beside PyTorch's attentions.

attention.py [--threads N] [--sizes BxHxNxD ...] [--kinds ...] [--rivals ...] [--seconds S] [--out OUT.json]
             [--picture SVG]

Milliseconds of forward and of forward + backward, float32, with gradients of queries, keys, values and biases. Medians
of rounds that run the rivals one after another, so that a change of the machine's speed meets all of them. Those that
take a tenth of the seconds and more are timed once, before.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import time

import nprf
import nprf.torch
import torch
import torch.nn.functional as F

FEATURES, NEAR = 32, 32


class Case:
    """Arrays of one size, and a bias of one kind, as parameters."""

    def __init__(self, size, kind):
        b, h, n, d = size
        self.size, self.kind, self.n, self.d = size, kind, n, d
        self.arrays = [torch.randn(b, h, n, d, requires_grad=True) for _ in range(3)]
        shape = {"dense": (h, 2 * n - 1), "t5": (h, 32), "alibi": (h,), "none": (0,)}[kind]
        self.bias = torch.zeros(shape).uniform_(0.01, 0.1).requires_grad_()
        self.features, self.taylor = nprf.orf(d, FEATURES), nprf.taylor(d)
        lags = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        self.index = lags + n - 1
        if kind == "t5":
            table = [nprf._native.core.t5_bucket(lag, 32, False, 128) for lag in range(-n + 1, n)]
            self.index = torch.tensor(table)[self.index]
        self.distance = lags.abs().float()

    def matrix(self):
        """The bias of every pair [h, n, n], as a model with softmax computes it."""
        if self.kind == "alibi":
            return -self.bias[:, None, None] * self.distance
        return self.bias[:, self.index]

    def table(self):
        """The bias of every lag [h, 2n-1]."""
        if self.kind == "dense":
            return self.bias
        if self.kind == "alibi":
            return -self.bias[:, None] * torch.arange(-self.n + 1, self.n).abs()
        return self.bias[:, torch.cat([self.index[-1], self.index[0, 1:]])]


def of_map(features, near):
    """nprf with case.<features> and a near field."""

    def ours(case):
        position = {"dense": "table", "none": None}.get(case.kind, case.kind)
        bias = None if case.kind == "none" else case.bias
        return nprf.torch.attention(*case.arrays, bias, features=getattr(case, features), near=near, position=position)

    return ours


def scaled_dot_product(case):
    return F.scaled_dot_product_attention(*case.arrays, attn_mask=None if case.kind == "none" else case.matrix()[None])


def without_bias(case):
    return F.scaled_dot_product_attention(*case.arrays)


def transforms(case):
    """The paper's formula by torch.fft (Luo et al. 2021)."""
    q, k, v = case.arrays
    n = case.n
    w = torch.from_numpy(case.features.rows())

    def phi(x):
        return torch.exp(F.normalize(x, dim=-1) @ w.T)

    u = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    x = phi(k)[..., :, None] * u[..., None, :]  # [b, h, n, m, d+1]
    kernel = torch.exp(case.table()).flip(-1)  # of the lags n-1 .. -n+1, so that i - j increases
    t = torch.fft.irfft(
        torch.fft.rfft(x, 3 * n, dim=2) * torch.fft.rfft(kernel, 3 * n)[None, :, :, None, None], 3 * n, dim=2
    )[:, :, n - 1 : 2 * n - 1]
    y = torch.einsum("bhnm,bhnmp->bhnp", phi(q), t)
    return y[..., :-1] / y[..., -1:]


def flex(case):
    """FlexAttention, compiled. On the CPU it has no gradients."""
    from torch.nn.attention.flex_attention import flex_attention

    if torch.is_grad_enabled():
        raise NotImplementedError("no gradients on the CPU")
    if not hasattr(case, "flex"):
        case.flex = torch.compile(flex_attention, dynamic=False)
    table = case.table().detach()
    n = case.n
    return case.flex(
        *(x.detach() for x in case.arrays), score_mod=lambda score, b, h, i, j: score + table[h, j - i + n - 1]
    )


def performer(case):
    """Without a bias."""
    from performer_pytorch import FastAttention

    if not hasattr(case, "performer"):
        case.performer = FastAttention(case.d, nb_features=FEATURES)
    return case.performer(*case.arrays)


def fast_transformers(case):
    """elu features, without a bias, of pytorch-fast-transformers, whose random features need an older PyTorch."""
    from fast_transformers.attention import LinearAttention
    from fast_transformers.masking import FullMask, LengthMask

    if not hasattr(case, "fast"):
        case.fast = LinearAttention(case.d)
        lengths = LengthMask(torch.full((case.size[0],), case.n))
        case.masks = FullMask(case.n), lengths, lengths
    return case.fast(*(x.transpose(1, 2) for x in case.arrays), *case.masks).transpose(1, 2)


rivals = {
    "nprf": of_map("features", 0),
    "nprf, near": of_map("features", NEAR),
    "nprf, taylor, near": of_map("taylor", NEAR),
    "sdpa, attn_mask": scaled_dot_product,
    "sdpa, no bias": without_bias,
    "torch.fft": transforms,
    "flex_attention": flex,
    "performer-pytorch": performer,
    "fast-transformers": fast_transformers,
}


def gibibytes(name, size):
    """What a rival needs about, to skip what does not fit."""
    b, h, n, d = size
    if name == "torch.fft":
        return b * h * n * FEATURES * (d + 1) * 4 * 10 / 2**30
    return b * h * n * n * 4 * 4 / 2**30 if name == "sdpa, attn_mask" else 0


def milliseconds(rival, case, backward):
    start = time.perf_counter()
    if backward:
        rival(case).backward(torch.ones(()).expand(case.arrays[0].shape))
        for x in (*case.arrays, case.bias):
            x.grad = None
    else:
        with torch.no_grad():
            rival(case)
    return 1e3 * (time.perf_counter() - start)


def measure(size, kind, names, seconds):
    case, rows = Case(size, kind), {}
    for backward in (False, True):
        samples = {}
        for name in names:
            if gibibytes(name, size) > 12 or (kind == "none" and name in ("torch.fft", "flex_attention")):
                continue
            try:
                milliseconds(rivals[name], case, backward)  # it warms up
                samples[name] = [milliseconds(rivals[name], case, backward)]
            except Exception as error:  # a rival that is not installed, or that cannot do this
                print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
        fast = [name for name, (ms,) in samples.items() if ms < 1e3 * seconds / 10]
        end = time.perf_counter() + seconds
        while fast and time.perf_counter() < end:
            for name in fast:
                samples[name].append(milliseconds(rivals[name], case, backward))
        rows["forward + backward" if backward else "forward"] = {
            name: float(f"{statistics.median(times[1:] or times):.4g}") for name, times in samples.items()
        }
    return rows


def processor():
    """Its name."""
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            return next(line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def draw(results, path):
    """Times over tokens on logarithmic axes, a panel for each bias and pass; of sizes that differ in more than tokens,
    each time is divided by batch and heads."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    panels = sorted({(each["bias"], each["pass"]) for each in results})
    passes = sorted({of for _, of in panels})
    kinds = sorted({bias for bias, _ in panels})
    figure, axes = pyplot.subplots(
        len(passes), len(kinds), figsize=(4 * len(kinds), 3.5 * len(passes)), squeeze=False, sharex=True
    )
    for (row, of), (column, bias) in itertools.product(enumerate(passes), enumerate(kinds)):
        panel = axes[row][column]
        panel.set_title(f"{of}, bias: {bias}", fontsize=9)
        for name in rivals:
            points = sorted(
                (each["size"][2], each["ms"][name] / each["size"][0] / each["size"][1])
                for each in results
                if (each["bias"], each["pass"]) == (bias, of) and name in each["ms"]
            )
            if points:
                panel.loglog(*zip(*points), marker="o", markersize=3, label=name)
        panel.grid(True, alpha=0.2)
        if row == len(passes) - 1:
            panel.set_xlabel("tokens")
    axes[0][0].set_ylabel("ms of a head")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", default=["8x3x64x32", "8x4x512x64", "1x8x2048x64", "1x8x8192x64"])
    parser.add_argument("--kinds", nargs="+", default=["none", "dense", "t5", "alibi"])
    parser.add_argument("--rivals", nargs="+", default=list(rivals), choices=list(rivals))
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--out")
    parser.add_argument("--picture", help="an SVG or PNG, by matplotlib")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    results = []
    for text in options.sizes:
        size = tuple(map(int, text.split("x")))
        for kind in options.kinds:
            for direction, row in measure(size, kind, options.rivals, options.seconds).items():
                results.append({"size": size, "bias": kind, "pass": direction, "ms": row})
                first = next(iter(row.values()), None)  # nprf, unless it was left out
                ratios = ", ".join(f"{name} {ms:.4g} ({ms / first:.2f}x)" for name, ms in row.items())
                print(f"{list(size)} {kind:5} {direction:18}: {ratios}", flush=True)
    if options.out:
        machine = {
            "torch": torch.__version__,
            "threads": options.threads,
            "cpu_level": nprf.cpu_level(),
            "machine": processor(),
            "load": os.getloadavg(),
        }
        with open(options.out, "w") as out:
            json.dump({"machine": machine, "results": results}, out, indent=1)
    if options.picture:
        draw(results, options.picture)


if __name__ == "__main__":
    main()
