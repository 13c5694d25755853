# SPDX-License-Identifier: MIT
"""Models with nprf's attention in ONNX, for ONNX Runtime with the operator of examples/onnxruntime_operator.cpp. It
needs the packages onnx and onnxscript.

    program = torch.export.export(model, arguments)
    torch.onnx.export(
        program, f="model.onnx", dynamo=True, custom_translation_table=nprf.torch.onnx.translations(program)
    )
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import onnx
import onnxscript
import torch
from torch import Tensor

from ..features import CalibratedFeatures, EluFeatures, Features, HeadFeatures, RandomFeatures, TaylorFeatures
from ._functional import attention_op
from ._maps import features_in
from ._options import Options, options_of

# random features by their kind and projection
_names = {
    ("positive", "orthogonal"): "orf",
    ("positive", "gaussian"): "prf",
    ("positive", "sphere"): "sphere_prf",
    ("hyperbolic", "orthogonal"): "hyperbolic",
    ("trigonometric", "gaussian"): "trf",
}

# attributes that are left out have these values
_defaults = {
    "position": "none",
    "max_distance": 128,
    "features": "taylor",
    "num_features": 0,
    "directions": 0,
    "seed": 0,
    "calibration": "",
    "radius": 1.0,
    "causal": 0,
    "near": 0,
    "sinks": 0,
    "layout": "heads_first",
}


def _operator() -> Any:
    parameter, option = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.FormalParameterOption

    def inputs(names: str, of: str, given: Any) -> list[Any]:
        return [parameter(name, f"tensor({of})", param_option=given) for name in names.split()]

    schema = onnx.defs.OpSchema(
        "Attention",
        "nprf",
        1,
        inputs=[
            *inputs("q k v", "float", option.Single),
            *inputs("table", "float", option.Optional),
            *inputs("lengths offset", "int64", option.Optional),
        ],
        outputs=[parameter("y", "tensor(float)")],
        attributes=[
            onnx.defs.OpSchema.Attribute(name, onnx.helper.make_attribute(name, value))
            for name, value in _defaults.items()
        ],
    )
    return onnxscript.values.Op(onnxscript.values.Opset("nprf", 1), "Attention", schema)


def _attributes_of_map(features: Features) -> dict[str, Any]:
    maps = features.maps if isinstance(features, HeadFeatures) else (features,)
    texts = [each.text for each in maps if isinstance(each, CalibratedFeatures)]
    if len(texts) == len(maps):
        return {"features": "calibrated", "calibration": "\n".join(texts)}
    if isinstance(features, TaylorFeatures):
        return {"features": "taylor", "directions": features.directions}
    if isinstance(features, EluFeatures):
        return {"features": "elu"}
    if isinstance(features, RandomFeatures) and features.tilt is None:
        name = _names.get((features.kind, features.projection))
        if name is not None:
            seed = features.seed - 2**64 if features.seed >= 2**63 else features.seed  # attributes are signed
            return {"features": name, "num_features": features.num_features, "seed": seed}
    raise ValueError(f"features: expected a map that the operator of ONNX has, got {features!r}")


def _attributes_of(options: Options) -> dict[str, Any]:
    kind, *sizes = options.position.split(":")
    if kind == "grid":
        raise ValueError("position: expected None, 'table', 't5' or 'alibi' in a model in ONNX, got a grid")
    for name, of_onnx in (("engine", "automatic"), ("tolerance", 0.0), ("check_finite", False), ("salient", 0)):
        if getattr(options, name) != of_onnx:
            raise ValueError(f"{name}: expected {of_onnx!r} in a model in ONNX, got {getattr(options, name)!r}")
    attributes: dict[str, Any] = {
        "position": "table" if kind == "smooth_table" else kind,
        "radius": options.radius,
        "causal": int(options.causal),
        "near": options.near,
        "sinks": options.sinks,
        "layout": "tokens_first" if options.tokens_first else "heads_first",
    }
    return {**attributes, "max_distance": int(sizes[0])} if sizes else attributes


def translations(program: torch.export.ExportedProgram) -> dict[Callable[..., Any], Callable[..., Any]]:
    """The custom_translation_table of torch.onnx.export() for a program with calls of nprf.torch.attention, or with
    layers that call it: each becomes one operator nprf.Attention. Feature maps become attributes.

    The export raises ValueError for what that operator does not have: masks other than lengths, packed sequences,
    grids, query_bias, tolerances, engines, salient keys, and maps that are projected, centred, tilted or arguments of the model.
    """
    tensors = {**program.state_dict, **program.constants}
    by_name = {each.arg.name: tensors.get(each.target) for each in program.graph_signature.input_specs if each.target}
    operator = _operator()

    def attention(
        q: Any,
        k: Any,
        v: Any,
        bias: Any = None,
        extra: Any = None,
        key_mask: Any = None,
        packing: Any = None,
        features: Any = None,
        offset_tensor: Any = None,
        options: str = "",
        offset: Any = 0,
        save: bool = False,
    ) -> tuple[Any]:
        name, _, others = options.partition("\n")
        of_call = options_of(others)
        constants: Optional[Tensor] = None
        if features is not None:
            constants = by_name.get(features.name)
            if constants is None:
                raise ValueError("features: expected a map that is not an argument of the model, got one that is")
        if extra is not None:
            raise ValueError("query_bias: expected None in a model in ONNX, got one")
        if packing is not None:
            raise ValueError("cumulative_lengths: expected None in a model in ONNX, got some")
        if key_mask is not None and key_mask.dtype != onnxscript.ir.DataType.INT64:
            raise ValueError("key_padding_mask: expected lengths in a model in ONNX, got a mask")
        attributes = {**_attributes_of(of_call), **_attributes_of_map(features_in(name, constants))}
        if bias is None:
            attributes["position"] = "none"
        y = operator(q, k, v, bias, key_mask, offset if offset_tensor is None else offset_tensor, **attributes)
        return (y,)

    return {attention_op._opoverload: attention}
