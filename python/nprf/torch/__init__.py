# SPDX-License-Identifier: MIT
"""nprf for PyTorch, on the CPU and, where nprf was compiled for it, on a GPU: `attention`, with gradients and under
torch.compile, and the module `Attention`, also token by token (`LayerDecoder`, `GpuDecoder`)."""

from ._decoder import LayerDecoder
from ._functional import attention
from ._gpu_decoder import GpuDecoder
from ._module import Attention
from ._replace import T5SelfAttention, calibrated_features, replace_attention

__all__ = [
    "Attention",
    "GpuDecoder",
    "LayerDecoder",
    "T5SelfAttention",
    "attention",
    "calibrated_features",
    "replace_attention",
]
