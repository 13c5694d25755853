# SPDX-License-Identifier: MIT
"""Figure 2: models trained with softmax, served by feature maps without training."""

import statistics

import nprf
import torch

from .. import data
from ..models import FEATURES
from ..results import Expectation, Statistic
from ..training import device
from . import Experiment, mechanism_settings, texts

VARIANTS = ("softmax", "softmax + RPE", "normalised softmax", "normalised softmax + RPE")
FEATURE_COUNTS = (8, 16, 32, 64, 128, 256)
DRAWS = 3  # of the random vectors
CALIBRATED = 72  # the most features of a calibrated map


def plan(options):
    size = {**texts.size_of(options, steps=600), "near": 4 if options.size == "tiny" else 32}
    if options.size != "paper":
        size["held_out"] = min(size["held_out"], 32)
    return [{"variant": name, "mechanism": mechanism_settings(name), "version": 2, **size} for name in VARIANTS]


@torch.no_grad()
def layer_inputs(model, rows):
    """What each attention layer gets for the sequences `rows`."""
    inputs, hooks = [], []
    for block in model.blocks:
        hooks.append(block.attention.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0])))
    model(rows)
    for hook in hooks:
        hook.remove()
    return inputs


@torch.no_grad()
def calibrations_of(model, rows, near, sinks=0):
    """Of each layer, for a near field and sinks, from queries, keys and values of the sequences `rows`."""
    found = []
    for block, x in zip(model.blocks, layer_inputs(model, rows)):
        attention = block.attention
        q, k, v = (each.transpose(1, 2).cpu().numpy() for each in attention.project(x, x))  # [batch, heads, n, d]
        position = None if attention.bias is None else attention.bias.position()
        options = {"near": near, "sinks": sinks, "causal": attention.causal, "normalization": attention.normalization}
        found.append(nprf.calibrate(q, k, v, position, num_features=CALIBRATED, **options))
    return found


def converted_loss(model, maps, near, rows, batch):
    for block, features in zip(model.blocks, maps):
        block.attention.convert(features, near)
    return texts.held_out_loss(model, rows, batch)


def recomputed_share(model, rows):
    """The share of rows of all layers and heads that nprf recomputes by exact softmax, since terms cancel or rounding may
    have spoiled them. None on a GPU, where nprf has no reports."""
    if rows.is_cuda:
        return None
    attentions = [block.attention for block in model.blocks]
    for each in attentions:
        each.reports = []
    with torch.no_grad():
        model(rows)
    recomputed = sum(report.repaired_rows for each in attentions for report in each.reports)
    for each in attentions:
        each.reports = None
    return recomputed / (rows.numel() * sum(each.heads for each in attentions))


def measure(run, progress):
    s = run.settings
    model, made, rows = texts.trained(run, lambda done, of: progress(done, 2 * of))
    softmax = texts.held_out_loss(model, rows, s["batch"])
    sample = data.spread(data.text(s["source"]).train, s["tokens"], 8).to(device())
    maps = [each.features for each in calibrations_of(model, sample, s["near"])]
    losses = {"softmax": softmax, "calibrated": converted_loss(model, maps, s["near"], rows, s["batch"])}
    recomputed = recomputed_share(model, rows[:, :-1].to(device()))
    d = model.blocks[0].attention.d
    for done, m in enumerate(FEATURE_COUNTS):
        draws = []
        for draw in range(DRAWS):
            maps = [FEATURES["orf"](d, m, 1000 * draw + layer) for layer in range(len(model.blocks))]
            draws.append(converted_loss(model, maps, 0, rows, s["batch"]))
        losses[str(m)] = statistics.fmean(draws)
        progress(len(FEATURE_COUNTS) + done + 1, 2 * len(FEATURE_COUNTS))
    return {
        "converted": losses, "recomputed": recomputed, "diverged": made.diverged, "ms": made.ms,
        "data": data.text(s["source"]).name,
    }  # fmt: skip


def loss(results, name, served):
    """The held-out loss of a variant served by softmax, by m features, or by calibrated maps with a near field."""
    return Statistic(entry[2]["converted"][served] for entry in results.of(variant=name).entries)


def recomputed(results, name):
    shares = results.of(variant=name).values("recomputed")
    return "" if None in shares else f"{100 * statistics.fmean(shares):.1f} %"


def table(results):
    served = ["softmax", *map(str, FEATURE_COUNTS), "calibrated"]
    rows = [
        [
            name,
            *(loss(results, name, each).text(3) for each in served),
            recomputed(results, name),
        ]
        for name in results.settings("variant")
    ]
    titles = [
        "trained with",
        "softmax",
        *(f"m = {m}" for m in FEATURE_COUNTS),
        "calibrated, near field",
        "recomputed rows",
    ]
    return titles, rows


def draw(results, figure):
    axes = figure.subplots()
    for name in results.settings("variant"):
        points = [loss(results, name, str(m)) for m in FEATURE_COUNTS]
        deviations = [each.deviation for each in points]
        (bars, *_) = axes.errorbar(
            FEATURE_COUNTS, [each.mean for each in points], deviations, marker="o", capsize=3, linewidth=1, label=name
        )
        axes.axhline(loss(results, name, "softmax").mean, color=bars.get_color(), linewidth=0.7, linestyle=":")
        axes.plot(
            [CALIBRATED], [loss(results, name, "calibrated").mean], marker="*", markersize=11, color=bars.get_color()
        )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("random features (star: calibrated, with a near field; dotted: softmax)")
    axes.set_ylabel("held-out loss, nats a byte")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=7)


def lost(results, name, served):
    return loss(results, name, served).mean - loss(results, name, "softmax").mean


EXPERIMENT = Experiment(
    name="fig2",
    title="Figure 2: conversion without training",
    claim="A model trained with normalised softmax and relative positions can be served by random features, one trained "
    "with plain softmax cannot.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation(
            "normalised + RPE loses less than 0.1 nats with 128 features",
            lambda results: lost(results, "normalised softmax + RPE", "128") < 0.1,
        ),
        Expectation(
            "plain softmax loses more than 0.1 nats with 128 features",
            lambda results: lost(results, "softmax", "128") > 0.1,
        ),
        Expectation(
            "calibrated maps with a near field lose less than 0.1 nats in all (not in the paper)",
            lambda results: all(lost(results, name, "calibrated") < 0.1 for name in VARIANTS),
        ),
    ),
    notes="The paper converts translation models. Here language models of bytes; means of three draws of the random "
    "vectors; calibrated: `nprf.calibrate` of eight training sequences, at most 72 features, near field of 32 tokens. "
    "Recomputed rows: with calibrated maps, the share of rows that nprf recomputed by exact softmax, since terms cancelled "
    "or rounding may have spoiled them.",
)
