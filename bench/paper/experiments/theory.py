# SPDX-License-Identifier: MIT
"""Proposition 1, Lemma 2 and Theorem 3, by experiment."""

import math

import nprf
import numpy as np
import torch

from ..results import Expectation, Statistic
from . import Experiment

SIZES = {
    "tiny": dict(tokens=12, dims=[2, 4], steps=5, samples=2000, squares=[0.5], radii=[0.5, 1.0], draws=2, most=64),
    "small": dict(
        tokens=64, dims=[4, 8, 16, 32], steps=500, samples=400_000, squares=[0.25, 0.5, 1.0, 1.5], radii=[0.5, 1.0, 1.25, 1.5],
        draws=40, most=4096,
    ),
}  # fmt: skip
SIZES["paper"] = SIZES["small"]
ERROR = 0.25  # of a row, that the needed number of features is for


def plan(options):
    size = SIZES[options.size]
    steps = size["steps"] if options.steps is None else options.steps
    fits = [{"part": "proposition 1", "d": d, "tokens": size["tokens"], "steps": steps} for d in size["dims"]]
    variances = [
        {"part": "lemma 2", "map": name, "square": square, "samples": size["samples"]}
        for name in ("prf", "hyperbolic", "trf")
        for square in size["squares"]
    ]
    needed = [
        {"part": "theorem 3", "radius": radius, "draws": size["draws"], "most": size["most"]}
        for radius in size["radii"]
    ]
    return fits + variances + needed


def fit(settings, seed, progress):
    """How well q.k without a bias fits attention whose logits are b[j-i], b of N(0, 1).

    logits: the Frobenius norm of the best fit's residual over that of b: exact, by the singular values of the matrix of b
    without its rows' means, since softmax ignores those. rows: the mean L1 distance of the attention rows after descent
    from that fit.
    """
    n, d = settings["tokens"], settings["d"]
    generator = torch.Generator().manual_seed(seed)
    b = torch.randn(2 * n - 1, generator=generator, dtype=torch.float64)
    logits = b[torch.arange(n)[None, :] - torch.arange(n)[:, None] + n - 1]
    centred = logits - logits.mean(1, keepdim=True)
    u, values, v = torch.linalg.svd(centred)
    residual = (values[d:].square().sum().sqrt() / values.square().sum().sqrt()).item()
    q = (u[:, :d] * values[:d].sqrt()).requires_grad_()
    k = (v[:d].T * values[:d].sqrt()).requires_grad_()
    target = logits.softmax(-1)
    optimizer = torch.optim.Adam([q, k], lr=0.02)
    best = math.inf
    for step in range(settings["steps"]):
        distance = ((q @ k.T).softmax(-1) - target).abs().sum(-1).mean()
        best = min(best, distance.item())
        optimizer.zero_grad()
        distance.backward()
        optimizer.step()
        progress(step + 1, settings["steps"])
    return {"logits": residual, "rows": best}


def variance(settings, seed):
    """The relative variance of the estimate of exp(x.y) with one random vector, for orthogonal x and y of equal norms with
    |x + y|^2 = square: by samples, and by its closed form."""
    d, square, name = 16, settings["square"], settings["map"]
    x, y = np.zeros(d), np.zeros(d)
    x[0] = y[1] = math.sqrt(square / 2)
    rows = nprf.prf(d, settings["samples"], seed).rows(np.float64)
    if name == "trf":  # sin sin + cos cos = cos(w.(x - y))
        estimates = np.exp(square / 2) * np.cos(rows @ (x - y))
        closed = np.exp(square) * (1 - np.exp(-square)) ** 2 / 2
    elif name == "prf":
        estimates = np.exp(rows @ (x + y) - square / 2)
        closed = np.exp(square) - 1
    else:
        estimates = np.exp(-square / 2) * np.cosh(rows @ (x + y))
        closed = np.cosh(square) - 1
    return {"measured": float(estimates.var()), "closed": float(closed), "mean": float(estimates.mean())}


def needed_features(settings, seed, progress):
    """The number of PRF features from which the L1 error of a row of 256 keys is below ERROR on average: interpolated
    between powers of two; None if it is above `most`. radius: the norm of query and keys, uniform on the sphere, d = 16."""
    rng = np.random.default_rng(seed)
    d, n, radius = 16, 256, settings["radius"]
    before = None
    count = 1
    while count <= settings["most"]:
        errors = []
        for draw in range(settings["draws"]):
            x = rng.standard_normal((n + 1, d))
            x *= radius / np.linalg.norm(x, axis=1, keepdims=True)
            q, k = x[:1], x[1:]
            exact = np.exp(q @ k.T)
            attention = nprf.Attention(
                nprf.prf(d, count, 1000 * seed + draw), normalization=nprf.Normalization.unit(radius)
            )
            errors.append(np.abs(attention(q, k, np.eye(n)) - exact / exact.sum()).sum())
        error = float(np.mean(errors))
        if error < ERROR:
            if before is None:
                return {"needed": float(count)}
            part = math.log(before / ERROR) / math.log(before / error)
            return {"needed": count / 2 * 2**part}
        before = error
        count *= 2
        progress(count.bit_length() - 1, settings["most"].bit_length())
    return {"needed": None}


