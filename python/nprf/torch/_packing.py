# SPDX-License-Identifier: MIT
"""Sequences that are packed into one array, on a GPU, where a plan computes them in arrays in which each sequence is
padded to the longest one."""

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


def _check_equal(name: str, lengths: list[int]) -> None:
    """ValueError unless all sequences that have tokens have as many, as a grid needs."""
    counts = [b - a for a, b in zip(lengths, lengths[1:]) if b > a]
    for n in counts:
        if n != max(counts):
            raise ValueError(f"{name}: expected {max(counts)} rows (the position's tokens), got {n}")


class PaddedRows:
    """The rows of sequences that are packed into an array [heads, tokens, channels], in a padded one [sequences, heads,
    longest, channels]; with `tokens_first` both have tokens before heads. O(heads tokens channels) for each array."""

    def __init__(self, lengths: list[int], multiple: int, tokens_first: bool, device: torch.device) -> None:
        """lengths: cumulative. longest: the least multiple that no sequence is longer than."""
        ends = torch.tensor(lengths)
        first, counts = ends[:-1, None], ends.diff()[:, None]
        self._sequences = counts.shape[0]
        self._longest = -(-int(counts.max()) // multiple) * multiple if counts.numel() > 0 else 0
        row = torch.arange(self._longest)
        has_token = row < counts
        self._has_token = has_token.to(device)  # [sequences, longest]
        self._token_of_row = torch.where(has_token, first + row, 0).flatten().to(device)
        self._row_of_token = has_token.flatten().nonzero()[:, 0].to(device)
        self._tokens_first = tokens_first
        self._axis = 0 if tokens_first else 1  # that of tokens in a packed array

    def padded(self, x: Tensor) -> Tensor:
        """The padded array of a packed one, or of [tokens, channels] or [1, heads, tokens, channels]. Rows of padding
        are 0."""
        if x.dim() == 2:
            x = x.unsqueeze(1 - self._axis)
        if x.shape[self._axis - 3] == 0:
            return self.empty_for(x[None], x.shape[-1]).zero_()
        rows = self._split(x.reshape(x.shape[-3:]).index_select(self._axis, self._token_of_row))
        has_token = self._has_token[:, :, None, None] if self._tokens_first else self._has_token[:, None, :, None]
        rows.masked_fill_(~has_token, 0)
        return rows

    def empty_for(self, like: Tensor, channels: int) -> Tensor:
        """A padded array of the heads of another, in the order in which packed() reads it without a copy."""
        shape = [0, 0, channels]
        shape[self._axis] = self._sequences * self._longest
        shape[1 - self._axis] = like.shape[2 if self._tokens_first else 1]
        return self._split(like.new_empty(shape))

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
    """The arguments of the padded sequences of a call with packed ones, and the rows of queries and of keys. Waits for
    cumulative lengths that are on a GPU. ValueError, as on the CPU, for lengths that do not fit, and for a batch."""
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
    rows = []
    for of, array, name, each in (
        ("queries", x.q, names[0], lengths[0]),
        ("keys", x.k, names[len(lengths) - 1], lengths[-1]),
    ):
        _check_cumulative(name, each, tokens_of(array, options))
        if is_grid:
            _check_equal(of, each)
        rows.append(PaddedRows(each, 1 if is_grid else _multiple, options.tokens_first, x.q.device))
    queries, keys = rows
    padded = Arguments(
        queries.padded(x.q), keys.padded(x.k), keys.padded(x.v), x.bias, x.extra, keys.padded_mask(x.key_mask)
    )
    return padded, queries, keys
