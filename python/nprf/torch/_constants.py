# SPDX-License-Identifier: MIT
"""Feature maps as tensors of bytes, which state dicts hold: JSON, with arrays in base64, so that loading runs no
code."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._value import Value
from ..features import (
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
)

_classes: dict[str, Any] = {
    each.__name__: each
    for each in (
        CalibratedFeatures,
        CentredFeatures,
        Centring,
        EluFeatures,
        HeadFeatures,
        ProjectedFeatures,
        RandomFeatures,
        TaylorFeatures,
        Tilt,
    )
}


def has_constants(features: Features) -> bool:
    """Whether the map has other numbers than its sizes and one seed."""
    if isinstance(features, RandomFeatures):
        return features.tilt is not None
    return not isinstance(features, (EluFeatures, TaylorFeatures))


def constants_of(features: Features) -> Tensor:
    """The map as bytes, uint8 [n] on the CPU."""
    text = json.dumps(_described(features))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def features_of_constants(constants: Tensor) -> Features:
    """The map that constants_of() wrote. ValueError for other bytes."""
    try:
        made = _made(json.loads(constants.cpu().numpy().tobytes().decode()))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"features_constants: expected the bytes of a feature map, got others: {error}") from error
    if not isinstance(made, Features):
        raise ValueError(f"features_constants: expected a feature map, got {type(made).__name__}")
    return made


def _described(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        in_order = x.astype(x.dtype.newbyteorder("<"))
        return {"dtype": in_order.dtype.str, "shape": x.shape, "base64": base64.b64encode(in_order.tobytes()).decode()}
    if isinstance(x, Value):
        return {"class": type(x).__name__, **{name: _described(getattr(x, name)) for name in x._arguments}}
    return [_described(each) for each in x] if isinstance(x, tuple) else x


def _made(x: Any) -> Any:
    if isinstance(x, list):
        return [_made(each) for each in x]
    if not isinstance(x, dict):
        return x
    if "base64" in x:
        return np.frombuffer(base64.b64decode(x["base64"]), x["dtype"]).reshape(x["shape"])
    return _classes[x["class"]](**{name: _made(each) for name, each in x.items() if name != "class"})
