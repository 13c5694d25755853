# SPDX-License-Identifier: MIT
"""Attention with relative position biases in O(n log n). See the README of the package.

>>> y = nprf.attention(q, k, v, features=nprf.taylor(64), position=nprf.T5(weights), near=32)
"""

from . import reference
from ._attention import (
    Attention,
    Calibration,
    CallOptions,
    Gradients,
    Saved,
    attention,
    calibrate,
    cpu_level,
    free_memory,
    num_threads,
    set_num_threads,
)
from ._core import GradientReport, Report
from ._decoder import Decoder
from ._native import core as _native_core
from ._normalization import Normalization
from .features import (
    Balance,
    CalibratedFeatures,
    CentredFeatures,
    Centring,
    EluFeatures,
    Features,
    HeadFeatures,
    ProjectedFeatures,
    RandomFeatures,
    TaylorFeatures,
    Tilt,
    balance,
    elu,
    hyperbolic,
    oprf_tilt,
    orf,
    prf,
    sderf_tilt,
    sphere_prf,
    taylor,
    trf,
)
from .positions import Alibi, Grid, NoPosition, Position, RelativePosition, T5, alibi_slopes, resize_bias

__version__: str = _native_core.version

__all__ = [
    "Alibi",
    "Attention",
    "Balance",
    "CalibratedFeatures",
    "Calibration",
    "CallOptions",
    "CentredFeatures",
    "Centring",
    "Decoder",
    "EluFeatures",
    "Features",
    "GradientReport",
    "Gradients",
    "Grid",
    "HeadFeatures",
    "NoPosition",
    "Normalization",
    "Position",
    "ProjectedFeatures",
    "RandomFeatures",
    "RelativePosition",
    "Report",
    "Saved",
    "T5",
    "TaylorFeatures",
    "Tilt",
    "alibi_slopes",
    "attention",
    "balance",
    "calibrate",
    "cpu_level",
    "elu",
    "free_memory",
    "hyperbolic",
    "num_threads",
    "oprf_tilt",
    "orf",
    "prf",
    "reference",
    "resize_bias",
    "sderf_tilt",
    "set_num_threads",
    "sphere_prf",
    "taylor",
    "trf",
]
