# SPDX-License-Identifier: MIT
"""Figure 3b: training with different feature maps."""

import dataclasses

from ..models import Mechanism
from ..results import Expectation, at_most
from . import Experiment, fig3a, texts

MAPS = {"PRF": "prf", "TRF": "trf", "sphere": "sphere", "ORF": "orf", "simplex": "simplex", "Taylor": "taylor"}
MORE_FEATURES = "TRF, 256 features"  # which shows why TRF with 64 is apart


def mechanisms():
    of_map = {name: Mechanism(kernel, 1.0, True, 64) for name, kernel in MAPS.items()}
    return {**of_map, MORE_FEATURES: Mechanism("trf", 1.0, True, 256)}


def plan(options):
    size = texts.size_of(options, steps=900)
    return [
        {"variant": name, "mechanism": dataclasses.asdict(mechanism), **size}
        for name, mechanism in mechanisms().items()
    ]


def table(results):
    columns, rows = fig3a.table(results)
    return ["feature map, norm 1, with RPE", *columns[1:]], rows


EXPERIMENT = Experiment(
    name="fig3b",
    title="Figure 3b: the feature map",
    claim="With queries and keys of norm 1, the feature map matters little.",
    plan=plan,
    measure=texts.measure,
    table=table,
    draw=fig3a.draw,
    expectations=(
        Expectation("all with 64 features within 0.05 nats of each other", fig3a.spread_below(0.05, MAPS)),
        Expectation("all but TRF within 0.05 nats (not in the paper)", fig3a.spread_below(0.05, MAPS.keys() - {"TRF"})),
        Expectation(
            "with 256 features TRF is near PRF with 64 (0.05 nats; not in the paper)",
            at_most("loss", MORE_FEATURES, "PRF", 0.05),
        ),
    ),
)
