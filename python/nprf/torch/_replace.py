# SPDX-License-Identifier: MIT
"""Models that were trained with softmax attention, served by nprf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from .._attention import calibrate
from .._normalization import Normalization
from ..features import Features, FeaturesLike, features_of, taylor
from ..positions import T5
from ._functional import attention
from ._masks import padding_of_rows


class T5SelfAttention(nn.Module):
    """Takes the place of a T5 model's self-attention: a module with linear layers q, k, v and o, and with
    relative_attention_bias, an embedding [buckets, heads], which the first layer of T5 shares with the others. It has
    the state dict of the module that it replaces, but not its dropout.

    features: a map of vectors of as many numbers as a head has, or one for each head; None: all pairs are exact, and a
    call with more than `near` tokens raises ValueError. T5 does not divide q.k by sqrt(d), and does not normalise, so
    that maps have to be calibrated for its queries and keys (calibrated_features).
    """

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear

    def __init__(
        self,
        replaced: Any,
        bias: nn.Embedding,
        heads: int,
        features: Optional[FeaturesLike] = None,
        near: int = 64,
        causal: bool = False,
        max_distance: int = 128,
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = replaced.q, replaced.k, replaced.v, replaced.o
        if getattr(replaced, "relative_attention_bias", None) is bias:
            self.relative_attention_bias = bias
        self._bias = (bias,)  # a tuple: not a part of each layer's state dict
        self.heads, self.near, self.causal = heads, near, causal
        self.features = None if features is None else features_of(features)
        self._of_near_field = taylor(replaced.q.out_features // heads)  # any map, where all pairs are exact
        self.max_distance = max_distance
        # what code of the model reads
        self.n_heads, self.has_relative_attention_bias = heads, False

    def forward(self, hidden_states: Tensor, mask: Optional[Tensor] = None, **others: Any) -> tuple[Any, ...]:
        """hidden_states [batch, n, channels] -> (y, None, None). mask: [batch or 1, n], or with heads and queries
        [batch or 1, heads or 1, n or 1, n], bool, where True keeps a key, or additive: 0, or at most -1000 for padding.
        ValueError for a mask by which queries attend to other keys than padding and `causal` give; for a cache
        (use_cache) and key_value_states, since the keys are those of hidden_states; for a position_bias, since the
        layer has its own; and for any other argument. There are no weights for output_attentions, and without a cache
        cache_position is 0, 1, ...
        """
        for name, value in others.items():
            if name not in ("output_attentions", "cache_position") and value is not None and value is not False:
                raise ValueError(f"{name}: expected None (and use_cache=False), got {type(value).__name__}")
        n = hidden_states.shape[1]
        if self.features is None and n > self.near:
            raise ValueError(f"hidden_states: expected at most {self.near} tokens (near) without features, got {n}")
        d = self.q.out_features // self.heads
        q, k, v = (layer(hidden_states).unflatten(-1, (self.heads, d)) for layer in (self.q, self.k, self.v))
        padding = None
        if mask is not None:
            padding = padding_of_rows(mask, self.causal, n).expand(hidden_states.shape[0], n)
        bias = getattr(self, "relative_attention_bias", self._bias[0])  # which may have been replaced since
        y = attention(
            q * d**0.5,  # Normalization.none() divides by it
            k,
            v,
            bias,
            features=self._of_near_field if self.features is None else self.features,
            position=("t5", self.max_distance),
            causal=self.causal,
            near=self.near,
            normalization=Normalization.none(),
            key_padding_mask=padding,
            layout="tokens_first",
        )
        return self.o(y.flatten(2)), None, None


class _SelfAttention(NamedTuple):
    """A self-attention of a T5-like model."""

    name: str
    module: Any
    bias: nn.Embedding
    max_distance: int
    causal: bool

    def head_dim(self) -> int:
        return int(self.module.q.out_features // self.module.n_heads)


def _self_attentions(model: nn.Module) -> list[_SelfAttention]:
    """Modules with q, k, v, o, n_heads and has_relative_attention_bias, but for those named EncDecAttention. ValueError
    for one without a bias before the first that has one."""
    found: list[_SelfAttention] = []
    bias, max_distance = None, 128
    modules: list[tuple[str, Any]] = list(model.named_modules())
    for name, module in modules:
        if not all(hasattr(module, part) for part in ("q", "k", "v", "o", "has_relative_attention_bias")):
            continue
        if name.rsplit(".", 1)[-1] == "EncDecAttention":
            continue
        if module.has_relative_attention_bias:
            bias = module.relative_attention_bias
            max_distance = getattr(module, "relative_attention_max_distance", 128)
        if bias is None:
            raise ValueError(f"{name}: expected a module with relative_attention_bias in this layer or one before it")
        found.append(_SelfAttention(name, module, bias, max_distance, bool(getattr(module, "is_decoder", False))))
    return found


FeaturesOf = Callable[[str, int], FeaturesLike]


def replace_attention(model: nn.Module, features: Union[None, Features, FeaturesOf] = None, near: int = 64) -> int:
    """Replaces every self-attention of a T5-like model by T5SelfAttention, in place, and returns their number.

    Such a module has q, k, v, o, n_heads and has_relative_attention_bias; layers without a bias of their own use that
    of the layer before them. Cross attention, in modules named EncDecAttention, stays. features: a map, or
    features(name, d) for each module, such as calibrated_features() returns; None: all pairs are exact, and a call with
    more than `near` tokens raises ValueError.
    """
    replaced = _self_attentions(model)
    for each in replaced:
        name, module, bias, max_distance, causal = each
        own = features(name, each.head_dim()) if callable(features) else features
        parent, _, last = name.rpartition(".")
        new = T5SelfAttention(module, bias, module.n_heads, own, near, causal, max_distance)
        setattr(model.get_submodule(parent), last, new)
    return len(replaced)


@torch.no_grad()
def calibrated_features(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    near: int = 64,
    num_features: int = 0,
    target_error: float = 0.0,
    seed: int = 0,
) -> FeaturesOf:
    """Feature maps for replace_attention of a T5-like model, calibrated for its own queries and keys:

    >>> features = calibrated_features(model, lambda: model(**samples), near=64, num_features=72)
    >>> replace_attention(model, features, near=64)

    run: calls the model, with softmax, on some typical sequences without padding; each self-attention is calibrated for
    its first call. num_features, target_error, near, seed: as in nprf.calibrate. ValueError for a self-attention that
    run() does not call.
    """
    parts: dict[tuple[str, str], Tensor] = {}
    hooks = []
    found = _self_attentions(model)
    for each in found:
        for part in ("q", "k", "v"):

            def keep(_: Any, inputs: Any, output: Tensor, key: tuple[str, str] = (each.name, part)) -> None:
                parts.setdefault(key, output)

            hooks.append(getattr(each.module, part).register_forward_hook(keep))
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    maps: dict[str, Features] = {}
    for each in found:
        if any((each.name, part) not in parts for part in "qkv"):
            raise ValueError(f"run: expected a call of {each.name}, got none")
    for each in found:
        split = (each.module.n_heads, each.head_dim())
        q, k, v = (parts[each.name, part].unflatten(-1, split).transpose(1, 2).float().cpu() for part in "qkv")
        position = T5(each.bias.weight.detach().float().cpu(), each.max_distance, "heads_last")
        maps[each.name] = calibrate(
            (q * split[1] ** 0.5).numpy(),
            k.numpy(),
            v.numpy(),
            position,
            num_features=num_features,
            near=near,
            causal=each.causal,
            normalization=Normalization.none(),
            seed=seed,
            target_error=target_error,
        ).features

    def features_of_module(name: str, _: int) -> Features:
        if name not in maps:
            raise ValueError(f"features: expected a self-attention of the calibrated model, got {name!r}")
        return maps[name]

    return features_of_module
