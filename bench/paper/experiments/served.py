# SPDX-License-Identifier: MIT
"""Not in the paper: encoders of long texts that were trained with softmax, served by calibrated maps."""

import contextlib
import copy
import ctypes
import gc
import pathlib
import statistics
import sys
import time

import nprf.torch
import torch
from torch.nn.attention.flex_attention import flex_attention

from .. import data, training
from ..models import BUCKETS, MAX_DISTANCE, Mechanism, t5_buckets
from ..results import Expectation, number
from ..training import device
from . import Experiment, texts
from .fig2 import calibrations_of
from .table5 import MASK, loss_on, with_masks

POSITIONS = {"T5": True, "ALiBi": "alibi"}  # Mechanism.rpe
SOFTMAX, FLEX, OURS = "softmax", "FlexAttention", "nprf"


def plan(options):
    size = texts.size_of(options, steps=200, tokens=2048, batch=2, parts=2, dim=256, heads=4, rate=1e-3, held_out=32)
    tiny = options.size == "tiny"
    more = {
        "short": {"tokens": 16, "batch": 2, "steps": 1} if tiny else {"tokens": 256, "batch": 8, "steps": 600},
        "lengths": [size["tokens"] * factor for factor in ((1, 2) if tiny else (1, 2, 4, 8))],
        "near": 4 if tiny else 64,
        "tuning": [1, 2] if tiny else [50, 200, 1000],
        "compiled": not tiny,  # FlexAttention, too
    }
    return [{"variant": name, **size, **more} for name in POSITIONS]


@torch.no_grad()
def start_as_alibi(bias):
    """The learned biases of T5's buckets begin as ALiBi's, at the mean distance of each. If they begin at 0, a training
    this short does not leave the frequencies of bytes."""
    lags = torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    buckets = t5_buckets(lags, bias.causal)
    distances = torch.bincount(buckets, lags.abs().double(), BUCKETS) / torch.bincount(
        buckets, minlength=BUCKETS
    ).clamp_min(1)
    slopes = nprf.torch.AlibiBias(len(bias.weight)).slopes
    bias.weight.copy_(-slopes[:, None] * distances)


def converted(model, calibrations, near):
    made = copy.deepcopy(model)
    for block, each in zip(made.blocks, calibrations):
        block.attention.convert(each.features, near, sinks=1)
    return made


