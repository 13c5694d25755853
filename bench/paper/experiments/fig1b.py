# SPDX-License-Identifier: MIT
"""Figure 1b: the error of an attention row over the number of features and the norm of queries and keys."""

import math

import nprf
import numpy as np

from ..models import FEATURES
from ..results import Expectation
from . import Experiment

D, NEAR = 64, 32
RADII = (1.0, 2.0, 4.0)
RANDOM = ("prf", "orf", "sphere", "simplex", "sphere simplex", "hyperbolic", "trf")
SIZES = {
    "tiny": dict(tokens=64, counts=[8, 32], draws=2),
    "small": dict(tokens=1024, counts=[4, 16, 64, 256, 1024], draws=100),
    "paper": dict(tokens=1024, counts=[4, 16, 64, 256, 1024], draws=200),
}
DIRECTIONS = (0, 8, 16, 32)  # of the second order of the Taylor maps


def plan(options):
    size = SIZES[options.size]
    maps = [(name, 0) for name in RANDOM] + [("orf", NEAR), ("taylor", 0), ("taylor", NEAR)]
    return [
        {
            "map": name + (f" + near field of {near}" if near else ""),
            "kernel": name,
            "near": near,
            "radius": radius,
            "version": 2,
            **size,
        }
        for name, near in maps
        for radius in RADII
    ]


def on_sphere(rows, radius, rng):
    x = rng.standard_normal((rows, D))
    return radius * x / np.linalg.norm(x, axis=1, keepdims=True)


def maps_of(settings, seed):
    """The maps to be compared, with their numbers of random vectors (of features, for Taylor maps)."""
    if settings["kernel"] == "taylor":
        return [nprf.taylor(D, directions) for directions in DIRECTIONS]
    return [FEATURES[settings["kernel"]](D, m, seed) for m in settings["counts"]]


def measure(run, progress):
    """errors: for each draw of query, keys and random vectors, the L1 distance of the attention row to that of softmax,
    for each map; None for a row that nprf recomputed by softmax itself, which it does with Taylor maps and near fields
    if terms cancel or rounding may have spoiled it. counts: the features of each map. near_weights, exact_near_weights:
    for each draw, the sum of the weights of the near field's keys, with the last map (None as above) and with softmax."""
    s = run.settings
    rng = np.random.default_rng([run.seed, int(10 * s["radius"])])
    n, radius = s["tokens"], s["radius"]
    errors, counts = [], [each.output_dim for each in maps_of(s, 0)]
    query = n // 2
    near_keys = slice(query - s["near"] + 1, query + s["near"])
    near_weights, exact_near_weights = [], []
    for draw in range(s["draws"]):
        q, k = on_sphere(1, radius, rng), on_sphere(n, radius, rng)
        exact = np.exp(q @ k.T - (q @ k.T).max())
        exact /= exact.sum()
        row = []
        for features in maps_of(s, 1000 * run.seed + draw):
            attention = nprf.Attention(features, normalization=nprf.Normalization.unit(radius), near=s["near"])
            # with V = I the output is the row of weights
            found, report = attention(q, k, np.eye(n), offset=query, report=True)
            exactly = report.repaired_rows > 0 and (s["kernel"] == "taylor" or s["near"] > 0)
            row.append(None if exactly else float(np.abs(found - exact).sum()))
        errors.append(row)
        near_weights.append(None if exactly else float(found[0, near_keys].sum()))
        exact_near_weights.append(float(exact[0, near_keys].sum()))
        progress(draw + 1, s["draws"])
    return {
        "errors": errors,
        "counts": counts,
        "near_weights": near_weights,
        "exact_near_weights": exact_near_weights,
    }


def curve(results, name, radius):
    """[(features, mean, standard error, share of rows that were recomputed)]."""
    found = results.of(map=name, radius=radius).entries
    errors = np.concatenate([np.array(result["errors"], dtype=float) for _, _, result in found])  # nan for None
    points = []
    for count, column in zip(found[0][2]["counts"], errors.T):
        kept = column[~np.isnan(column)]
        mean = kept.mean() if len(kept) > 0 else math.nan
        error = kept.std(ddof=1) / math.sqrt(len(kept)) if len(kept) > 1 else math.nan
        points.append((count, mean, error, 1 - len(kept) / len(column)))
    return points


def table(results):
    rows = []
    for name in results.settings("map"):
        for radius in RADII:
            cells = []
            for count, mean, error, recomputed in curve(results, name, radius):
                cell = f"{count}: {mean:.3f} ± {error:.3f}" if recomputed < 1 else f"{count}: none"
                cells.append(cell + (f" ({100 * recomputed:.0f} % recomputed)" if recomputed > 0 else ""))
            some = results.of(map=name, radius=radius)
            near = ""
            if some.settings("near")[0] > 0:
                found = [each for draws in some.values("near_weights") for each in draws if each is not None]
                exact = np.mean(some.values("exact_near_weights"))
                near = f"{np.mean(found):.2f} ({exact:.2f})" if found else ""
            rows.append([name, f"{radius:g}", "; ".join(cells), near])
    return ["map", "R", "features: L1 error ± standard error", "weight of the near field's keys (exact)"], rows


def draw(results, figure):
    panels = figure.subplots(1, len(RADII), sharey=True)
    for axes, radius in zip(panels, RADII):
        for name in results.settings("map"):
            count, mean, error, _ = zip(*curve(results, name, radius))
            axes.errorbar(count, mean, error, marker="o", markersize=2, linewidth=1, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylim(1e-3, 1e2)
        axes.set_title(f"R = {radius:g}")
        axes.set_xlabel("features")
    panels[0].set_ylabel("L1 error of a row")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=7
    )


def falls_with_features(results):
    return all(curve(results, name, 1.0)[-1][1] < curve(results, name, 1.0)[0][1] for name in RANDOM)


def grows_with_norm(results):
    last = {radius: [curve(results, name, radius)[-1][1] for name in RANDOM] for radius in RADII}
    return all(a < b < c for a, b, c in zip(*(last[radius] for radius in RADII)))


EXPERIMENT = Experiment(
    name="fig1b",
    title="Figure 1b: the error over the number of features and the norm",
    claim="The error grows steeply with the norm R of queries and keys, and at R = 4 more features hardly help.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation("at R = 1 the error of each random map falls with the number of features", falls_with_features),
        Expectation("with the most features, the error of each random map grows with R", grows_with_norm),
        Expectation(
            "at R = 4 PRF's error with 256 times the features is more than half",
            lambda results: curve(results, "prf", 4.0)[-1][1] > 0.5 * curve(results, "prf", 4.0)[0][1],
        ),
    ),
    notes="d = 64, one query and 1024 keys, uniform on the sphere of radius R; the error is the sum of the absolute "
    "differences of the row's weights to softmax, at most 2 for positive maps. A near field here holds 63 of the 1024 "
    "keys, which are drawn without regard to positions. At R = 1 and 2 it changes little; at R = 4, from 16 features on, "
    "it makes random features worse: the estimates of the other weights are mostly far too small, and the exact ones "
    "beside them get half of the row's weight (last column, with the most features). It helps where weights fall with "
    "distance. Rows that nprf recomputed by exact softmax, since terms cancelled or rounding may have spoiled them, are "
    "counted and left out.",
    seeds=3,
    deviations="",
)
