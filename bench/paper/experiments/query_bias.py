# SPDX-License-Identifier: MIT
"""Not in the paper: a language model whose biases depend on the query, as the Inkling models have them, trained with
softmax, then served by nprf, and trained further through it."""

import copy

import nprf

from .. import data, training
from ..models import WINDOW, Mechanism
from ..results import Expectation
from . import Experiment, texts

SOFTMAX, OURS = "softmax", "nprf"
MECHANISM = vars(Mechanism(radius=1.0, rpe="query", near=WINDOW))


def plan(options):
    more = {"lengths": [32, 64], "tuning": 1} if options.size == "tiny" else {"lengths": [256, 1024], "tuning": 100}
    return [{"mechanism": MECHANISM, **texts.size_of(options), **more}]


def converted(model):
    made = copy.deepcopy(model)
    for block in made.blocks:
        block.attention.convert(nprf.taylor(block.attention.d), WINDOW)
    return made


def measure(run, progress):
    s = run.settings
    text = data.text(s["source"])
    model, made, _ = texts.trained(run, lambda done, of: progress(done, 2 * of))
    models = {SOFTMAX: model, OURS: converted(model)}
    losses = {}
    for n in s["lengths"]:
        rows = data.spread(text.valid, n + 1, max(1, s["held_out"] * s["tokens"] // n))
        losses[n] = {
            name: texts.held_out_loss(of, rows, 1 if n > s["tokens"] else s["batch"]) for name, of in models.items()
        }
    tuned = {}
    rows = data.spread(text.valid, s["tokens"] + 1, s["held_out"])
    for name, of in models.items():

        def loss_of(generator, of=of):
            return texts.loss_on(of, data.windows(text.train, s["tokens"] + 1, s["batch"], generator))

        training.train(of, loss_of, steps=s["tuning"], rate=s["rate"] / 10, seed=run.seed + 1, progress=lambda *_: None)
        tuned[name] = texts.held_out_loss(of, rows, s["batch"])
    return {
        "loss": [[n, losses[n][SOFTMAX], losses[n][OURS]] for n in s["lengths"]], "tuned": tuned,
        "diverged": made.diverged, "losses": made.losses, "ms": made.ms, "data": text.name,
    }  # fmt: skip


def only(results):
    """(settings, result) of the first seed."""
    settings, _, result = results.entries[0]
    return settings, result


def table(results):
    settings, found = only(results)
    rows = [[f"{n:,} tokens", f"{softmax:.4f}", f"{ours:.4f}"] for n, softmax, ours in found["loss"]]
    tuned = [f"{found['tuned'][name]:.4f}" for name in (SOFTMAX, OURS)]
    return ["held-out loss", SOFTMAX, OURS], [
        *rows,
        [f"{settings['tokens']:,} tokens, after {settings['tuning']} steps more through each", *tuned],
    ]


def draw(results, figure):
    axes = figure.subplots()
    _, found = only(results)
    axes.plot(*zip(*found["losses"]), linewidth=1)
    axes.set_xlabel("steps")
    axes.set_ylabel("training loss, nats a byte")


EXPERIMENT = Experiment(
    name="query_bias",
    title="Not in the paper: biases that depend on the query",
    claim="A language model with normalised queries and keys and biases r_i . R[j - i] within a window, trained with softmax, "
    "can be served by Taylor features and a near field as wide as the window, and trained further.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation(
            "the loss is within 0.005 nats of softmax at all lengths",
            lambda results: all(abs(ours - softmax) < 0.005 for _, softmax, ours in only(results)[1]["loss"]),
        ),
        Expectation(
            "after more steps through each, too",
            lambda results: abs(only(results)[1]["tuned"][OURS] - only(results)[1]["tuned"][SOFTMAX]) < 0.005,
        ),
    ),
    notes=f"2 layers of 128, 4 heads of 32, no absolute positions; biases within {WINDOW} tokens, of rank 16, none beyond, as "
    "the Inkling models have them within 1,024. Queries and keys have norm 1. Taylor features of first order (33), which no "
    "sample calibrates.",
    seeds=1,
)
