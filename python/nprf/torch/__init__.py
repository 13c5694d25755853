# SPDX-License-Identifier: MIT
"""nprf for PyTorch, on the CPU and, where nprf was compiled for it, on a GPU: `attention`, with gradients and under
torch.compile, and the module `Attention`, also token by token (`LayerDecoder`, `GpuDecoder`)."""

from ._decoder import LayerDecoder
from ._functional import attention
from ._gpu_decoder import GpuDecoder
from ._module import Attention
from ._replace import ModelCalibration, calibrated_features, replace_attention
from ._spline import SplineBias
from ._t5 import T5SelfAttention, UMT5SelfAttention

__all__ = [
    "Attention",
    "GpuDecoder",
    "LayerDecoder",
    "ModelCalibration",
    "SplineBias",
    "T5SelfAttention",
    "UMT5SelfAttention",
    "attention",
    "calibrated_features",
    "replace_attention",
]
