# SPDX-License-Identifier: MIT
"""A layer of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, TypedDict, Union

import numpy as np
import torch
from torch import Tensor, nn

from .._attention import Attention as NumpyAttention
from .._attention import unknown_option
from .._normalization import Normalization, radius_of
from .._value import bool_of
from ..features import Features, FeaturesLike, HeadFeatures, features_of, hyperbolic, orf, taylor
from ..positions import alibi_slopes
from ._decoder import LayerDecoder
from ._functional import ReportGradients, attention
from ._integers import Integers
from ._masks import check_causal
from ._module_with_features import ModuleWithFeatures
from ._options import position_name, position_with

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._core import Report


class LayerOptions(TypedDict, total=False):
    """Options of a call of a layer, which nprf.torch.attention documents."""

    lengths: Optional[Integers]
    cumulative_lengths: Optional[Integers]
    key_cumulative_lengths: Optional[Integers]
    offset: Union[None, int, Tensor]
    tolerance: float
    softmax_samples: int
    softmax_seed: int
    check_finite: bool
    report: bool
    gradient_report: Optional[ReportGradients]


def _named_features(name: str, d: int, num_features: Optional[int], seed: int) -> Features:
    if name == "taylor":
        if num_features is not None:
            raise ValueError(f"num_features: expected None for features='taylor', got {num_features}")
        return taylor(d)
    if name == "orf":
        return orf(d, num_features or d, seed)
    if name == "hyperbolic":
        return hyperbolic(d, num_features or d, seed)
    raise ValueError(f"features: expected 'taylor', 'orf', 'hyperbolic' or a feature map, got {name!r}")


def checked_map(features: Any, d: int, heads: int) -> Features:
    """ValueError unless it is a map of vectors of d numbers, and unless it is one for all heads or has one for each."""
    if not isinstance(features, Features) or features.input_dim != d:
        raise ValueError(f"features: expected a map of vectors of {d} numbers, got {features!r}")
    if isinstance(features, HeadFeatures) and len(features.maps) not in (1, heads):
        raise ValueError(f"features: expected one map, or {heads} (heads), got {len(features.maps)}")
    return features


# arguments of nn.MultiheadAttention, and the values that a layer of nprf has
_of_multihead_attention = {
    "batch_first": True, "dropout": 0.0, "add_bias_kv": False, "add_zero_attn": False, "kdim": None, "vdim": None,
}  # fmt: skip
# those that it takes by their place after embed_dim and num_heads
_by_place = ("dropout", "bias", "add_bias_kv", "add_zero_attn", "kdim", "vdim", "batch_first", "device", "dtype")


def _named_by_place(values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name. TypeError for too many, and for one that is given twice."""
    if len(values) > len(_by_place):
        raise TypeError(f"Attention: expected at most {2 + len(_by_place)} arguments by place, got {2 + len(values)}")
    found = dict(zip(_by_place, values))
    for name in found:
        if name in named:
            raise TypeError(f"{name}: expected one value, got one by place and one by name")
    return {**found, **named}


