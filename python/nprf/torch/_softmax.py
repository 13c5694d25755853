# SPDX-License-Identifier: MIT
"""Exact softmax attention by PyTorch, with a relative position bias as a matrix."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from .._native import core
from ._functional import Biases
from ._options import PositionKind, position_name


@functools.lru_cache(maxsize=16)
def _buckets(count: int, max_distance: int, causal: bool) -> Tensor:
    """T5's buckets of the lags -max_distance .. max_distance; all others are in those of the ends."""
    lags = range(-max_distance, max_distance + 1)
    return torch.tensor([core.t5_bucket(lag, count, causal, max_distance) for lag in lags])


@torch.library.custom_op("nprf::t5_buckets", mutates_args=())
def _buckets_op(count: int, max_distance: int, causal: bool) -> Tensor:
    return _buckets(count, max_distance, causal).clone()


@_buckets_op.register_fake
def _(count: int, max_distance: int, causal: bool) -> Tensor:
    return torch.empty(2 * max_distance + 1, dtype=torch.int64)


def biases_of_lags(bias: Biases, position: PositionKind, causal: bool, lags: Tensor) -> Optional[Tensor]:
    """[heads or 1, ...] of lags [...]; None without a bias. As for nprf.torch.attention, but for grids."""
    if bias is None:
        return None
    rows = bias.weight.T if isinstance(bias, torch.nn.Embedding) else bias
    kind, *sizes = position_name(position).split(":")
    if kind == "alibi":
        return -rows.reshape(-1, *[1] * lags.dim()) * lags.abs()
    if kind == "grid":
        raise ValueError("position: expected one by the distance of tokens, got a grid")
    rows = rows.reshape(-1, rows.shape[-1])
    reach = int(sizes[0]) if kind == "t5" else rows.shape[1] // 2
    at = lags.clamp(-reach, reach) + reach
    if kind == "t5":
        buckets_of = _buckets_op if torch.compiler.is_compiling() else _buckets  # without importing dynamo
        at = buckets_of(rows.shape[1], reach, causal).to(lags.device)[at]
    return rows[:, at]


def _stacked(heads: Sequence[int], x: Tensor, axis: int) -> Tensor:
    """Without a tensor of indices, which a GPU would wait for."""
    every = x.unbind(axis)
    return torch.stack([every[h] for h in heads], axis)


def part_of_heads(
    heads: Sequence[int], q: Tensor, k: Tensor, v: Tensor, bias: Biases, position: PositionKind
) -> tuple[Tensor, Tensor, Tensor, Biases]:
    """The part of some heads in q, k and v [batch, n, all heads, d] and in the parameters of their biases."""
    if len(heads) == q.shape[2]:
        return q, k, v, bias
    rows = bias.weight.T if isinstance(bias, torch.nn.Embedding) else bias
    if rows is not None and rows.dim() > (position_name(position) != "alibi") and rows.shape[0] > 1:
        rows = _stacked(heads, rows, 0)
    return _stacked(heads, q, 2), _stacked(heads, k, 2), _stacked(heads, v, 2), rows


def softmax_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Biases,
    position: PositionKind,
    causal: bool,
    offset: int,
    padding: Optional[Tensor] = None,
    cumulative_lengths: Optional[Tensor] = None,
) -> Tensor:
    """y [batch, n_q, heads, d_v] of q [batch, n_q, heads, d], k and v of n_k tokens; query i is at i + offset. padding
    [batch, n_k] is True for keys that are dropped; cumulative_lengths as for nprf.torch.attention, for n_q = n_k and
    without padding. Scores are q.k / sqrt(d) + b. O(heads n_q n_k) memory, batch times as much with padding."""
    if cumulative_lengths is not None:
        lengths = cumulative_lengths.diff().tolist()
        parts = zip(q.split(lengths, 1), k.split(lengths, 1), v.split(lengths, 1))
        rows = [softmax_rows(of_q, of_k, of_v, bias, position, causal, offset) for of_q, of_k, of_v in parts]
        return torch.cat(rows, dim=1)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    n_q, n_k = q.shape[2], k.shape[2]
    lags = torch.arange(n_k, device=q.device) - torch.arange(offset, offset + n_q, device=q.device)[:, None]
    scores = biases_of_lags(bias, position, causal, lags)
    added = q.new_zeros(1, n_q, n_k) if scores is None else scores.to(q.dtype)
    if causal:
        added = added.masked_fill(lags > 0, -torch.inf)
    added = added[None]
    if padding is not None:
        added = added.masked_fill(padding[:, None, None, :], -torch.inf)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added)
    return y.masked_fill((added == -torch.inf).all(-1, keepdim=True), 0).transpose(1, 2)  # 0: rows without keys
