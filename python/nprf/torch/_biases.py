# SPDX-License-Identifier: MIT
"""Relative position biases of a few parameters, for attention() and for softmax by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor, nn

from .._native import core
from .._value import bool_of, index_of, name_of
from ..positions import alibi_slopes
from ._options import PositionKind
from ._softmax import biases_of_lags


class RelativeBias(nn.Module):
    """The biases of heads by the distance of tokens. A call returns what attention(..., bias=bias(),
    position=bias.position) takes."""

    position: PositionKind
    causal = False

    def matrix(self, n_q: int, n_k: Optional[int] = None, offset: int = 0) -> Tensor:
        """The biases [heads, n_q, n_k] of all pairs, query i at the place i + offset, such as for the attn_mask of
        scaled_dot_product_attention; n_k is n_q by default. It drops no keys. O(heads n_q n_k)."""
        bias = self()
        n_k = n_q if n_k is None else n_k
        lags = torch.arange(n_k, device=bias.device) - torch.arange(offset, offset + n_q, device=bias.device)[:, None]
        found = biases_of_lags(bias, self.position, self.causal, lags)
        assert found is not None
        return found


class AlibiBias(RelativeBias):
    """ALiBi, -slope |lag|, with the slopes of nprf.alibi_slopes(heads, alibi_bias_max): a buffer, or with learned=True
    a parameter `slopes` [heads]."""

    position = "alibi"

    def __init__(self, heads: int, alibi_bias_max: float = 8, learned: bool = False, **factory: Any) -> None:
        super().__init__()
        slopes = torch.tensor(alibi_slopes(heads, alibi_bias_max), dtype=torch.get_default_dtype()).to(**factory)
        if bool_of(learned, "learned"):
            self.slopes = nn.Parameter(slopes)
        else:
            self.register_buffer("slopes", slopes)

    def forward(self) -> Tensor:
        return self.slopes


class T5Bias(RelativeBias):
    """The biases of T5, a parameter `weight` [buckets, heads], initially 0, which loads the state dict of T5's
    relative_attention_bias. causal: as in T5's decoder, all buckets are of lags <= 0."""

    def __init__(
        self, heads: int, buckets: int = 32, max_distance: int = 128, causal: bool = False, **factory: Any
    ) -> None:
        super().__init__()
        self.position = ("t5", index_of(max_distance, "max_distance"))
        self.causal = bool_of(causal, "causal")
        self.weight = nn.Parameter(torch.zeros(buckets, heads, **factory))

    def forward(self) -> Tensor:
        return self.weight.T


class SplineBias(RelativeBias):
    """The table [heads, 2 reach + 1] of splines, nprf.Spline with the same knots and end.

    The parameter `values` is [heads, k] for k knots, or [heads, 2 k] with two_sides: those of lags <= 0, then those of
    lags > 0; initially 0. One with another reach loads the same state dict.
    """

    position = "smooth_table"
    basis: Tensor

    def __init__(
        self,
        heads: int,
        knots: Sequence[int],
        reach: int,
        two_sides: bool = True,
        end: str = "constant",
        **factory: Any,
    ) -> None:
        super().__init__()
        at = [index_of(each, "knots") for each in knots]
        unit = np.eye(len(at) * (2 if bool_of(two_sides, "two_sides") else 1))
        # a spline is linear in its values: a sum of those of unit values
        tables = core.spline_tables(unit, at, index_of(reach, "reach"), name_of(end, "end"))
        dtype = factory.get("dtype") or torch.get_default_dtype()
        basis = torch.tensor(tables, device=factory.get("device"), dtype=dtype)
        self.register_buffer("basis", basis, persistent=False)
        self.values = nn.Parameter(torch.zeros(heads, len(unit), **factory))

    def forward(self) -> Tensor:
        return self.values @ self.basis
