# SPDX-License-Identifier: MIT
"""Figure 1a: the time of attention over the length of the sequence."""

import math
import statistics
import time

import nprf
import nprf.torch
import torch
import torch.nn.functional as F

from ..results import Expectation, number
from . import Experiment

D, FEATURES = 64, 32
LENGTHS = {
    "tiny": (64, 144),
    "small": (1024, 2048, 4096, 8192, 16_384, 40_960),
    "paper": (1024, 2048, 4096, 8192, 16_384, 40_960),
}
SIDES = {64: (8, 8), 144: (12, 12), 1024: (32, 32), 2048: (32, 64), 4096: (64, 64), 8192: (64, 128), 16_384: (128, 128),
         40_960: (160, 256)}  # fmt: skip
LONGEST = 30.0  # seconds that one call may take

# name: (engine or rival, the bias, causal)
CONTENDERS = {
    "nprf, any bias, automatic": ("automatic", "dense", False),
    "nprf, any bias, direct": ("direct", "dense", False),
    "nprf, any bias, lanes": ("lanes", "dense", False),
    "nprf, any bias, block_causal": ("block_causal", "dense", True),
    "nprf, T5, banded": ("banded", "t5", False),
    "nprf, ALiBi, recurrence": ("recurrence", "alibi", False),
    "nprf, smooth bias, smooth": ("smooth", "kerple", False),
    "nprf, smooth bias, causal, smooth": ("smooth", "kerple", True),
    "nprf, picture, grid": ("grid", "grid", False),
    "torch softmax, bias as mask": ("mask", "dense", False),
    "torch softmax, no bias": ("plain", None, False),
    "torch, the paper's formula by torch.fft": ("fft", "dense", False),
}
SOFTMAX, OURS = "torch softmax, bias as mask", "nprf, any bias, automatic"
SMOOTH = ("nprf, smooth bias, smooth", "nprf, smooth bias, causal, smooth")


def plan(options):
    return [{"contender": name, "lengths": list(LENGTHS[options.size])} for name in CONTENDERS]


def bias_of(kind, n, generator):
    """(the parameters, the argument `position`)."""
    if kind == "dense":
        return torch.randn(2 * n - 1, generator=generator).clamp(-3, 3), "table"
    if kind == "t5":
        return torch.randn(32, generator=generator), "t5"
    if kind == "alibi":
        return torch.tensor(1 / 16), "alibi"
    if kind == "kerple":  # with r1 = r2 = 1
        return -torch.arange(1 - n, n).abs().log1p(), "smooth_table"
    height, width = SIDES[n]
    return torch.randn(2 * height - 1, 2 * width - 1, generator=generator), ("grid", height, width)


def positive_features(x, vectors):
    """exp(w.x - |x|^2 / 2) of rows of norm 1, up to a constant factor."""
    return (F.normalize(x, dim=-1) @ vectors.T - 0.5).exp()


def by_fft(q, k, v, bias, vectors):
    """Algorithm 1 of the paper: each product of a feature and a value is convolved with exp(b). q, k, v [n, d]."""
    n = len(q)
    values = torch.cat([v, torch.ones(n, 1)], dim=1)
    signals = (positive_features(k, vectors)[:, :, None] * values[:, None, :]).flatten(1)  # [n, m (d + 1)]
    kernel = torch.zeros(2 * n)
    kernel[(-torch.arange(1 - n, n)) % (2 * n)] = bias.exp()
    spectrum = torch.fft.rfft(kernel)[:, None]
    summed = torch.fft.irfft(torch.fft.rfft(signals, 2 * n, dim=0) * spectrum, 2 * n, dim=0)[:n]
    y = torch.einsum("nm,nmp->np", positive_features(q, vectors), summed.unflatten(1, (len(vectors), -1)))
    return y[:, :-1] / y[:, -1:]


def call_of(settings, n, generator):
    """The call to be timed, of one head without gradients."""
    engine, kind, causal = CONTENDERS[settings["contender"]]
    q, k, v = (torch.randn(1, 1, n, D, generator=generator) for _ in range(3))
    bias, position = (None, None) if kind is None else bias_of(kind, n, generator)
    features = nprf.orf(D, FEATURES)
    if engine == "plain":
        return lambda: F.scaled_dot_product_attention(q, k, v)
    if engine == "mask":
        index = torch.arange(n)[None, :] - torch.arange(n)[:, None] + n - 1
        mask = bias[index][None, None]
        return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if engine == "fft":
        vectors = torch.from_numpy(features.rows())
        return lambda: by_fft(q[0, 0], k[0, 0], v[0, 0], bias, vectors)
    return lambda: nprf.torch.attention(
        q, k, v, bias, features=features, position=position, causal=causal, engine=engine
    )


