# SPDX-License-Identifier: MIT
"""A layer of attention that gets its tokens in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import Tensor

from .._decoder import Decoder
from ..positions import T5, Alibi, Position, RelativePosition

if TYPE_CHECKING:
    from ._module import Attention


def _position_of(layer: Attention) -> Optional[Position]:
    kind, *sizes = layer._position.split(":")
    if kind == "alibi":
        return Alibi(layer.position_slopes.detach().numpy())
    if layer.position_bias is None:
        return None
    bias = layer.position_bias.detach().numpy()
    if kind == "t5":
        return T5(bias, int(sizes[0]))
    if kind == "table":
        return RelativePosition(bias)
    raise ValueError(f"layer: expected a position by the distance of tokens, got {layer._position!r}")


class LayerDecoder:
    """The rows of a causal layer for tokens that arrive in pieces, as a language model generates them, without gradients:

    >>> decoder = layer.decoder(batch=2, rollback=4)
    >>> y = decoder(prompt)     # [batch, tokens, embed_dim], as layer(prompt)[0]
    >>> y = decoder(token)      # [batch, 1, embed_dim], or a few: the rows that the layer has for the whole sequence

    state: the nprf.Decoder, with rollback, reorder, fork, reset, save and load. The decoder uses the layer's projections
    as they are at a call, and the biases and the feature map as they were when it was made. ValueError for a layer that is
    not causal, that has a grid or that is not on the CPU, and TypeError unless its parameters are float32 or float64.
    """

    def __init__(self, layer: Attention, batch: int = 1, rollback: int = 0) -> None:
        if not layer.causal:
            raise ValueError("layer: expected a causal one, got one that is not")
        dtype = layer.in_proj_weight.dtype
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"layer: expected parameters of float32 or float64, got {dtype}")
        if layer.in_proj_weight.device.type != "cpu":
            raise ValueError(f"layer: expected one on the CPU, got one on {layer.in_proj_weight.device}")
        self.layer = layer
        self.state = Decoder(
            layer.features,
            _position_of(layer),
            heads=layer.num_heads,
            batch=batch,
            rollback=rollback,
            near=layer.near,
            sinks=layer.sinks,
            normalization=layer.normalization,
            engine=layer.engine,
            dtype=str(dtype).split(".")[1],
        )

    @torch.no_grad()
    def __call__(self, x: Tensor, lengths: Optional[Sequence[int]] = None) -> Tensor:
        """Appends the tokens x [batch, tokens, embed_dim], of sequence b the first lengths[b], and returns their rows."""
        if x.dim() != 3 or x.shape[2] != self.layer.embed_dim:
            raise ValueError(f"x: expected [batch, tokens, {self.layer.embed_dim}], got {list(x.shape)}")
        options: dict[str, Any] = {"layout": "tokens_first", "threads": torch.get_num_threads()}
        if lengths is not None:
            options["lengths"] = lengths
        q, k, v = (each.numpy() for each in self.layer._project(x, x, x))
        y: Tensor = self.layer.out_proj(torch.from_numpy(self.state.prefill(q, k, v, **options)).flatten(2))
        return y
