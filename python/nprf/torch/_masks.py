# SPDX-License-Identifier: MIT
"""Masks as the layers of PyTorch and of other libraries give them. They are bool, or numbers that softmax attention
adds to q.k: 0 for a key that a query attends to, and -inf, or a number of at most -1000, whose exponential is 0 in
double, for one to which it does not."""

from __future__ import annotations

import torch
from torch import Tensor

from ._plain import is_plain

_dropped = -1000


def _check_type(mask: Tensor, name: str) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name}: expected bool or floating-point numbers, got {mask.dtype}")


def _dropped_keys(mask: Tensor, name: str) -> Tensor:
    """True where a mask of numbers drops a key. ValueError for a number that is neither 0 nor at most -1000."""
    dropped = mask <= _dropped
    others = mask[~dropped & (mask != 0)]
    if others.numel() > 0:
        raise ValueError(f"{name}: expected 0, or at most {_dropped} (such as -inf), got {float(others[0])}")
    return dropped


@torch.library.custom_op("nprf::padding", mutates_args=())
def _padding_op(mask: Tensor) -> Tensor:
    return _dropped_keys(mask, "key_padding_mask")


@_padding_op.register_fake
def _(mask: Tensor) -> Tensor:
    return torch.empty_like(mask, dtype=torch.bool)


def padding_of(mask: Tensor) -> Tensor:
    """The padding of a key_padding_mask, True for a key that is dropped; also in a graph of torch.compile. TypeError
    for integers, and ValueError for numbers that neither keep nor drop a key."""
    _check_type(mask, "key_padding_mask")
    if mask.dtype == torch.bool:
        return mask
    if mask.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "key_padding_mask: expected a mask without requires_grad, since it has no gradient, got one with it"
        )
    # without the operator, which would import dynamo, where it is not needed
    padding: Tensor = _dropped_keys(mask, "key_padding_mask") if is_plain(mask) else _padding_op(mask.detach())
    return padding


def check_causal(mask: Tensor, n_q: int, n_k: int, rows: int, offset: int) -> None:
    """ValueError unless an attn_mask [n_q, n_k] or [rows, n_q, n_k], with rows = batch x heads, True (or -inf) for a
    key to which a query does not attend, is the causal one, query i at i + offset; TypeError for integers. O(n_q
    n_k)."""
    _check_type(mask, "attn_mask")
    if mask.shape not in ((n_q, n_k), (rows, n_q, n_k)):
        raise ValueError(
            f"attn_mask: expected [{n_q}, {n_k}] (queries, keys) or [{rows}, {n_q}, {n_k}] (batch x heads first), got "
            f"the shape {list(mask.shape)}"
        )
    dropped = mask if mask.dtype == torch.bool else _dropped_keys(mask, "attn_mask")
    causal = torch.ones(n_q, n_k, dtype=torch.bool, device=mask.device).triu(1 + offset)
    if not bool((dropped == causal).all()):
        raise ValueError(
            "attn_mask: expected the causal mask, which drops the keys after each query and no others, got another"
        )


def _dropped_by_all(mask: Tensor, causal: bool, offset: int) -> Tensor:
    kept = mask if mask.dtype == torch.bool else ~_dropped_keys(mask, "mask")
    if mask.numel() == 0:
        return mask.new_zeros((mask.shape[0], mask.shape[-1]), dtype=torch.bool)
    if mask.dim() == 2:
        return (~kept).contiguous()
    n_q, n_k = kept.shape[2:]
    of_last = kept[:, :1, -1:]  # [batch, 1, 1, n_k]
    expected = of_last
    if causal and n_q > 1:
        expected = of_last & torch.ones(n_q, n_k, dtype=torch.bool, device=mask.device).tril(offset)
        of_padding = ~of_last[..., offset : offset + n_q].mT & (
            kept.all(-1, keepdim=True) | ~kept.any(-1, keepdim=True)
        )
        expected = torch.where(of_padding, kept, expected)
    if not bool((kept == expected).all()):
        raise ValueError(
            "mask: expected one by which all heads and queries attend to the same keys, of a causal layer to those "
            "that are not after the query; got one whose rows differ, such as that of several sequences in one"
        )
    return (~of_last[:, 0, 0]).contiguous()


def _dropped_by_rows(mask: Tensor, causal: bool, offset: int, contiguous: bool) -> Tensor:
    dropped = _dropped_by_all(mask, causal, offset)
    if contiguous:
        starts = ~dropped
        starts[:, 1:] &= dropped[:, :-1]
        if bool((starts.sum(1) > 1).any()):
            raise ValueError("mask: expected padding before or after the tokens of a sequence, got some between them")
    return dropped


@torch.library.custom_op("nprf::padding_of_rows", mutates_args=())
def _padding_of_rows_op(mask: Tensor, causal: bool, offset: int, contiguous: bool) -> Tensor:
    return _dropped_by_rows(mask, causal, offset, contiguous)


@_padding_of_rows_op.register_fake
def _(mask: Tensor, causal: bool, offset: int, contiguous: bool) -> Tensor:
    return mask.new_empty((mask.shape[0], mask.shape[-1]), dtype=torch.bool)


def padding_of_rows(
    mask: Tensor, causal: bool, n_q: int, n_k: int, offset: int = 0, contiguous: bool = False
) -> Tensor:
    """The padding [batch, n_k] of a mask of self-attention, [batch, n_k] or [batch, heads or 1, n_q or 1, n_k] with a
    row for each query, where True keeps a key; also in a graph of torch.compile. Query i is key i + offset. ValueError
    unless all heads and queries keep the same keys; if `causal`, those of them that are not after the query, but a
    query that is padding may keep all keys or none; and, if `contiguous`, if padding is between tokens of a sequence.
    """
    _check_type(mask, "mask")
    if mask.dim() not in (2, 4) or mask.shape[-1] != n_k or (mask.dim() == 4 and mask.shape[2] not in (1, n_q)):
        raise ValueError(f"mask: expected [batch, {n_k}] or [batch, heads, {n_q} or 1, {n_k}], got {list(mask.shape)}")
    if mask.dim() == 4 and mask.shape[1] > 1 and mask.stride(1) == 0:
        mask = mask[:, :1]  # the same for all heads
    if mask.dim() == 4 and not causal and mask.stride(2) == 0:
        mask = mask[:, :, :1]  # and for all queries
    # without the operator as in padding_of()
    padding_of = _dropped_by_rows if is_plain(mask) else _padding_of_rows_op
    padding: Tensor = padding_of(mask.detach(), causal, offset, contiguous)
    return padding
