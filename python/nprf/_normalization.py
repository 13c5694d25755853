# SPDX-License-Identifier: MIT
"""The scaling of queries and keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._native import as_array, native_of
from ._value import Value


class Normalization(Value):
    """The scaling of queries and keys: Normalization.unit(r), every row to norm r; Normalization.none(), q.k / sqrt(d)
    as in softmax attention. Only unit(r) scales those of features that do not estimate exp (elu)."""

    _arguments = ("radius",)
    radius: float

    def __init__(self, radius: float = 1.0) -> None:
        self._set(radius=float(radius))
        if not (0 <= self.radius < math.inf):
            raise ValueError(f"radius: expected a positive finite number, got {radius}")

    @classmethod
    def unit(cls, radius: float = 1.0) -> Normalization:
        """Every row is scaled to norm `radius`. ValueError unless it is positive and finite."""
        if not radius > 0:
            raise ValueError(f"radius: expected a positive finite number, got {radius}")
        return cls(radius)

    @classmethod
    def none(cls) -> Normalization:
        """q.k / sqrt(d), as in softmax attention: rows of queries and of keys are divided by the fourth root of d. With
        features that do not estimate exp (elu) they stay as they are."""
        return cls(0.0)

    def apply(self, x: Any) -> NDArray[Any]:
        """Rows of queries or of keys [.., n, d], float32 or float64, scaled as the attention does with features that
        estimate the exponentials of their dot products. A row of zeros stays zero."""
        return self._scaled(as_array(x, "x"), "x")

    def _scaled(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        native_of(x.dtype, name)
        if x.ndim < 1:
            raise ValueError(f"{name}: expected at least 1 dimension, got 0")
        rows: NDArray[Any]
        if self.radius == 0:
            rows = x * x.dtype.type(max(x.shape[-1], 1) ** -0.25)
        else:
            scale = np.abs(x).max(axis=-1, keepdims=True, initial=0)  # so that squares neither over- nor underflow
            scaled = x / np.where(scale > 0, scale, 1)
            norms = np.linalg.norm(scaled, axis=-1, keepdims=True)
            rows = scaled * (self.radius / np.where(norms > 0, norms, 1))
        return rows

    def __repr__(self) -> str:
        return f"Normalization.unit({self.radius})" if self.radius > 0 else "Normalization.none()"


unit = Normalization.unit()


def radius_of(normalization: Any) -> float:
    """Its radius. TypeError for another class."""
    if not isinstance(normalization, Normalization):
        raise TypeError(
            "normalization: expected a Normalization, unit(r) or none() (q.k / sqrt(d)), got "
            f"{type(normalization).__name__}"
        )
    return normalization.radius
