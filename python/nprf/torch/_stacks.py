# SPDX-License-Identifier: MIT
"""The stacks of layers of transformers, which make the masks of their layers, [batch, 1, n_q, n_k]. For self-attention
that is served the row of the last query is enough: it has the padding of all keys. A stack makes that alone if its
config asks for it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any, Optional

from torch import nn

_name = "nprf"


class _LastQueryConfig:
    """A config of transformers, for masks of the last query. It shares the attributes of the config `original`.
    causal: the direction of the self-attention, by which its masks are known from those of cross-attention; masking:
    transformers.masking_utils."""

    original: Any
    causal: bool
    masking: Any

    @property
    def _attn_implementation(self) -> str:
        return _name


def _config_of_last_query(original: Any, causal: bool) -> Any:
    masking = importlib.import_module("transformers.masking_utils")
    masking.AttentionMaskInterface.register(_name, _mask_of_last_query)
    names = {"__module__": type(original).__module__, "original": original, "causal": causal, "masking": masking}
    made: Any = object.__new__(type(type(original).__name__, (_LastQueryConfig, type(original)), names))
    made.__dict__ = original.__dict__
    return made


def _mask_of_last_query(*, config: Any, mask_function: Any, q_length: int, q_offset: Any, **others: Any) -> Any:
    """What the model's own implementation makes; for self-attention, of the last query."""
    masking = config.masking
    if mask_function is (masking.causal_mask_function if config.causal else masking.bidirectional_mask_function):
        q_length, q_offset = 1, q_offset + q_length - 1
    make = masking.ALL_MASK_ATTENTION_FUNCTIONS[config.original._attn_implementation]
    return make(config=config, mask_function=mask_function, q_length=q_length, q_offset=q_offset, **others)


def _functions_of(module: nn.Module) -> set[str]:
    """The names that methods of the class with the module's forward use."""
    owner = next(each for each in type(module).__mro__ if "forward" in vars(each))
    codes = (getattr(inspect.unwrap(each), "__code__", None) for each in vars(owner).values() if callable(each))
    return {name for code in codes if code is not None for name in code.co_names}


def _stack_of(parents: Sequence[nn.Module], causal: bool) -> Optional[nn.Module]:
    """The nearest of these modules that makes masks by transformers' masking_utils."""
    name = "create_causal_mask" if causal else "create_bidirectional_mask"
    return next((each for each in parents if hasattr(each, "config") and name in _functions_of(each)), None)


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


class _DuringCalls:
    """Hooks of a stack, which has a config for masks of the last query during its calls."""

    def __init__(self, original: Any, causal: bool) -> None:
        self.original, self.causal = original, causal
        self.config = _config_of_last_query(original, causal)

    def begin(self, stack: Any, _: Any) -> None:
        if stack.config is self.original:
            stack.config = self.config

    def end(self, stack: Any, *_: Any) -> None:
        if stack.config is self.config:
            stack.config = self.original

    def __reduce__(self) -> Any:
        return _DuringCalls, (self.original, self.causal)


def keep_masks_short(parents: Sequence[nn.Module], causal: bool, served: type[nn.Module]) -> Any:
    """A layer with these parents, the nearest one first, gets masks [batch, 1, 1, n_k] from its stack, if that makes
    masks by transformers' masking_utils and all of its self-attention is of the class `served`. Returns the stack, or
    None."""
    stack: Any = _stack_of(parents, causal)
    if stack is None or _other_attention(stack, served):
        return None
    if not _hooks_of(stack._forward_pre_hooks):
        during = _DuringCalls(stack.config, causal)
        stack.register_forward_pre_hook(during.begin)
        stack.register_forward_hook(during.end, always_call=True)
    return stack


def _hooks_of(hooks: Any) -> list[int]:
    return [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), _DuringCalls)]


def restore_masks(stack: Any) -> None:
    """Undoes keep_masks_short()."""
    for key in _hooks_of(stack._forward_pre_hooks):
        del stack._forward_pre_hooks[key]
    for key in _hooks_of(stack._forward_hooks):
        del stack._forward_hooks[key]
        stack._forward_hooks_always_called.pop(key, None)
