# SPDX-License-Identifier: MIT
"""One training loop for all experiments."""

import math
import statistics
import time
from typing import NamedTuple

import torch
from torch import nn

from .models import Attention, Bias

BIAS_RATE = 10.0  # the learning rate of relative position biases, over that of all else, in every variant that has them


class Training(NamedTuple):
    """losses: (step, the mean of the training loss since the last entry). norm: the largest |q| times the largest |k| of a
    call, over sqrt(d)."""

    losses: list
    ms: float  # a step: processor time, which other programs do not change, or with a GPU wall time
    diverged: bool
    norm: float


def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def optimizer_of(model, rate):
    biases = {id(p) for module in model.modules() if isinstance(module, Bias) for p in module.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in biases], "scale": 1.0, "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if id(p) in biases], "scale": BIAS_RATE, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-6)


def schedule(step, steps, decay=True):
    """Linear warm-up over a twelfth of the steps, then a cosine down to zero, or without decay 1."""
    warm_up = max(1, steps // 12)
    return min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / steps)) if decay else 1.0)


def diverges(losses):
    """Whether a loss is not finite, or those of the last tenth of the training are half a nat above the smallest."""
    values = [loss for _, loss in losses]
    if not all(map(math.isfinite, values)):
        return True
    last = values[-max(1, len(values) // 10) :]
    return sum(last) / len(last) > min(values) + 0.5


def part_size(settings):
    """The size of a part of the batch of a run: `parts` of them fit in memory one after another, if not the whole."""
    return settings["batch"] // settings.get("parts", 1)


def train(
    model, loss_of, *, steps, rate, seed, progress, parts=1, clip=1.0, decay=True, log_norms=False, checkpoint=None
):
    """Trains by AdamW. loss_of(generator) draws a batch, or with parts > 1 one of that many equal parts of it, and returns
    its mean loss. progress(step, steps) is called each step.

    checkpoint: a file that gets the state every ten minutes and, of a longer training, at the end; an interrupted training
    goes on from it.
    """
    optimizer = optimizer_of(model, rate)
    generator = torch.Generator().manual_seed(10_000 + seed)
    attentions = [each for each in model.modules() if isinstance(each, Attention)]
    for each in attentions:
        each.logs_norms = log_norms
    first, losses, recent, seconds = 0, [], [], 0.0
    if checkpoint is not None and checkpoint.exists():
        first, losses, seconds = _resume(checkpoint, model, optimizer, generator, attentions)
    model.train()
    every, saved = max(1, steps // 60), time.monotonic()
    clock = time.monotonic if device() == "cuda" else time.process_time
    begin, start = saved - seconds, clock() - seconds
    for step in range(first, steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"] * schedule(step, steps, decay)
        optimizer.zero_grad()
        loss = 0.0
        for _ in range(parts):
            part = loss_of(generator) / parts
            part.backward()
            loss += part.item()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        recent.append(loss)
        done, finite = step + 1, math.isfinite(recent[-1])
        progress(done, steps)
        if done % every == 0 or done == steps or not finite:
            losses.append((done, statistics.fmean(recent)))
            recent = []
            if not finite:
                break
            now = time.monotonic()
            if checkpoint is not None and now - (begin if done == steps else saved) > 600:
                _save(checkpoint, done, losses, clock() - start, model, optimizer, generator, attentions)
                saved = now
    ms = 1000 * (clock() - start) / losses[-1][0]
    model.eval()
    return Training(losses, ms, diverges(losses), max((each.largest_norm for each in attentions), default=0.0))


def train_run(run, model, loss_of, progress, **options):
    """train() with the steps, the parts of a batch, the learning rate, the seed and the checkpoint of a run."""
    s = run.settings
    return train(
        model, loss_of, steps=s["steps"], parts=s.get("parts", 1), rate=s["rate"], seed=run.seed, progress=progress,
        checkpoint=run.checkpoint, **options,
    )  # fmt: skip


def _save(checkpoint, step, losses, seconds, model, optimizer, generator, attentions):
    state = {
        "step": step, "losses": losses, "seconds": seconds, "model": model.state_dict(),
        "optimizer": optimizer.state_dict(), "generator": generator.get_state(), "torch": torch.get_rng_state(),
        "norms": [each.largest_norm for each in attentions],
    }  # fmt: skip
    partial = checkpoint.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(checkpoint)


def _resume(checkpoint, model, optimizer, generator, attentions):
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    generator.set_state(state["generator"])
    torch.set_rng_state(state["torch"])
    for each, norm in zip(attentions, state.get("norms", [])):
        each.largest_norm = norm
    return state["step"], [tuple(each) for each in state["losses"]], state["seconds"]
