# SPDX-License-Identifier: MIT
"""The stacks of layers of transformers, which make the masks of their layers: n x n numbers of a mask [batch, n], but
one of 4 dimensions goes to the layers as it is."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn


def _functions_of(module: nn.Module) -> set[str]:
    """The names that methods of the class with the module's forward use."""
    owner = next(each for each in type(module).__mro__ if "forward" in vars(each))
    codes = (getattr(inspect.unwrap(each), "__code__", None) for each in vars(owner).values() if callable(each))
    return {name for code in codes if code is not None for name in code.co_names}


def _stack_of(parents: Sequence[nn.Module], causal: bool) -> Optional[nn.Module]:
    """The nearest of these modules that makes masks by transformers' masking_utils."""
    name = "create_causal_mask" if causal else "create_bidirectional_mask"
    return next((each for each in parents if hasattr(each, "config") and name in _functions_of(each)), None)


def _short_mask(stack: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A forward pre-hook: a mask [batch, n], 0 for padding, becomes one [batch, 1, 1, n], bool. Without a mask SDPA
    gets none, and other implementations would get n x n numbers."""
    given = {**dict(zip(("input_ids", "attention_mask"), args)), **kwargs}
    mask, tokens = given.get("attention_mask"), given.get("input_ids")
    tokens = given.get("inputs_embeds") if tokens is None else tokens
    if tokens is None or any(given.get(name) is not None for name in ("cache", "past_key_values")):
        return None
    if mask is None and stack.config._attn_implementation != "sdpa":
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return None
    short = mask.to(tokens.device, torch.bool)[:, None, None, :]
    return ((args[0], short, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "attention_mask": short})


def _is_cross_attention(name: str, module: nn.Module) -> bool:
    return "cross" in name.lower() or "EncDec" in name or "cross" in type(module).__name__.lower()


def _other_attention(stack: nn.Module, served: type[nn.Module]) -> bool:
    """Whether the stack has self-attention that is not served."""
    for name, module in stack.named_modules():
        is_attention = any(each.__name__.endswith("Attention") for each in type(module).__mro__)
        if is_attention and not _is_cross_attention(name, module):
            if not any(isinstance(each, served) for each in module.modules()):
                return True
    return False


def keep_masks_short(parents: Sequence[nn.Module], causal: bool, served: type[nn.Module]) -> Optional[nn.Module]:
    """A layer with these parents, the nearest one first, which must take masks of padding [batch, 1, 1, n], also if it
    is causal, gets them from its stack, if that makes masks by transformers' masking_utils and all of its self-attention
    is of the class `served`. Returns the stack."""
    stack = _stack_of(parents, causal)
    if stack is None or _other_attention(stack, served):
        return None
    if _short_mask not in stack._forward_pre_hooks.values():
        stack.register_forward_pre_hook(_short_mask, with_kwargs=True)
    return stack


def restore_masks(stack: nn.Module) -> None:
    """Undoes keep_masks_short()."""
    for key in [key for key, hook in stack._forward_pre_hooks.items() if hook is _short_mask]:
        del stack._forward_pre_hooks[key]
        stack._forward_pre_hooks_with_kwargs.pop(key, None)
