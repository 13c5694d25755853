# SPDX-License-Identifier: MIT
"""The near field, sinks and features of each layer of a model, within a budget."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import numpy as np
import torch
from torch import nn

from .._attention import Calibration
from ._options import position_name
from ._served import ServedAttention
from ._softmax import biases_of_lags


def cost_of(layer: ServedAttention, num_features: int, near: int, sinks: int) -> int:
    """In keys, as in ModelCalibration:

        near pairs + sinks + (2 d^2 + 2 tails r (d + 1) + band (r + d + 1)) / (2 d + 1)

    with r features, of which 2 d^2 multiply-adds centre a query and a key; a state r x (d + 1) for each tail of the
    biases, that keys are added to and queries are multiplied by; and the lags between the tails (`band`), whose pairs are
    computed one by one."""
    d, causal = layer.attention_sizes()[1], layer.attends_causally()
    bias, position = layer.bias_and_position()
    tails, band = (1, 0) if bias is None else (1 if causal else 2, 1)
    kind, *sizes = position_name(position).split(":")
    if bias is not None and kind != "alibi":
        weight = bias.weight.T if isinstance(bias, nn.Embedding) else bias
        reach = int(sizes[0]) if sizes else weight.shape[-1] // 2
        lags = torch.arange(-reach, 1 if causal else reach + 1, device=weight.device)
        rows = biases_of_lags(weight.reshape(-1, weight.shape[-1]), position, causal, lags)
        if rows is not None:
            between = (rows != rows[:, :1]) & (causal | (rows != rows[:, -1:]))
            band = int(between.any(0).sum())
    columns = d + 1  # of the values and of a column of ones
    pairs = (near if causal else max(0, 2 * near - 1)) + sinks
    features = 2 * d**2 + 2 * tails * num_features * columns + band * (num_features + columns)
    return pairs + math.ceil(features / (d + columns))


class Choice(NamedTuple):
    """The options of a layer; their cost (cost_of), and the error that was estimated with the first half of a sample."""

    near: int
    sinks: int
    num_features: int
    cost: int
    error: float


def choices_of(layer: ServedAttention, calibrations: dict[tuple[int, int], Calibration]) -> list[Choice]:
    found = []
    for (near, sinks), calibration in calibrations.items():
        for first, second, error in calibration.candidates:
            count = 1 + first + second * (second + 1) // 2
            found.append(Choice(near, sinks, count, cost_of(layer, count, near, sinks), error))
    return found


def best_choices(layers: list[list[Choice]], budget: Optional[float]) -> list[Choice]:
    """One of each layer: those with the least sum of squared errors whose mean cost is at most the budget. ValueError
    if there are none. O(choices x layers x budget)."""
    most = sum(max(each.cost for each in choices) for choices in layers)
    least = sum(min(each.cost for each in choices) for choices in layers)
    if budget is not None:
        if not budget * len(layers) >= least:
            cheapest = math.ceil(least / len(layers))
            raise ValueError(f"budget: expected at least {cheapest} keys (the cheapest choice), got {budget}")
        most = int(min(most, budget * len(layers)))
    errors = np.full(most + 1, math.inf)  # errors[c]: the least sum of the layers so far, if they cost c
    errors[0] = 0
    taken = []
    for choices in layers:
        sums = np.full((len(choices), most + 1), math.inf)
        for row, (*_, cost, error) in zip(sums, choices):
            row[cost:] = errors[: max(0, most + 1 - cost)] + error**2
        taken.append(sums.argmin(0))
        errors = sums.min(0)
    at, found = int(errors.argmin()), []
    for choices, of_cost in zip(reversed(layers), reversed(taken)):
        found.append(choices[of_cost[at]])
        at -= found[-1].cost
    return found[::-1]
