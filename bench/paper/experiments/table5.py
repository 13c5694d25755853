# SPDX-License-Identifier: MIT
"""Tables 1 and 5: pre-training by masked tokens."""

import math

import torch
import torch.nn.functional as F

from .. import data, training
from ..results import Expectation, at_most, bars, below
from ..training import device
from . import Experiment, mechanism_settings, texts

VARIANTS = {  # the number of features, of rows of Linformer, of landmarks
    "softmax": 0, "softmax + RPE": 0, "Linformer": 64, "Nystromformer": 32, "PRF": 32, "NPRF + RPE": 32,
    "Taylor + near field + RPE": 0, "Nystromformer, no convolution": 32,
}  # fmt: skip
MASK, MASKED = 256, 0.15


def plan(options):
    size = texts.size_of(options, steps=1000)
    if options.size == "paper":
        size.update(dim=768, layers=12, heads=12)
    return [
        {"variant": name, "mechanism": mechanism_settings(name, features=count), **size}
        for name, count in VARIANTS.items()
    ]


def with_masks(rows, generator):
    """The rows with MASK in place of some of their bytes, and which ones."""
    masked = torch.rand(rows.shape, generator=generator) < MASKED
    masked[:, 0] |= ~masked.any(1)
    return rows.masked_fill(masked, MASK), masked


def loss_on(model, rows, generator):
    """The mean loss of the masked bytes of rows [batch, tokens]."""
    inputs, masked = with_masks(rows, generator)
    logits = model(inputs.to(device()))
    return F.cross_entropy(logits[masked.to(logits.device)], rows[masked].to(logits.device))


def measure(run, progress):
    s = run.settings
    text = data.text(s["source"])
    model = texts.language_model(run, MASK + 1, s["tokens"], causal=False)

    def loss_of(generator):
        return loss_on(model, data.windows(text.train, s["tokens"], training.part_size(s), generator), generator)

    made = training.train_run(run, model, loss_of, progress)
    loss, rows = math.inf, data.spread(text.valid, s["tokens"], s["held_out"])
    if not made.diverged:
        generator = torch.Generator().manual_seed(0)  # the same masks for all
        parts = rows.split(training.part_size(s))
        with torch.no_grad():
            loss = sum(loss_on(model, part, generator).item() for part in parts) / len(parts)
    return {
        "loss": loss,
        "losses": made.losses,
        "ms": made.ms,
        "diverged": made.diverged,
        "data": text.name,
        "of_frequencies": loss_of_frequencies(text.train, rows),
    }


def loss_of_frequencies(train, rows):
    """Of a model that predicts each byte of `rows` by its frequency in `train`, in nats a byte."""
    probability = (torch.bincount(train.long(), minlength=256) + 1.0) / (len(train) + 256)
    return -probability.log()[rows.long()].mean().item()


def table(results):
    columns = ["attention", "held-out loss, nats a masked byte", "ms a step"]
    frequencies = results.entries[0][2]["of_frequencies"]
    return columns, results.rows(loss=3, ms=0) + [["none: the frequencies of bytes", f"{frequencies:.3f}", ""]]


def near_frequencies(name, within):
    """Whether the loss of a variant is near that of the frequencies of bytes."""
    return lambda results: (
        abs(results.mean("loss", variant=name).mean - results.entries[0][2]["of_frequencies"]) < within
    )


def draw(results, figure):
    bars(figure.subplots(), results, "loss", "held-out loss, nats a masked byte")


EXPERIMENT = Experiment(
    name="table5",
    title="Tables 1 and 5: pre-training by masked tokens",
    claim="NPRF + RPE is near softmax and ahead of Linformer and Nystromformer.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation("NPRF + RPE is near or below softmax (0.05 nats)", at_most("loss", "NPRF + RPE", "softmax", 0.05)),
        Expectation("NPRF + RPE is better than PRF", below("loss", "NPRF + RPE", "PRF")),
        Expectation("NPRF + RPE is better than Linformer", below("loss", "NPRF + RPE", "Linformer")),
        Expectation("NPRF + RPE is better than Nystromformer", below("loss", "NPRF + RPE", "Nystromformer")),
        Expectation(
            "NPRF + RPE is better than Nystromformer without its convolution (not in the paper)",
            below("loss", "NPRF + RPE", "Nystromformer, no convolution"),
        ),
        Expectation(
            "softmax without RPE learns little more than the frequencies of bytes (0.1 nats; not in the paper)",
            near_frequencies("softmax", 0.1),
        ),
    ),
    notes="Nystromformer adds a convolution of the values over 33 tokens, whose weights depend on relative positions as a "
    "bias does. Without it, it is no better than attention without relative positions. Only the pre-training loss. The paper's numbers are of GLUE after fine-tuning, which is not repeated here.",
)
