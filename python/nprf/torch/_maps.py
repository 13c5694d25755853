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

from .. import features as maps
from .._value import Value
from ..features import EluFeatures, Features, RandomFeatures, TaylorFeatures

# all values of that module but the base class of maps
_classes: dict[str, Any] = {
    name: each
    for name, each in vars(maps).items()
    if isinstance(each, type) and issubclass(each, Value) and each not in (Value, Features)
}


def has_constants(features: Features) -> bool:
    """Whether it is a map of this package that has other numbers than its sizes and one seed."""
    if type(features) is RandomFeatures:
        return features.tilt is not None
    return type(features) in _classes.values() and not isinstance(features, (EluFeatures, TaylorFeatures))


def constants_of(features: Features, redraws: int) -> Tensor:
    """The map, and the number that its next redraw begins with, as bytes, uint8 [n] on the CPU."""
    text = json.dumps({"map": _described(features), "redraws": redraws})
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def features_of_constants(constants: Any) -> tuple[Features, int]:
    """What constants_of() was called with. ValueError for other than its bytes."""
    if not isinstance(constants, Tensor) or constants.dtype != torch.uint8 or constants.dim() != 1:
        got = (
            f"{constants.dtype} {list(constants.shape)}" if isinstance(constants, Tensor) else type(constants).__name__
        )
        raise ValueError(f"features_constants: expected a tensor uint8 [n], got {got}")
    try:
        found = json.loads(constants.cpu().numpy().tobytes().decode())
        made, redraws = _made(found["map"]), int(found["redraws"])
    except Exception as error:  # of a file's contents, which may be anything
        raise ValueError(f"features_constants: expected the bytes of a feature map, got others: {error!r}") from error
    if not isinstance(made, Features):
        raise ValueError(f"features_constants: expected a feature map, got {type(made).__name__}")
    return made, redraws


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
