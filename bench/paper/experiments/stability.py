# SPDX-License-Identifier: MIT
"""Section 3.3: at which learning rates training diverges, with and without normalised queries and keys."""

import math

from ..results import Expectation, number
from . import Experiment, mechanism_settings, texts

RATES = (2e-3, 8e-3, 3.2e-2)
VARIANTS = {
    "PRF, plain torch": mechanism_settings("PRF", kernel="plain"),
    "PRF, plain torch, scaled": mechanism_settings("PRF", kernel="scaled"),
    "PRF, plain torch, logarithms": mechanism_settings("PRF", kernel="logarithms"),
    "NPRF, plain torch, norm 1": mechanism_settings("NPRF", kernel="plain"),
    "PRF": mechanism_settings("PRF"),
    "NPRF, norm 4": mechanism_settings("NPRF", radius=4.0),
    "NPRF, norm 2": mechanism_settings("NPRF", radius=2.0),
    "NPRF, norm 1": mechanism_settings("NPRF"),
    "NPRF + RPE, norm 1": mechanism_settings("NPRF + RPE"),
}


def plan(options):
    size = texts.size_of(options, steps=400, tokens=128, dim=64, held_out=32)

    def parts(mechanism):  # sequences one by one, since logarithms need tokens^2 numbers for each feature
        is_large = options.size == "paper" and mechanism["kernel"] == "logarithms"
        return {"parts": size["batch"]} if is_large else {}

    return [
        {"variant": name, "mechanism": mechanism, **size, **parts(mechanism), "rate": rate}
        for name, mechanism in VARIANTS.items()
        for rate in RATES
        if rate == RATES[-1] or mechanism["kernel"] != "logarithms"
    ]


def measure(run, progress):
    return texts.measure(run, progress, clip=math.inf, decay=False, log_norms=True)


def diverged(results, name, rate):
    """How many of how many seeds."""
    found = results.of(variant=name, rate=rate).values("diverged")
    return sum(found), len(found)


def table(results):
    rows = []
    for name in results.settings("variant"):
        row = [name]
        for rate in results.settings("rate"):
            count, of = diverged(results, name, rate)
            if of == 0:
                row.append("")
                continue
            norm = max(results.of(variant=name, rate=rate).values("norm"))
            row.append(f"{count} of {of}; {number(norm, 3)}")
        rows.append(row)
    return ["attention", *(f"rate {rate:g}" for rate in results.settings("rate"))], rows


def draw(results, figure):
    axes = figure.subplots()
    rates = results.settings("rate")
    for name in results.settings("variant"):
        shares = [(rate, *diverged(results, name, rate)) for rate in rates]
        measured = [(rate, 100 * count / of) for rate, count, of in shares if of > 0]
        axes.plot(*zip(*measured), marker="o", label=name, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("diverged, % of seeds")
    axes.set_ylim(-5, 105)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=7)


def total(results, name):
    return sum(results.of(variant=name).values("diverged"))


EXPERIMENT = Experiment(
    name="stability",
    title="Section 3.3: stability of training",
    claim="Training with normalised queries and keys does not diverge where PRF does.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation("PRF in plain torch diverges in some run", lambda results: total(results, "PRF, plain torch") > 0),
        Expectation("PRF by nprf diverges in some run", lambda results: total(results, "PRF") > 0),
        Expectation(
            "PRF in plain torch with logarithms of the weights diverges in none (not in the paper)",
            lambda results: total(results, "PRF, plain torch, logarithms") == 0,
        ),
        Expectation(
            "NPRF of norm 1 diverges in none, in plain torch, by nprf and with RPE",
            lambda results: sum(total(results, name) for name in VARIANTS if name.endswith("norm 1")) == 0,
        ),
    ),
    notes="Each cell: how many runs diverged; the largest |q| times the largest |k| / sqrt(d), before normalisation. A "
    "constant learning rate after the warm-up, no gradient clipping. Diverged: a loss that is not finite, or a last tenth "
    "that is half a nat above the best. *Plain torch* computes exp(w.x - |x|^2 / 2) as it stands, with independent random "
    "vectors, nprf with orthogonal ones. *Scaled* divides features by the largest of their row, so that training goes on to "
    "longer queries and keys, until all weights of a row are 0. nprf scales features, too, and computes such rows with "
    "logarithms of the weights. *Logarithms* does so for all rows, in plain torch, at the highest rate and for two seeds.",
    deviations="",
    seeds=lambda settings: 2 if settings["mechanism"]["kernel"] == "logarithms" else 5,  # ten minutes each
)
