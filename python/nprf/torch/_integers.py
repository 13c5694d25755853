# SPDX-License-Identifier: MIT
"""Integers of a call, one for each sequence: lengths, numbers of tokens, indices of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import torch
from torch import Tensor

Integers = Union[Tensor, Sequence[int]]


def check_integers(name: str, x: Integers) -> Tensor:
    """x as a tensor, x itself if it is one. TypeError for other types."""
    try:
        found = x if isinstance(x, Tensor) else torch.tensor(x, device="cpu")
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected integers, got {x!r}") from error
    if found.numel() > 0 and (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool):
        raise TypeError(f"{name}: expected integers, got {found.dtype}")
    return found


def per_sequence(name: str, x: Integers, batch: int) -> Tensor:
    """[batch], x itself if it is a tensor. TypeError for other types, and ValueError for another shape."""
    found = check_integers(name, x)
    if found.shape != (batch,):
        raise ValueError(f"{name}: expected {batch} numbers (one a sequence), got the shape {list(found.shape)}")
    return found


def check_range(name: str, x: Tensor, most: int, meaning: str) -> None:
    """ValueError for a number that is not 0 to `most`. Those on a GPU are not checked, since the call would have to
    wait for them: kernels clamp lengths, and reject other numbers."""
    for s, number in enumerate([] if x.is_cuda else x.tolist()):
        if not 0 <= number <= most:
            raise ValueError(f"{name}[{s}]: expected 0 to {most} ({meaning}), got {number}")


def for_kernels(x: Tensor, device: torch.device) -> Tensor:
    """int32 on the GPU, x itself if it is that; copied without waiting if it is on the CPU."""
    return x.to(torch.int32).to(device, non_blocking=True).contiguous()
