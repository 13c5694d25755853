# SPDX-License-Identifier: MIT
"""Models that were trained with softmax attention, served by nprf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, Union

from torch import Tensor, nn

from .._attention import Normalization
from ..features import Features, taylor
from ._functional import attention
from ._masks import padding_of_rows


class T5SelfAttention(nn.Module):
    """Takes the place of a T5 model's self-attention: a module with linear layers q, k, v and o, and with
    relative_attention_bias, an embedding [buckets, heads], which the first layer of T5 shares with the others. It has
    the state dict of the module that it replaces, but not its dropout.

    features: a map of vectors of as many numbers as a head has, or one for each head. T5 does not divide q.k by
    sqrt(d).
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
        features: Features,
        near: int = 64,
        causal: bool = False,
        max_distance: int = 128,
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = replaced.q, replaced.k, replaced.v, replaced.o
        if getattr(replaced, "relative_attention_bias", None) is bias:
            self.relative_attention_bias = bias
        self._bias = (bias,)  # a tuple: not a part of each layer's state dict
        self.heads, self.features, self.near, self.causal = heads, features, near, causal
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
        d = self.q.out_features // self.heads
        q, k, v = (layer(hidden_states).unflatten(-1, (self.heads, d)) for layer in (self.q, self.k, self.v))
        padding = None
        if mask is not None:
            batch, n, _ = hidden_states.shape
            padding = padding_of_rows(mask, self.causal, n).expand(batch, n)
        bias = getattr(self, "relative_attention_bias", self._bias[0])  # which may have been replaced since
        y = attention(
            q * d**0.5,  # Normalization.none() divides by it
            k,
            v,
            bias.weight.t(),
            features=self.features,
            position=("t5", self.max_distance),
            causal=self.causal,
            near=self.near,
            normalization=Normalization.none(),
            key_padding_mask=padding,
            layout="tokens_first",
        )
        return self.o(y.flatten(2)), None, None


def replace_attention(
    model: nn.Module,
    features: Union[None, Features, Callable[[str, int], Features]] = None,
    near: int = 64,
) -> int:
    """Replaces every self-attention of a T5-like model by T5SelfAttention, in place, and returns their number.

    Such a module has q, k, v, o, n_heads and has_relative_attention_bias; layers without a bias of their own use that
    of the layer before them. Cross attention, in modules named EncDecAttention, stays. features: a map, or
    features(name, d) for each module, for example from nprf.calibrate of its queries and keys; None is TaylorFeatures.
    """
    replaced, bias, buckets = 0, None, {}
    modules: list[tuple[str, Any]] = list(model.named_modules())
    for name, module in modules:
        if not all(hasattr(module, part) for part in ("q", "k", "v", "o", "has_relative_attention_bias")):
            continue
        if name.rsplit(".", 1)[-1] == "EncDecAttention":
            continue
        if module.has_relative_attention_bias:
            bias = module.relative_attention_bias
            buckets = {"max_distance": getattr(module, "relative_attention_max_distance", 128)}
        if bias is None:
            raise ValueError(f"{name}: expected a module with relative_attention_bias in this layer or one before it")
        heads = module.n_heads
        d = module.q.out_features // heads
        own = taylor(d) if features is None else features if isinstance(features, Features) else features(name, d)
        parent, _, last = name.rpartition(".")
        new = T5SelfAttention(
            module, bias, heads, own, near=near, causal=bool(getattr(module, "is_decoder", False)), **buckets
        )
        setattr(model.get_submodule(parent), last, new)
        replaced += 1
    return replaced
