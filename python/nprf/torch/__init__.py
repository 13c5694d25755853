# SPDX-License-Identifier: MIT
"""nprf for PyTorch, on the CPU: `attention`, with gradients and under torch.compile, and the module `Attention`, also
token by token (`LayerDecoder`)."""

from ._decoder import LayerDecoder
from ._functional import attention
from ._module import Attention
from ._replace import T5SelfAttention, replace_attention

__all__ = ["Attention", "LayerDecoder", "T5SelfAttention", "attention", "replace_attention"]