def measure(run, progress):
    part = run.settings["part"]
    if part == "proposition 1":
        return fit(run.settings, run.seed, progress)
    if part == "lemma 2":
        return variance(run.settings, run.seed)
    return needed_features(run.settings, run.seed, progress)


def table(results):
    rows = []
    fits = results.of(part="proposition 1")
    for d in fits.settings("d"):
        logits, found = fits.mean("logits", d=d), fits.mean("rows", d=d)
        rows.append(
            ["Proposition 1", f"d = {d}", f"residual of the logits {logits.text(3)}; of the rows, L1, {found.text(3)}"]
        )
    variances = results.of(part="lemma 2")
    for name in variances.settings("map"):
        for square in variances.settings("square"):
            some = variances.of(map=name, square=square)
            text = f"variance {some.mean('measured').text(4)}; closed form {some.mean('closed').mean:.4f}"
            rows.append(["Lemma 2", f"{name}, squared norm of x + y = {square:g}", text])
    needs = results.of(part="theorem 3")
    for radius in needs.settings("radius"):
        number = needed(needs, radius)
        text = number.text(0) if number.diverged == 0 else f"more than {needs.settings('most')[0]}"
        rows.append(["Theorem 3", f"R = {radius:g}", f"features for an L1 error of {ERROR}: {text}"])
    return ["statement", "for", "found"], rows


def needed(results, radius):
    return Statistic(math.inf if each is None else each for each in results.of(radius=radius).values("needed"))


def draw(results, figure):
    left, middle, right = figure.subplots(1, 3)
    fits, variances, needs = (results.of(part=part) for part in ("proposition 1", "lemma 2", "theorem 3"))
    dims = fits.settings("d")
    for name in ("logits", "rows"):
        points = [fits.mean(name, d=d) for d in dims]
        left.errorbar(dims, [p.mean for p in points], [p.deviation for p in points], marker="o", capsize=3, label=name)
    left.set(xlabel="d", ylabel="residual without a bias", ylim=(0, None))
    left.legend(frameon=False)
    squares = variances.settings("square")
    for name in variances.settings("map"):
        points = [variances.mean("measured", map=name, square=square) for square in squares]
        (bars, *_) = middle.errorbar(
            squares, [p.mean for p in points], [p.deviation for p in points], marker="o", linestyle="", label=name
        )
        closed = [variances.mean("closed", map=name, square=square).mean for square in squares]
        middle.plot(squares, closed, color=bars.get_color(), linewidth=1)
    middle.set(xlabel="|x + y|^2", ylabel="variance (lines: closed form)", yscale="log")
    middle.legend(frameon=False)
    radii = needs.settings("radius")
    right.plot([r * r for r in radii], [needed(needs, r).mean for r in radii], marker="o")
    right.set(xlabel="R^2", ylabel=f"features for an error of {ERROR}", yscale="log")


def agrees(results):
    variances = results.of(part="lemma 2")
    return all(
        abs(
            variances.mean("measured", map=name, square=square).mean
            / variances.mean("closed", map=name, square=square).mean
            - 1
        )
        < 0.1
        for name in variances.settings("map")
        for square in variances.settings("square")
    )


def grows(results):
    """Whether each step of R^2 multiplies the needed number by more than exp(step): exponential growth, at least."""
    needs = results.of(part="theorem 3")
    radii = needs.settings("radius")
    numbers = [needed(needs, radius).mean for radius in radii]
    return all(b > a * math.exp(s * s - r * r) for a, b, r, s in zip(numbers, numbers[1:], radii, radii[1:]))


EXPERIMENT = Experiment(
    name="theory",
    title="Proposition 1, Lemma 2 and Theorem 3",
    claim="Attention without a bias cannot express one; the variance of the random features, and so their number, grows "
    "exponentially with the squared norm of queries and keys.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation(
            "the residual of the logits without a bias is above zero for each d (0.001)",
            lambda results: min(results.of(part="proposition 1").values("logits")) > 1e-3,
        ),
        Expectation("measured variances agree with the closed form (10 %)", agrees),
        Expectation("the number of features needed grows at least as exp(R^2)", grows),
    ),
    notes="Proposition 1: 64 tokens, b of N(0, 1); the smallest residual of the logits, by singular values, and that of the rows "
    "after descent; with a bias they are 0. Lemma 2: relative to "
    "exp(x.y)^2, x and y orthogonal. Theorem 3: PRF, d = 16, 256 keys uniform on the sphere of radius R.",
)
