# SPDX-License-Identifier: MIT
"""Table 6: generation of pictures, pixel by pixel."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from .. import data, training
from ..models import LanguageModel
from . import Expectation, Experiment, bars, below, mechanism_of, mechanism_settings
from .texts import device

VARIANTS = ("softmax", "softmax + RPE", "PRF", "NPRF", "NPRF + RPE")
REACH = 128  # lags with a bias of their own: more than four lines
PICTURES = 8

SIZES = {  # side: of the middle of the picture; levels of grey
    "tiny": dict(steps=2, batch=2, side=6, levels=4, dim=16, layers=1, heads=2, rate=2e-3, test=4),
    "small": dict(steps=1000, batch=4, side=28, levels=16, dim=128, layers=2, heads=4, rate=2e-3, test=64),
    "paper": dict(steps=200_000, batch=32, side=28, levels=256, dim=512, layers=6, heads=8, rate=5e-4, test=10_000),
}


def plan(options):
    size = {**SIZES[options.size], "source": options.source}
    if options.steps is not None:
        size["steps"] = options.steps
    return [{"variant": name, "mechanism": mechanism_settings(name, features=32), **size} for name in VARIANTS]


def sequences(pictures, side, levels):
    """uint8 [count, 28, 28] -> the start token `levels`, then the levels of the pixels, line by line [count, side^2 + 1]."""
    first = (pictures.shape[1] - side) // 2
    cut = pictures[:, first : first + side, first : first + side].reshape(len(pictures), -1)
    rows = torch.from_numpy(cut.astype(np.int64)) * levels // 256
    return F.pad(rows, (1, 0), value=levels)


def loss_on(model, rows):
    rows = rows.to(device())
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def measure(run, progress):
    s = run.settings
    pictures = data.pictures(s["source"])
    train, test = (sequences(x, s["side"], s["levels"]) for x in (pictures.train_x, pictures.test_x[: s["test"]]))
    mechanism = mechanism_of(s["mechanism"])
    model = LanguageModel(
        s["levels"] + 1, s["side"] ** 2, s["dim"], s["layers"], s["heads"], mechanism, position=("table", REACH),
        seed=run.seed,
    ).to(device())  # fmt: skip
    made = training.train(
        model,
        lambda generator: loss_on(model, train[torch.randint(len(train), (s["batch"],), generator=generator)]),
        steps=s["steps"], rate=s["rate"], seed=run.seed, progress=progress, checkpoint=run.checkpoint,
    )  # fmt: skip
    bits, generated = math.nan, []
    if not made.diverged:
        with torch.no_grad():
            parts = [(loss_on(model, part).item(), len(part)) for part in test.split(s["batch"])]
        bits = sum(loss * count for loss, count in parts) / len(test) / math.log(2)
        if mechanism.kernel != "softmax" and run.seed == 0:
            generator = torch.Generator().manual_seed(0)
            generated = model.cpu().generate(s["side"] ** 2, PICTURES, s["levels"], generator).tolist()
    return {
        "bits": bits, "losses": made.losses, "ms": made.ms, "diverged": made.diverged, "generated": generated,
        "data": pictures.name,
    }  # fmt: skip


def table(results):
    rows = []
    for name in results.settings("variant"):
        bits, ms = results.mean("bits", variant=name), results.mean("ms", variant=name)
        rows.append([name, bits.text(3), f"{ms.mean:.0f}"])
    return ["attention", "held-out bits a dimension", "ms a step"], rows


def draw(results, figure):
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    bars(left, results, "variant", "bits", "held-out bits a dimension")
    shown = [(e[0], e[2]["generated"]) for e in results.entries if e[2]["generated"]]
    right.set_axis_off()
    if shown:
        lines = []
        for settings, rows in shown:
            side = settings["side"]
            lines.append(np.concatenate([np.reshape(row, (side, side)) for row in rows[:4]], axis=1))
        right.imshow(np.concatenate(lines), cmap="gray_r", interpolation="nearest")
        right.set_title("drawn by nprf.Decoder: " + "; ".join(settings["variant"] for settings, _ in shown), fontsize=7)


EXPERIMENT = Experiment(
    name="table6",
    title="Table 6: pictures, pixel by pixel",
    claim="Relative positions lower the bits a dimension of kernelized attention over long sequences.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation("NPRF + RPE is better than PRF", below("bits", "NPRF + RPE", "PRF")),
        Expectation("NPRF + RPE is better than NPRF", below("bits", "NPRF + RPE", "NPRF")),
        Expectation("NPRF + RPE is near or below softmax (0.05 bits)", below("bits", "NPRF + RPE", "softmax", margin=0.05)),
    ),
    notes="Bits of a pixel of 16 levels of grey (of 256 with `--paper-size`), 28 x 28 pixels; the paper's are of ImageNet, "
    "32 x 32 x 3 of 256 levels. The bias is learned for lags up to 128, and constant beyond.",
)