@torch.no_grad()
def held_out_loss(model, text, tokens, settings):
    """Of about as many bytes whatever the length of sequences."""
    count = max(1, settings["held_out"] * settings["tokens"] // tokens)
    generator = torch.Generator().manual_seed(0)
    rows = data.spread(text.valid, tokens, count)
    return statistics.fmean(loss_on(model, row[None], generator).item() for row in rows)


@torch.no_grad()
def errors_of_layers(model, rows):
    """The relative error of the rows of each layer, beside exact softmax of the same queries, keys and values. None on a
    GPU, where nprf has no reports."""
    if rows.is_cuda:
        return [None for _ in model.blocks]
    attentions = [block.attention for block in model.blocks]
    for each in attentions:
        each.reports, each.softmax_samples = [], 64
    model(rows)
    errors = [each.reports[0].softmax_error for each in attentions]
    for each in attentions:
        each.reports, each.softmax_samples = None, 0
    return errors


@contextlib.contextmanager
def with_matrices(model, n):
    """The matrices of biases, which softmax needs, are made before what is measured."""
    for block in model.blocks:
        made = block.attention.bias.matrix(n, n)
        block.attention.bias.matrix = lambda *_, made=made: made
        block.attention.bias.of_sizes.clear()
    yield
    for block in model.blocks:
        del block.attention.bias.matrix


@contextlib.contextmanager
def with_flex_attention(model, _):
    """Softmax by FlexAttention, which has no matrix of biases."""
    attend = torch.compile(flex_attention, dynamic=True)
    for block in model.blocks:
        attention = block.attention
        slopes = attention.bias.numbers() if attention.bias.kind == "alibi" else None
        table = attention.bias.matrix(2 * MAX_DISTANCE + 1, 2 * MAX_DISTANCE + 1)[:, MAX_DISTANCE].contiguous()

        def score(s, b, h, i, j, slopes=slopes, table=table):
            if slopes is not None:
                return s - slopes[h] * (j - i).abs()
            return s + table[h, (j - i).clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE]

        def softmax(q, k, v, padding, score=score):
            return attend(*(x.transpose(1, 2) for x in (q, k, v)), score_mod=score).transpose(1, 2)

        attention._softmax = softmax
    yield
    for block in model.blocks:
        del block.attention._softmax


def memory(name):
    """Of this process, in MiB: a line of /proc/self/status."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


@torch.no_grad()
def cost(model, rows, prepare=None):
    """(milliseconds, MiB) of a forward pass of one sequence, rows [1, tokens]: the median of three after a first one, and
    the memory that it takes at most beside what there was, None but on Linux."""
    with contextlib.nullcontext() if prepare is None else prepare(model, rows.shape[1]):
        model(rows)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            model(rows)
            times.append(time.perf_counter() - start)
        taken = None
        if sys.platform == "linux":
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # what was freed is not held back
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
            before = memory("VmRSS")
            model(rows)
            taken = memory("VmHWM") - before
    return 1000 * statistics.median(times), taken


def measure(run, progress):
    s = run.settings
    text, mechanism = data.text(s["source"]), vars(Mechanism(rpe=POSITIONS[s["variant"]]))
    as_language_model = run._replace(settings={**s, "mechanism": mechanism})
    model = texts.language_model(as_language_model, MASK + 1, s["tokens"], causal=False)

    def training_of(of, tokens=s["tokens"], batch=training.part_size(s)):
        def loss_of(generator):
            return loss_on(of, data.windows(text.train, tokens, batch, generator), generator)

        return loss_of

    if not run.checkpoint.exists():
        for block in model.blocks:
            if block.attention.bias.kind == "t5":
                start_as_alibi(block.attention.bias)
        short = training_of(model, s["short"]["tokens"], s["short"]["batch"])
        training.train(model, short, steps=s["short"]["steps"], rate=s["rate"], seed=run.seed, progress=lambda *_: None)
    made = training.train_run(run, model, training_of(model), lambda done, steps: progress(done, 3 * steps))
    inputs, _ = with_masks(data.spread(text.train, s["tokens"], 4), torch.Generator().manual_seed(1))
    start = time.process_time()
    calibrations = calibrations_of(model, inputs.to(device()), s["near"], sinks=1)
    spent = time.process_time() - start
    ours = converted(model, calibrations, s["near"])
    ways = {SOFTMAX: (model, with_matrices), FLEX: (model, with_flex_attention), OURS: (ours, None)}
    if not s["compiled"]:
        del ways[FLEX]
    found = {"loss": {SOFTMAX: [], OURS: []}, "ms": {name: [] for name in ways}, "MiB": {name: [] for name in ways}}
    errors = []
    for done, n in enumerate(s["lengths"]):
        inputs = with_masks(data.spread(text.valid, n, 1), torch.Generator().manual_seed(2))[0].to(device())
        for name, (served, prepare) in ways.items():
            ms, taken = cost(served, inputs, prepare)
            found["ms"][name].append(ms)
            found["MiB"][name].append(taken)
        for name in (SOFTMAX, OURS):
            found["loss"][name].append(held_out_loss(ways[name][0], text, n, s))
            for block in model.blocks:
                block.attention.bias.of_sizes.clear()
        errors.append(errors_of_layers(ours, inputs))
        progress(len(s["lengths"]) + done + 1, 3 * len(s["lengths"]))
    tuned = []
    for done, steps in enumerate(s["tuning"]):
        more = copy.deepcopy(ours)
        options = {"rate": s["rate"] / 10, "seed": run.seed + 1, "parts": s.get("parts", 1)}
        training.train(more, training_of(more), steps=steps, progress=lambda *_: None, **options)
        tuned.append(held_out_loss(more, text, s["tokens"], s))
        progress(2 * len(s["tuning"]) + done + 1, 3 * len(s["tuning"]))
    maps = [[each.output_dim for each in of.features.maps] for of in calibrations]
    promised = {"errors": [of.softmax_error for of in calibrations], "features": maps, "seconds": spent}
    return {
        **found, "errors": errors, "tuned": tuned, "calibration": promised, "diverged": made.diverged, "losses": made.losses,
        "data": text.name,
    }  # fmt: skip


def of_variant(results, name):
    """(settings, the result of the first seed)."""
    settings, _, result = results.of(variant=name).entries[0]
    return settings, result


def table(results):
    names = next(iter(results.entries))[2]["ms"].keys()
    columns = ["trained with", "tokens", "loss: softmax", "nprf", *(f"ms: {each}" for each in names)]
    columns += [f"MiB: {each}" for each in names] + ["errors of layers, %"]
    rows = []
    for name in results.settings("variant"):
        settings, found = of_variant(results, name)
        for at, n in enumerate(settings["lengths"]):
            losses = [f"{found['loss'][each][at]:.4f}" for each in (SOFTMAX, OURS)]
            costs = [
                "" if found[unit][each][at] is None else number(found[unit][each][at], 3)
                for unit in ("ms", "MiB")
                for each in names
            ]
            errors = ", ".join("" if each is None else number(100 * each, 2) for each in found["errors"][at])
            rows.append([name, f"{n:,}", *losses, *costs, errors])
        for steps, loss in zip(settings["tuning"], found["tuned"]):
            rows.append([f"{name}, and {steps} steps through nprf", f"{settings['tokens']:,}", "", f"{loss:.4f}"])
    return columns, [row + [""] * (len(columns) - len(row)) for row in rows]


def draw(results, figure):
    axes = figure.subplots()
    for name in results.settings("variant"):
        settings, found = of_variant(results, name)
        for way, times in found["ms"].items():
            style = "-" if way == OURS else "--"
            axes.plot(settings["lengths"], times, style, marker="o", markersize=3, label=f"{name}, {way}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("milliseconds of a forward pass, one thread")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=7)


def each_length(results, holds):
    """Whether holds(found, at) is true of all variants and lengths."""
    found = [of_variant(results, name) for name in results.settings("variant")]
    return all(holds(each, at) for settings, each in found for at in range(len(settings["lengths"])))


def faster_at_third_length(results):
    found = [of_variant(results, name)[1]["ms"] for name in results.settings("variant")]
    return all(each[SOFTMAX][:3][-1] > 4 * each[OURS][:3][-1] for each in found)


EXPERIMENT = Experiment(
    name="served",
    title="Not in the paper: long encoders, trained with softmax and served by calibrated maps",
    claim="An encoder that was trained with plain softmax and a relative position bias can be served by nprf at its own "
    "length and at longer ones, at the same loss and in less time.",
    plan=plan,
    measure=measure,
    table=table,
    draw=draw,
    expectations=(
        Expectation(
            "the loss is within 0.02 nats of softmax at all lengths",
            lambda results: each_length(
                results, lambda found, at: found["loss"][OURS][at] < found["loss"][SOFTMAX][at] + 0.02
            ),
        ),
        Expectation("with 8,192 tokens a forward pass is four times faster than by SDPA", faster_at_third_length),
    ),
    notes="Masked bytes, as in table 5; 2 layers of 256, 4 heads of 64; trained with 256 tokens, then 2,048, without absolute "
    "positions; T5's biases begin as ALiBi's. Queries and keys are not normalised. Maps: `nprf.calibrate` of four training sequences of 2,048 tokens, at "
    "most 72 features, near field of 64 tokens, one sink. Times and memory: whole forward pass of one sequence, one thread, "
    "float32; the matrices of biases, which SDPA needs, are made before the measurement and are not counted. Errors: of "
    "64 rows of each head, beside exact softmax of the same layer's inputs. *Steps through nprf*: training that goes on with "
    "the calibrated maps, with a tenth of the learning rate.",
    seeds=1,
    alone=True,
)