class Attention(ModuleWithFeatures):
    """Takes the place of nn.MultiheadAttention(embed_dim, heads, batch_first=True), also in nn.TransformerEncoderLayer
    and nn.TransformerDecoderLayer made with batch_first=True, as their self_attn and multihead_attn. It accepts the
    arguments of nn.MultiheadAttention, num_heads too: ValueError for a dropout and other values that it does not have.
    It loads the state dict of nn.MultiheadAttention: with strict=False if it has a position or random features, whose
    position_bias, position_slopes and features_seed are not in it and stay as they are.

    The feature map is a buffer: features_seed, the seed of random features, or features_constants (uint8), the whole
    map, if it is calibrated, projected, centred, tilted, or one for each head. So it is in the state dict, and is
    whatever was written to the buffer last. A state dict without constants leaves those of the layer; constants may be
    of a map of another kind or size than the layer's, unless that has a seed.

    position: None, "t5" (learned, `buckets`), "table" (learned, 2 `reach` + 1 lags), "alibi" (fixed slopes), or
    ("grid", H, W) (learned). All have a bias for each head, the parameter `position_bias`, initially 0;
    `position_slopes` for ALiBi. features: "taylor" with a near field, "orf", "hyperbolic" (num_features random vectors
    from `seed`), or a feature map of vectors of embed_dim / heads numbers, or one for each head. near, sinks, salient:
    pairs less than `near` tokens apart have exact weights, and so have the first `sinks` keys, and `salient` others of a
    head and sequence, which its queries choose; none if causal.

    Queries and keys are normalised to norm 1 by default, and then multiplied by sqrt(`scale`): q.k is between -scale
    and scale.
    """

    position_slopes: Tensor

    def __init__(
        self,
        embed_dim: int,
        heads: Optional[int] = None,
        *by_place: Any,
        position: Union[None, str, tuple[Any, ...]] = None,
        features: Union[str, FeaturesLike] = "taylor",
        num_features: Optional[int] = None,
        near: int = 32,
        sinks: int = 0,
        salient: int = 0,
        causal: bool = False,
        scale: float = 1.0,
        normalization: Optional[Normalization] = None,
        engine: str = "automatic",
        buckets: int = 32,
        reach: int = 128,
        seed: int = 0,
        num_heads: Optional[int] = None,
        **others: Any,
    ) -> None:
        super().__init__()
        others = _named_by_place(by_place, others)
        bias = bool_of(others.pop("bias", True), "bias")
        device, dtype = others.pop("device", None), others.pop("dtype", None)
        for name, value in others.items():
            if name not in _of_multihead_attention:
                raise TypeError(f"Attention: got an unknown argument {name!r}")
            if value != _of_multihead_attention[name] and not (name in ("kdim", "vdim") and value == embed_dim):
                raise ValueError(f"{name}: expected {_of_multihead_attention[name]!r}, got {value!r}")
        if heads is None or num_heads is not None:
            if num_heads is None or heads is not None:
                raise TypeError("heads: expected one of heads and num_heads")
            heads = num_heads
        if heads < 1 or embed_dim % heads != 0:
            raise ValueError(f"embed_dim: expected a multiple of {heads} (heads), got {embed_dim}")
        factory = {"device": device, "dtype": dtype}
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, heads, embed_dim // heads
        # What the layers of PyTorch around this one read. If the second were True, nn.TransformerEncoderLayer in eval
        # mode would compute softmax attention from in_proj_weight itself.
        self.batch_first, self._qkv_same_embed_dim = True, False
        self.causal, self.engine = bool_of(causal, "causal"), engine
        self.near, self.sinks, self.salient = near, sinks, salient
        if not scale > 0:
            raise ValueError(f"scale: expected a positive number, got {scale}")
        if normalization is not None and scale != 1:
            raise ValueError(f"scale: expected 1 beside a normalization, got {scale}")
        self.normalization = Normalization.unit(scale**0.5) if normalization is None else normalization
        radius_of(self.normalization)
        made: Features
        if isinstance(features, str):
            made = _named_features(features, self.head_dim, num_features, seed)
        else:
            made = features_of(features)
            if num_features is not None:
                raise ValueError(f"num_features: expected None beside a feature map, got {num_features}")
        self.hold_features(checked_map(made, self.head_dim, heads), device)

        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **factory))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * embed_dim, **factory)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory)

        self.position_bias: Optional[nn.Parameter] = None
        self._position = "table" if position is None else position_name(position)
        kind = self._position.split(":")[0]
        if kind == "smooth_table":
            raise ValueError("position: expected None, 't5', 'table', 'alibi' or a grid in a layer, got 'smooth_table'")
        shape = self._bias_shape(position is None, buckets, reach)
        self._check_options(position is None, shape)
        if kind == "alibi":
            slopes = torch.tensor(alibi_slopes(heads), device=device, dtype=dtype or torch.float32)
            self.register_buffer("position_slopes", slopes)
        elif position is not None:
            self.position_bias = nn.Parameter(torch.empty(heads, *shape, **factory))
        self.reset_parameters()

    def _bias_shape(self, no_position: bool, buckets: int, reach: int) -> tuple[int, ...]:
        """That of a head's position_bias. ValueError for buckets or a reach that are not the position's."""
        kind, *sizes = self._position.split(":")
        for name, value, default, of in (("buckets", buckets, 32, "t5"), ("reach", reach, 128, "table")):
            if value != default and (no_position or kind != of):
                raise ValueError(f"{name}: expected {default} unless position={of!r}, got {value}")
        if buckets < 1:
            raise ValueError(f"buckets: expected at least 1, got {buckets}")
        if reach < 0:
            raise ValueError(f"reach: expected 0 or more, got {reach}")
        if kind == "grid":
            height, width = map(int, sizes)
            if height < 1 or width < 1:
                raise ValueError(f"position: expected a grid of at least 1 x 1, got {height} x {width}")
            return (2 * height - 1, 2 * width - 1)
        return {"t5": (buckets,), "table": (2 * reach + 1,), "alibi": ()}[kind]

    def check_features(self, features: Features) -> None:
        checked_map(features, self.head_dim, self.num_heads)

    def _check_options(self, no_position: bool, shape: tuple[int, ...]) -> None:
        """ValueError for options that no call could have."""
        example = None if no_position else position_with(self._position, np.zeros(shape, np.float32))
        engine = "automatic" if self.engine in ("fused", "cufft") else self.engine  # these are a GPU's
        exact = (self.sinks, self.salient)
        NumpyAttention(self.features, example, self.causal, self.normalization, self.near, engine, *exact)

    def reset_parameters(self) -> None:
        """Sets the parameters to what the constructor sets them to: weights of both projections at random, biases 0.
        The slopes of ALiBi and the feature map become those with which the layer was made, as after to_empty()."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj.reset_parameters()
        for zero in (self.in_proj_bias, self.out_proj.bias, self.position_bias):
            if zero is not None:
                nn.init.zeros_(zero)
        with torch.no_grad():
            if self._position == "alibi":
                self.position_slopes.copy_(torch.as_tensor(alibi_slopes(self.num_heads)))
        self.reset_features()

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        attn_mask: Optional[Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        **options: Unpack[LayerOptions],
    ) -> tuple[Tensor, Optional[Report]]:
        """query [batch, n_q, embed_dim], key and value [batch, n_k, embed_dim], by default the query -> (y, None). All
        without the batch: one sequence. A nested tensor, as nn.TransformerEncoder makes it of padding, for
        self-attention.

        key_padding_mask: [batch, n_k], or [n_k] without the batch, bool, where True is padding, or numbers, 0, or -inf
        or at most -1000 for padding. attn_mask: of a causal layer, the causal mask [n_q, n_k] or [batch x heads, n_q,
        n_k], bool or of numbers; it is compared with that mask in O(n_q n_k), unless is_causal says that it is one,
        with `offset` (without one, the first query aligned with the first key). The comparison breaks a graph of
        torch.compile. There are no attention weights to return or to average. ValueError
        for need_weights, for another attn_mask, and for any of a layer that is not causal; TypeError for masks of
        integers.

        lengths, cumulative_lengths, key_cumulative_lengths, offset, tolerance, softmax_samples, softmax_seed,
        check_finite and gradient_report: as in nprf.torch.attention; with report=True (y, nprf.Report). A nested tensor
        has none of them.
        """
        for name in options:
            if name not in LayerOptions.__annotations__:
                raise unknown_option(name, "forward", "key_padding_mask")
        if need_weights:
            raise ValueError("need_weights: expected False, since no n x n matrix is formed, got True")
        key = query if key is None else key
        value = key if value is None else value
        if (attn_mask is not None or is_causal) and not self.causal:
            name = "attn_mask" if attn_mask is not None else "is_causal"
            raise ValueError(f"{name}: expected none for a layer that was made without causal=True, got one")
        if query.is_nested or key.is_nested or value.is_nested:
            is_self = query is key and key is value and query.layout == torch.strided
            if not (is_self and key_padding_mask is None and attn_mask is None and not options):
                raise ValueError(
                    "query: expected a nested tensor only for self-attention without masks and options of a call, and "
                    "of layout torch.strided, got other inputs"
                )
            return self._of_nested(query), None
        if query.dim() == 2:
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask[None]
            keys, values = None if key is query else key[None], None if value is key else value[None]
            y, report = self.forward(
                query[None], keys, values, key_padding_mask, attn_mask=attn_mask, is_causal=is_causal, **options
            )
            return y[0], report
        if attn_mask is not None and not is_causal:
            offset = options["offset"] = int(options.get("offset") or 0)
            check_causal(attn_mask, query.shape[1], key.shape[1], query.shape[0] * self.num_heads, offset)
        q, k, v = self._project(query, key, value)
        y, report = self._attend(q, k, v, key_padding_mask, **options)
        return self.out_proj(y.flatten(2)), report

    def decoder(self, batch: int = 1, rollback: int = 0) -> LayerDecoder:
        """The same layer for `batch` sequences that grow token by token, each of which can take back its last
        `rollback` tokens. ValueError unless the layer is causal, and for a grid."""
        return LayerDecoder(self, batch, rollback)

    def _of_nested(self, x: Tensor) -> Tensor:
        lengths = [each.shape[0] for each in x.unbind()]
        padded = torch.nested.to_padded_tensor(x, 0.0)
        padding = torch.arange(padded.shape[1]) >= torch.tensor(lengths)[:, None]
        y, _ = self.forward(padded, key_padding_mask=padding.to(x.device))
        return torch.nested.as_nested_tensor([each[:n] for each, n in zip(y, lengths)])

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        **options: Unpack[LayerOptions],
    ) -> tuple[Tensor, Optional[Report]]:
        """The layer's attention of what _project returns, and its report or None."""
        found = attention(
            q,
            k,
            v,
            self.position_slopes if self._position == "alibi" else self.position_bias,
            features=self.named_features(),  # type: ignore[arg-type]
            position=self._position if self._has_position() else None,
            bias_layout="heads_first",
            causal=self.causal,
            near=self.near,
            sinks=self.sinks,
            salient=self.salient,
            normalization=self.normalization,
            engine=self.engine,
            key_padding_mask=key_padding_mask,
            layout="tokens_first",
            **options,
        )
        return found if isinstance(found, tuple) else (found, None)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[batch, tokens, heads, head_dim] of each."""
        split = (self.num_heads, self.head_dim)
        if query is key and key is value:
            all_three = nn.functional.linear(query, self.in_proj_weight, self.in_proj_bias)
            q, k, v = (x.unflatten(-1, split) for x in all_three.chunk(3, dim=-1))
            return q, k, v
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            nn.functional.linear(x, w, b).unflatten(-1, split) for x, w, b in zip((query, key, value), weights, biases)
        )
        return q, k, v

    def extra_repr(self) -> str:
        return (
            f"{self.embed_dim}, {self.num_heads}, position={self._position if self._has_position() else None!r}, "
            f"features={self.features}, near={self.near}, sinks={self.sinks}, salient={self.salient}, "
            f"causal={self.causal}"
        )

    def _has_position(self) -> bool:
        return self.position_bias is not None or "position_slopes" in self._buffers
