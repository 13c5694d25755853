# SPDX-License-Identifier: MIT
"""Sequences that are packed into one array, on a GPU, where a plan computes them in arrays in which each sequence is
padded to the longest one, rounded up to a multiple of 64 tokens (those of a grid are not). As nprf::cuda::PackedPlan,
but in memory of PyTorch, which has it only during a call."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ._options import Arguments, Options, tokens_of


def _check_cumulative(name: str, lengths: list[int], tokens: int) -> None:
    """ValueError, with the text of the CPU, unless they are 0, n_1, n_1 + n_2, ..., tokens."""
    if lengths[0] != 0:
        raise ValueError(f"{name}[0]: expected 0, got {lengths[0]}")
    for s in range(1, len(lengths)):
        if lengths[s] < lengths[s - 1]:
            raise ValueError(f"{name}[{s}]: expected at least {lengths[s - 1]} (the one before), got {lengths[s]}")
    if lengths[-1] != tokens:
        raise ValueError(f"{name}: expected to end at {tokens} (the number of tokens), got {lengths[-1]}")


def _check_grid(name: str, lengths: list[int], tokens: int) -> None:
    """ValueError, with the text of the CPU, unless each sequence that has tokens has those of the grid."""
    for n in [b - a for a, b in zip(lengths, lengths[1:])]:
        if n not in (0, tokens):
            raise ValueError(f"{name}: expected {tokens} rows (the position's tokens), got {n}")


class PaddedRows:
    """The rows of sequences that are packed into an array [heads, tokens, channels], in a padded one [sequences, heads,
    longest, channels]; with `tokens_first` both have tokens before heads. O(heads tokens channels) for each array."""

    def __init__(self, lengths: list[int], multiple: int, tokens_first: bool, device: torch.device) -> None:
        """lengths: cumulative. `longest` is the least multiple of `multiple` that no sequence exceeds."""
        counts = [b - a for a, b in zip(lengths, lengths[1:])]
        self._sequences, self._longest = len(counts), -(-max(counts, default=0) // multiple) * multiple
        ends = torch.tensor(lengths, device="cpu").to(device, non_blocking=True)
        row = torch.arange(self._longest, device=device)
        self._has_token = row < ends.diff()[:, None]  # [sequences, longest]
        self._token_of_row = torch.where(self._has_token, ends[:-1, None] + row, 0).flatten()
        token = torch.arange(lengths[-1], device=device)
        sequence = torch.searchsorted(ends, token, right=True) - 1
        self._row_of_token = sequence * self._longest + token - ends[sequence]
        self._tokens_first = tokens_first
        self._axis = 0 if tokens_first else 1  # that of tokens in a packed array

    def padded(self, x: Tensor) -> Tensor:
        """The padded array of a packed one, or of [tokens, channels] or [1, heads, tokens, channels]. Rows of padding
        are 0."""
        x = x.unsqueeze(1 - self._axis) if x.dim() == 2 else x.reshape(x.shape[-3:])
        if x.shape[self._axis] == 0:
            return self._empty(x, x.shape[1 - self._axis], x.shape[-1]).zero_()
        rows = self._split(x.index_select(self._axis, self._token_of_row))
        has_token = self._has_token[:, :, None, None] if self._tokens_first else self._has_token[:, None, :, None]
        rows.masked_fill_(~has_token, 0)
        return rows

    def empty_for(self, like: Tensor, channels: int) -> Tensor:
        """A padded array of the heads of another, in the order in which packed() reads it without a copy."""
        return self._empty(like, like.shape[2 if self._tokens_first else 1], channels)

    def _empty(self, like: Tensor, heads: int, channels: int) -> Tensor:
        tokens = self._sequences * self._longest
        return self._split(
            like.new_empty((tokens, heads, channels) if self._tokens_first else (heads, tokens, channels))
        )

    def packed(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """The packed array of a padded one, in a shape that padded() accepts."""
        joined = rows.movedim(0, self._axis).flatten(self._axis, self._axis + 1)
        found: Tensor = joined.index_select(self._axis, self._row_of_token).reshape(shape)
        return found

    def padded_mask(self, key_mask: Optional[Tensor]) -> Tensor:
        """[sequences, longest], False for padding, and for the keys that key_mask [1, n_k] or [n_k] drops."""
        if key_mask is None or key_mask.numel() == 0:
            return self._has_token
        return key_mask.flatten()[self._token_of_row].reshape(self._has_token.shape) & self._has_token

    def _split(self, rows: Tensor) -> Tensor:
        found: Tensor = rows.unflatten(self._axis, (self._sequences, self._longest)).movedim(self._axis, 0)
        return found


_multiple = 64  # of padded lengths, so that there are fewer plans


def padded_arguments(x: Arguments, options: Options) -> tuple[Arguments, PaddedRows, PaddedRows]:
    """The arguments of the padded sequences of a call with packed ones, and the rows of queries and of keys.
    ValueError, as on the CPU, for lengths that do not fit, and for a batch."""
    if x.key_mask is not None and x.key_mask.dtype != torch.bool:
        raise ValueError(f"lengths: expected none for packed sequences, got {x.key_mask.numel()}")
    for name, array in (("queries", x.q), ("keys", x.k), ("values", x.v)):
        if array.dim() not in (2, 3, 4):
            raise ValueError(f"{name}: expected 2, 3 or 4 dimensions, got {array.dim()}")
        if array.dim() == 4 and array.shape[0] != 1:
            raise ValueError(f"{name}: expected a batch of 1 for packed sequences on a GPU, got {array.shape[0]}")
    n_k, n_v = tokens_of(x.k, options), tokens_of(x.v, options)
    if n_k != n_v:
        raise ValueError(f"values: expected {n_k} rows (those of the keys), got {n_v}")
    assert x.packing is not None
    lengths, names = x.packing.tolist(), ("cumulative_lengths", "key_cumulative_lengths")
    is_grid = options.position.startswith("grid")

    def rows_of(of: str, array: Tensor, which: int) -> PaddedRows:
        _check_cumulative(names[which], lengths[which], tokens_of(array, options))
        if is_grid:
            _check_grid(of, lengths[which], options.grid_tokens(x.extra))
        return PaddedRows(lengths[which], 1 if is_grid else _multiple, options.tokens_first, x.q.device)

    last = len(lengths) - 1
    queries = rows_of("queries", x.q, 0)
    keys = queries if last == 0 and n_k == tokens_of(x.q, options) else rows_of("keys", x.k, last)
    padded = Arguments(
        queries.padded(x.q), keys.padded(x.k), keys.padded(x.v), x.bias, x.extra, keys.padded_mask(x.key_mask)
    )
    return padded, queries, keys
