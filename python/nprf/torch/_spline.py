# SPDX-License-Identifier: MIT
"""Biases of a few parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._native import core
from .._value import bool_of, index_of, name_of


class SplineBias(nn.Module):
    """The table [heads, 2 reach + 1] of splines, nprf.Spline with the same knots and end, for
    attention(..., bias=spline(), position="smooth_table").

    The parameter `values` is [heads, k] for k knots, or [heads, 2 k] with two_sides: those of lags <= 0, then those of
    lags > 0; initially 0. One with another reach loads the same state dict.
    """

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
