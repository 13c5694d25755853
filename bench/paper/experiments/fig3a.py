# SPDX-License-Identifier: MIT
"""Figure 3a: training with different numbers of random features."""

from ..results import Expectation
from . import Experiment, mechanism_settings, texts

VARIANTS = {f"m = {m}": m for m in (8, 16, 32, 64, 128)}


def plan(options):
    size = texts.size_of(options, steps=600)
    return [
        {"variant": name, "mechanism": mechanism_settings("NPRF + RPE", features=m), **size}
        for name, m in VARIANTS.items()
    ]


def table(results):
    return ["NPRF + RPE", "held-out loss, nats a byte", "ms a step"], results.rows(loss=3, ms=0)


def draw(results, figure):
    """The mean training loss of each variant over steps, with the range of the seeds."""
    axes = figure.subplots()
    for name in results.settings("variant"):
        curves = [entry[2]["losses"] for entry in results.of(variant=name).entries]
        columns = [[point[1] for point in points] for points in zip(*curves)]
        steps = [point[0] for point in curves[0][: len(columns)]]
        (line,) = axes.plot(steps, [sum(each) / len(each) for each in columns], label=name, linewidth=1)
        axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), alpha=0.15, color=line.get_color())
    axes.set_xlabel("step")
    axes.set_ylabel("training loss, nats a byte")
    axes.legend(frameon=False)


def spread_below(most, variants):
    """Whether the mean losses of these variants are that near to each other."""

    def holds(results):
        means = [results.mean("loss", variant=name).mean for name in variants]
        return max(means) - min(means) < most

    return holds


EXPERIMENT = Experiment(
    name="fig3a",
    title="Figure 3a: the number of random features",
    claim="With queries and keys of norm 1, the number of features matters little.",
    plan=plan,
    measure=texts.measure,
    table=table,
    draw=draw,
    expectations=(Expectation("all within 0.05 nats of each other", spread_below(0.05, VARIANTS)),),
)
