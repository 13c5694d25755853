# SPDX-License-Identifier: MIT
"""What the experiments with language models share: one run trains one model on text and measures its held-out loss."""

import math

import torch
import torch.nn.functional as F

from .. import data, training
from ..models import LanguageModel, Mechanism

BYTES = 256

SIZES = {  # steps, tokens, batch, dim, layers, heads, rate, held-out sequences
    "tiny": dict(steps=2, tokens=32, batch=2, dim=32, layers=1, heads=2, rate=2e-3, held_out=2),
    "small": dict(steps=900, tokens=256, batch=8, dim=128, layers=2, heads=4, rate=2e-3, held_out=128),
    "paper": dict(steps=150_000, tokens=512, batch=64, dim=512, layers=6, heads=8, rate=5e-4, held_out=256),
}


def size_of(options, **changes):
    """The sizes of a run, with `changes` to those of the miniature."""
    return options.chosen({**SIZES, "small": {**SIZES["small"], **changes}})


def language_model(run, vocabulary, tokens, **options):
    """A LanguageModel of the run's settings."""
    s = run.settings
    mechanism = Mechanism(**s["mechanism"])
    model = LanguageModel(vocabulary, tokens, s["dim"], s["layers"], s["heads"], mechanism, seed=run.seed, **options)
    return model.to(training.device())


def loss_on(model, rows):
    """The mean loss of the next token of rows [batch, tokens + 1]."""
    rows = rows.to(training.device())
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model, rows, batch):
    parts = rows.split(batch)
    return sum(loss_on(model, part).item() * len(part) for part in parts) / len(rows)


def trained(run, progress, **options):
    """(model, Training, held-out rows) of a language model of the run's settings."""
    s = run.settings
    text = data.text(s["source"])
    model = language_model(run, BYTES, s["tokens"])

    def loss_of(generator):
        return loss_on(model, data.windows(text.train, s["tokens"] + 1, training.part_size(s), generator))

    made = training.train_run(run, model, loss_of, progress, **options)
    return model, made, data.spread(text.valid, s["tokens"] + 1, s["held_out"])


def measure(run, progress, **options):
    model, made, rows = trained(run, progress, **options)
    loss = math.inf if made.diverged else held_out_loss(model, rows, training.part_size(run.settings))
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 100 else math.inf,
        "losses": made.losses,
        "ms": made.ms,
        "diverged": made.diverged,
        "norm": made.norm,
        "data": data.text(run.settings["source"]).name,
    }
