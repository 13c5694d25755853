# SPDX-License-Identifier: MIT
"""Which calls need no operator of PyTorch."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

_types = (Tensor, torch.nn.Parameter)


def is_plain(q: Tensor, *others: Optional[Tensor]) -> bool:
    """Whether PyTorch has nothing to do for a call on these tensors but autograd: they have numbers, which are in
    memory as they are, dense and on one device, and are not of a subclass; no graph is made, and no transform of
    torch.func and no mode is active."""
    if torch.compiler.is_compiling() or type(q) not in _types or q.is_meta:
        return False
    device, strided = q.device, torch.strided
    for x in (q, *others):
        if x is not None and (type(x) not in _types or x.device != device or x.layout is not strided or x.is_neg()):
            return False
    return (
        not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and not torch.jit.is_tracing()
    )
