# SPDX-License-Identifier: MIT
"""The stacks of layers of transformers, which make the masks of their layers: n x n numbers of a mask [batch, n], but
one of 4 dimensions goes to the layers as it is."""

from __future__ import annotations

import sys
from typing import Any, Optional

import torch
from torch import Tensor, nn


def _stack_of(model: nn.Module, name: str) -> Optional[nn.Module]:
    """The module nearest to the layer of this name that has a config."""
    while name:
        name = name.rpartition(".")[0]
        module = model.get_submodule(name)
        if hasattr(module, "config"):
            return module
    return None


def _uses(stack: nn.Module, function: str) -> bool:
    """Whether the file in which its forward is has this function of transformers."""
    owner = next(each for each in type(stack).__mro__ if "forward" in vars(each))
    found = getattr(sys.modules.get(owner.__module__), function, None)
    return getattr(found, "__module__", None) == "transformers.masking_utils"


def _short_mask(stack: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A forward pre-hook: a mask [batch, n], 0 for padding, becomes one [batch, 1, 1, n], bool. Without a mask SDPA
    gets none, and other implementations would get n x n numbers."""
    given = {**dict(zip(("input_ids", "attention_mask"), args)), **kwargs}
    mask, tokens = given.get("attention_mask"), given.get("input_ids")
    tokens = given.get("inputs_embeds") if tokens is None else tokens
    if tokens is None:
        return None
    if mask is None and stack.config._attn_implementation != "sdpa":
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return None
    short = mask.to(tokens.device, torch.bool)[:, None, None, :]
    return ((args[0], short, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "attention_mask": short})


def keep_masks_short(model: nn.Module, name: str, causal: bool) -> None:
    """The layer of this name, which must take masks of padding [batch, 1, 1, n], also if it is causal, gets them from
    its stack, if that is one of transformers which makes masks by its masking_utils."""
    stack = _stack_of(model, name)
    if stack is None or not _uses(stack, "create_causal_mask" if causal else "create_bidirectional_mask"):
        return
    if _short_mask not in stack._forward_pre_hooks.values():
        stack.register_forward_pre_hook(_short_mask, with_kwargs=True)
