# SPDX-License-Identifier: MIT
"""nprf for PyTorch, on the CPU and, where nprf was compiled for it, on a GPU: `attention`, with gradients and under
torch.compile, and the module `Attention`, also token by token (`LayerDecoder`, `GpuDecoder`)."""

from ._decoder import LayerDecoder
from ._functional import attention
from ._gpu_decoder import GpuDecoder
from ._module import Attention
from ._replace import ModelCalibration, calibrate, replace_attention, restore_attention
from ._served import Served, ServedAttention, register_attention
from ._spline import SplineBias

__all__ = [
    "Attention",
    "GpuDecoder",
    "LayerDecoder",
    "ModelCalibration",
    "Served",
    "ServedAttention",
    "SplineBias",
    "attention",
    "calibrate",
    "register_attention",
    "replace_attention",
    "restore_attention",
]
