# SPDX-License-Identifier: MIT
"""A layer of attention that gets its tokens in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import Tensor

from .._decoder import Decoder, left_padding
from ..positions import Position
from ._gpu_decoder import GpuDecoder
from ._masks import padding_of
from ._options import position_with

if TYPE_CHECKING:
    from ._module import Attention


def numpy_of(x: Tensor) -> Any:
    """In float32 if NumPy may not have its type."""
    on_host = x.detach().cpu()
    return (on_host if on_host.dtype == torch.float64 else on_host.float()).numpy()


def _position_of(layer: Attention) -> Optional[Position]:
    if layer._position.startswith("grid"):
        raise ValueError(f"layer: expected a position by the distance of tokens, got {layer._position!r}")
    if not layer._has_position():
        return None
    parameters = layer.position_slopes if layer.position_bias is None else layer.position_bias
    return position_with(layer._position, numpy_of(parameters))


def _rolled(x: Tensor, shifts: Tensor) -> Tensor:
    """Sequence b of x [batch, tokens, channels], moved by shifts[b] tokens to the front, those at the front to the
    end."""
    n = x.shape[1]
    index = ((torch.arange(n) + shifts[:, None]) % max(n, 1)).to(x.device)
    return x.gather(1, index[..., None].expand_as(x))


def _is_on_gpu(layer: Attention) -> bool:
    return layer.in_proj_weight.is_cuda


class LayerDecoder:
    """The rows of a causal layer for tokens that arrive in pieces, as a language model generates them, without
    gradients:

    >>> decoder = layer.decoder(batch=2, rollback=4)
    >>> y = decoder(prompt)     # [batch, tokens, embed_dim], as layer(prompt)[0]
    >>> y = decoder(token)      # [batch, 1, embed_dim], or a few: the rows that the layer has for the whole sequence

    state: the nprf.Decoder, or for a layer on a GPU the GpuDecoder, with rollback, reorder, fork and reset. The decoder
    uses the layer's projections as they are at a call, and the biases and the feature map as they were when it was
    made; on a GPU the rows of a prompt use the biases and the feature map as they are at the call. A prompt is what a
    decoder without tokens gets; on a GPU it does not see tokens that replays of a graph have appended. ValueError for a
    layer that is not causal or that has a grid, TypeError unless its parameters are float32 or float64, on a GPU
    float32, float16 or bfloat16.
    """

    state: Any

    def __init__(self, layer: Attention, batch: int = 1, rollback: int = 0) -> None:
        if not layer.causal:
            raise ValueError("layer: expected a causal one, got one that is not")
        dtype, device = layer.in_proj_weight.dtype, layer.in_proj_weight.device
        on_gpu = _is_on_gpu(layer)
        if not on_gpu and device.type != "cpu":
            raise ValueError(f"layer: expected one on the CPU or a GPU, got one on {device}")
        self.layer, self._dtype = layer, dtype
        options: dict[str, Any] = {
            "heads": layer.num_heads,
            "batch": batch,
            "rollback": rollback,
            "near": layer.near,
            "sinks": layer.sinks,
            "normalization": layer.normalization,
        }
        position = _position_of(layer)
        if on_gpu:
            self.state = GpuDecoder(
                layer.features, position, channels=layer.head_dim, dtype=dtype, device=device, **options
            )
            return
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"layer: expected parameters of float32 or float64, got {dtype}")
        options["engine"] = layer.engine
        self.state = Decoder(layer.features, position, dtype=str(dtype).split(".")[1], **options)

    @torch.no_grad()
    def __call__(
        self, x: Tensor, lengths: Optional[Sequence[int]] = None, key_padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Appends the tokens x [batch, tokens, embed_dim], of sequence b the first lengths[b], or those that are not
        padding by a key_padding_mask [batch, tokens], where True is padding, which must come before them; and returns
        their rows. Rows of padding are those of attention to no key."""
        if x.dim() != 3 or x.shape[2] != self.layer.embed_dim:
            raise ValueError(f"x: expected [batch, tokens, {self.layer.embed_dim}], got {list(x.shape)}")
        if key_padding_mask is not None:
            if lengths is not None:
                raise ValueError("lengths: expected none beside a key_padding_mask, got some")
            batch, n = x.shape[:2]
            padding = torch.from_numpy(left_padding((~padding_of(key_padding_mask)).cpu().numpy(), batch, n))
            return _rolled(self(_rolled(x, padding), (n - padding).tolist()), -padding)
        q, k, v = (each.to(self._dtype) for each in self.layer._project(x, x, x))  # under autocast they are halves
        if isinstance(self.state, GpuDecoder):
            rows = self._rows_on_gpu(self.state, q, k, v, lengths)
        else:
            options: dict[str, Any] = {"layout": "tokens_first", "threads": torch.get_num_threads()}
            if lengths is not None:
                options["lengths"] = lengths
            rows = torch.from_numpy(self.state.prefill(q.numpy(), k.numpy(), v.numpy(), **options))
        y: Tensor = self.layer.out_proj(rows.flatten(2))
        return y

    def _rows_on_gpu(
        self, state: GpuDecoder, q: Tensor, k: Tensor, v: Tensor, lengths: Optional[Sequence[int]]
    ) -> Tensor:
        """[batch, tokens, heads, head_dim]: for a prompt by attention, beside appending it; then by steps."""
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        if state._has_tokens:
            return state.step(q.transpose(1, 2), keys, values, lengths).transpose(1, 2)
        y, _ = self.layer._attend(q, k, v)  # first, so that an error changes nothing
        state.append(keys, values, lengths)
        if lengths is None:
            return y
        of_sequences = torch.as_tensor(lengths, device=y.device)
        beyond = torch.arange(y.shape[1], device=y.device) >= of_sequences[:, None]
        return y.masked_fill(beyond[..., None, None], 0)