def timed(call):
    """Seconds: the median of at least three calls after a first one; of that one if it took more than 2 s."""
    times = []
    while len(times) < 4 or (sum(times) < 0.5 and len(times) < 50):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
        if times[0] > 2:
            return times[0]
    return statistics.median(times[1:])


@torch.no_grad()
def measure(run, progress):
    """milliseconds of a call for each length, None for those that would take too long or too much memory."""
    generator = torch.Generator().manual_seed(run.seed)
    milliseconds, lengths = [], run.settings["lengths"]
    call_of(run.settings, 64, generator)()  # what a first call loads is not measured
    for done, n in enumerate(lengths):
        known = [each for each in milliseconds if each is not None]
        expected = 0.0 if not known else known[-1] / 1000 * (n / lengths[len(known) - 1]) ** 2
        engine = CONTENDERS[run.settings["contender"]][0]
        square, signals = n * n * 4, 6 * n * FEATURES * (D + 1) * 4
        memory = {"mask": 3 * square, "fft": 3 * signals}.get(engine, 0)
        if expected > LONGEST or memory > 8 * 2**30:
            milliseconds.append(None)
            continue
        milliseconds.append(1000 * timed(call_of(run.settings, n, generator)))
        progress(done + 1, len(lengths))
    return {"milliseconds": milliseconds}


def means(results, name):
    """[(n, mean, deviation)] of the lengths that were measured."""
    entries = results.of(contender=name).entries
    points = []
    for i, n in enumerate(entries[0][0]["lengths"]):
        times = [entry[2]["milliseconds"][i] for entry in entries]
        if all(each is not None for each in times):
            points.append((n, statistics.fmean(times), statistics.stdev(times) if len(times) > 1 else 0.0))
    return points


def slope(points):
    """Of the logarithm of the time over that of n, from the longest length and that a quarter of it or less."""
    last = points[-1]
    first = next((each for each in reversed(points) if each[0] * 4 <= last[0]), points[0])
    return math.log(last[1] / first[1]) / math.log(last[0] / first[0]) if last[0] > first[0] else math.nan


def table(results):
    lengths = results.entries[0][0]["lengths"]
    rows = []
    for name in results.settings("contender"):
        points = {n: (mean, deviation) for n, mean, deviation in means(results, name)}
        cells = [f"{number(points[n][0], 3)} ± {number(points[n][1], 1)}" if n in points else "" for n in lengths]
        rows.append([name, *cells, f"{slope(means(results, name)):.2f}"])
    return ["milliseconds", *(f"n = {n:,}" for n in lengths), "slope"], rows


def draw(results, figure):
    axes = figure.subplots()
    for name in results.settings("contender"):
        n, mean, deviation = zip(*means(results, name))
        style = "--" if name.startswith("torch") else "-"
        axes.errorbar(n, mean, deviation, marker="o", markersize=3, linewidth=1, linestyle=style, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("milliseconds, one thread")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=7)


EXPERIMENT = Experiment(
    name="fig1a",
    title="Figure 1a: time over the length of the sequence",
    claim="Softmax takes quadratic time, kernelized attention with relative positions O(n log n).",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation("softmax has slope 2 (above 1.7)", lambda results: slope(means(results, SOFTMAX)) > 1.7),
        Expectation("nprf has slope 1 (below 1.3)", lambda results: slope(means(results, OURS)) < 1.3),
        Expectation(
            "with smooth biases nprf has slope 1 (below 1.2; not in the paper)",
            lambda results: all(slope(means(results, name)) < 1.2 for name in SMOOTH),
        ),
        Expectation(
            "nprf is faster than softmax at the longest length of both",
            lambda results: (
                dict(each[:2] for each in means(results, OURS))[means(results, SOFTMAX)[-1][0]]
                < means(results, SOFTMAX)[-1][1]
            ),
        ),
    ),
    notes="One head, d = 64, 32 orthogonal features, forward only, one thread, float32; ± over three rounds. The mask of "
    "softmax and the features' random vectors are made before the measurement. The smooth bias is -log(1 + |lag|), one of "
    "KERPLE's. Empty: more than 30 s, by a quadratic forecast, or 8 GiB. On the CPU also with `--paper-size`; "
    "`bench/README.md` has the benchmark for GPUs.",
    alone=True,
)
