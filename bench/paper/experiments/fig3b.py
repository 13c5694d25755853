# SPDX-License-Identifier: MIT
"""Figure 3b: training with different feature maps."""

import dataclasses

from ..models import Mechanism
from ..results import Expectation
from . import Experiment, fig3a, texts

MAPS = {"PRF": "prf", "TRF": "trf", "sphere": "sphere", "ORF": "orf", "simplex": "simplex", "Taylor": "taylor"}
MORE = "TRF, 256 features"


def plan(options):
    size = texts.size_of(options, steps=600)
    variants = [(name, kernel, 64) for name, kernel in MAPS.items()] + [(MORE, "trf", 256)]
    return [
        {"variant": name, "mechanism": dataclasses.asdict(Mechanism(kernel, 1.0, True, features)), **size}
        for name, kernel, features in variants
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
        Expectation(
            "so are all but TRF with 64, and TRF with 256 features (not in the paper)",
            fig3a.spread_below(0.05, [name for name in MAPS if name != "TRF"] + [MORE]),
        ),
    ),
)
