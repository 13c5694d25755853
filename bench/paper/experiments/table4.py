# SPDX-License-Identifier: MIT
"""Table 4: classes of pictures."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from .. import data, training
from ..models import ImageModel, Mechanism
from ..results import Expectation, bars, below
from ..training import device
from . import Experiment, mechanism_settings

VARIANTS = (
    "softmax", "softmax + RPE", "normalised softmax", "normalised softmax + RPE", "PRF", "NPRF", "NPRF + RPE",
    "Taylor + near field + RPE",
)  # fmt: skip
NEAR = 2  # a square of 3 x 3 patches

SIZES = {
    "tiny": dict(steps=2, batch=4, dim=24, layers=1, heads=2, patch=7, rate=1e-3, test=8),
    "small": dict(steps=600, batch=64, dim=96, layers=4, heads=3, patch=4, rate=1e-3, test=5000),
    "paper": dict(steps=300_000, batch=1024, parts=16, dim=768, layers=12, heads=12, patch=2, rate=5e-4, test=10_000),
}


def plan(options):
    size = options.chosen(SIZES)
    return [
        {
            "variant": name,
            "mechanism": mechanism_settings(name, features=32, near=NEAR if "near field" in name else 0),
            **size,
        }
        for name in VARIANTS
    ]


def prepared(pictures):
    """uint8 [batch, side, side] -> [batch, 1, side, side]."""
    x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device()).float()
    return ((x / 255 - 0.29) / 0.35)[:, None]


def measure(run, progress):
    s = run.settings
    pictures = data.pictures(s["source"])
    classes = torch.from_numpy(pictures.train_y.astype(np.int64)).to(device())
    model = ImageModel(
        28, 1, s["patch"], s["dim"], s["layers"], s["heads"], Mechanism(**s["mechanism"]), 10, seed=run.seed
    ).to(device())

    def loss_of(generator):
        chosen = torch.randint(len(classes), (training.part_size(s),), generator=generator)
        x = prepared(pictures.train_x[chosen.numpy()])
        flipped = torch.rand(len(x), 1, 1, 1, generator=generator).to(x.device) < 0.5
        return F.cross_entropy(model(torch.where(flipped, x.flip(-1), x)), classes[chosen.to(classes.device)])

    made = training.train_run(run, model, loss_of, progress)
    test_x, test_y = pictures.test_x[: s["test"]], torch.from_numpy(pictures.test_y[: s["test"]].astype(np.int64))
    with torch.no_grad():
        found = torch.cat(
            [model(prepared(part)).argmax(1).cpu() for part in np.array_split(test_x, -(-len(test_x) // 500))]
        )
    accuracy = -math.inf if made.diverged else 100 * (found == test_y).float().mean().item()
    return {
        "accuracy": accuracy, "losses": made.losses, "ms": made.ms, "diverged": made.diverged, "data": pictures.name
    }  # fmt: skip


def table(results):
    return ["attention", "accuracy, %", "ms a step"], results.rows(accuracy=2, ms=0)


def draw(results, figure):
    bars(figure.subplots(), results, "accuracy", "accuracy, %")


EXPERIMENT = Experiment(
    name="table4",
    title="Table 4: classes of pictures",
    claim="A 2-D relative bias helps; PRF without normalisation falls behind.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation("NPRF + RPE is better than NPRF", below("accuracy", "NPRF", "NPRF + RPE")),
        Expectation("softmax + RPE is better than softmax", below("accuracy", "softmax", "softmax + RPE")),
        Expectation("PRF is worse than softmax", below("accuracy", "PRF", "softmax")),
        Expectation("PRF is worse than NPRF + RPE", below("accuracy", "PRF", "NPRF + RPE")),
        Expectation(
            "exact weights of norm 1, which NPRF estimates, are also worse than softmax (not in the paper)",
            below("accuracy", "normalised softmax", "softmax"),
        ),
    ),
    notes="RPE here is a bias for each displacement of two patches, with biases of its own for CLS; absolute positions "
    "are in all rows, as in DeiT. *Taylor + near field + RPE* approximates *normalised softmax + RPE*; the near field are "
    "the 3 x 3 patches around the query's. Without relative positions weights between exp(-1) and exp(1) are too even, even if "
    "they are exact (*normalised softmax*), which may be why NPRF is behind PRF; NPRF is better than the weights that it "
    "estimates. With `--paper-size` too the pictures are those of Fashion-MNIST, not ImageNet.",
)
