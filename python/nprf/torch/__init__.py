# SPDX-License-Identifier: MIT
"""nprf for PyTorch, on the CPU and, where nprf was compiled for it, on a GPU: `attention`, with gradients and under
torch.compile, and the module `Attention`, also token by token (`LayerDecoder`, `GpuDecoder`)."""

from ._biases import AlibiBias, RelativeBias, SplineBias, T5Bias
from ._calibrate import calibrate
from ._decoder import LayerDecoder
from ._functional import attention
from ._gpu_decoder import GpuDecoder
from ._model_calibration import ModelCalibration
from ._module import Attention
from ._replace import replace_attention, restore_attention
from ._served import Served, ServedAttention, register_attention

__all__ = [
    "AlibiBias",
    "Attention",
    "GpuDecoder",
    "LayerDecoder",
    "ModelCalibration",
    "RelativeBias",
    "Served",
    "ServedAttention",
    "SplineBias",
    "T5Bias",
    "attention",
    "calibrate",
    "register_attention",
    "replace_attention",
    "restore_attention",
]
