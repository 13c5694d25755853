# SPDX-License-Identifier: MIT
"""The kinds of self-attention that nprf serves, as the libraries that have them name their parts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ..positions import alibi_slopes
from ._functional import Biases
from ._options import PositionKind
from ._served import BiasOfServed, ServedAttention, register_attention


def _slopes(module: nn.Module, heads: int) -> Tensor:
    parameter = next(module.parameters(), None)
    return torch.tensor(alibi_slopes(heads), device=None if parameter is None else parameter.device)


@register_attention("T5Attention", "MT5Attention", "Pop2PianoAttention", "SwitchTransformersAttention")
class ServedT5Attention(ServedAttention):
    """Of T5 and alike: layers without a bias of their own use that of a layer before them. Cross attention, in modules
    named EncDecAttention, stays. q.k is not divided by sqrt(d)."""

    needs = ("q", "k", "v", "o", "n_heads", "has_relative_attention_bias")
    owner_in_words = "a module with relative_attention_bias in this layer or one before it"

    @staticmethod
    def is_self_attention(name: str) -> bool:
        return name.rpartition(".")[2] != "EncDecAttention"

    @staticmethod
    def bias_owner(module: Any, parents: Sequence[Any], earlier: Sequence[Any]) -> Any:
        return next((each for each in [module, *reversed(earlier)] if each.has_relative_attention_bias), None)

    def attention_sizes(self) -> tuple[int, int]:
        return int(self.n_heads), int(self.q.out_features) // int(self.n_heads)

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        return self.q(hidden_states), self.k(hidden_states), self.v(hidden_states)

    def bias_and_position(self) -> tuple[Biases, PositionKind]:
        bias: nn.Embedding = self.served.owner.relative_attention_bias
        return bias, ("t5", getattr(self, "relative_attention_max_distance", 128))

    def attends_causally(self) -> bool:
        return bool(getattr(self, "is_decoder", False))

    def score_factor(self) -> float:
        return 1.0

    def forward(
        self, hidden_states: Tensor, mask: Optional[Tensor] = None, *, cache: Any = None, **others: Any
    ) -> tuple[Any, ...]:
        cache = others.pop("past_key_values", cache)
        self.check_arguments(others)  # also a position_bias, since the layer has its own
        return self.o(self.attend(hidden_states, mask, cache=cache)), BiasOfServed(), None


@register_attention("UMT5Attention")
class ServedUMT5Attention(ServedT5Attention):
    """Of UMT5, whose layers have a bias each, and which has other names for arguments."""

    @staticmethod
    def bias_owner(module: Any, parents: Sequence[Any], earlier: Sequence[Any]) -> Any:
        return module if module.has_relative_attention_bias else None

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, *, attention_mask: Optional[Tensor] = None, cache: Any = None, **others: Any
    ) -> tuple[Any, ...]:
        cache = others.pop("past_key_values", cache)
        self.check_arguments(others)
        return self.o(self.attend(hidden_states, attention_mask, cache=cache)), None


def _bias_of_served(*_: Any, **__: Any) -> BiasOfServed:
    return BiasOfServed()


@register_attention("MPNetSelfAttention")
class ServedMPNetAttention(ServedAttention):
    """Of MPNet, whose encoder has one T5-like bias for all layers."""

    needs = ("q", "k", "v", "o", "num_attention_heads", "attention_head_size")
    owner_in_words = "a module with relative_attention_bias around it"

    @staticmethod
    def bias_owner(module: Any, parents: Sequence[Any], earlier: Sequence[Any]) -> Any:
        return next((each for each in parents if hasattr(each, "relative_attention_bias")), None)

    @staticmethod
    def prepare_owner(owner: Any) -> None:
        owner.compute_position_bias = _bias_of_served

    @staticmethod
    def restore_owner(owner: Any) -> None:
        owner.__dict__.pop("compute_position_bias", None)

    def attention_sizes(self) -> tuple[int, int]:
        return int(self.num_attention_heads), int(self.attention_head_size)

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        return self.q(hidden_states), self.k(hidden_states), self.v(hidden_states)

    def bias_and_position(self) -> tuple[Biases, PositionKind]:
        bias: nn.Embedding = self.served.owner.relative_attention_bias
        return bias, ("t5", 128)

    def forward(
        self, hidden_states: Tensor, attention_mask: Optional[Tensor] = None, *others: Any, **named: Any
    ) -> tuple[Any, ...]:
        self.check_arguments({**dict(zip(("position_bias", "output_attentions"), others)), **named})
        return (self.o(self.attend(hidden_states, attention_mask)),)


@register_attention(
    "BertSelfAttention",
    "CamembertSelfAttention",
    "ElectraSelfAttention",
    "RobertaSelfAttention",
    "XLMRobertaSelfAttention",
)
class ServedBertAttention(ServedAttention):
    """Of BERT and alike, without a bias: positions are added to the tokens."""

    needs = ("query", "key", "value", "num_attention_heads", "attention_head_size")

    @staticmethod
    def refusal(module: Any) -> Optional[str]:
        kind = getattr(module, "position_embedding_type", "absolute") or "absolute"
        causal = bool(getattr(module, "is_decoder", False))
        if bool(getattr(getattr(module, "config", None), "is_decoder", causal)) != causal:
            return f"it has is_decoder={causal}, and its config another"
        return None if kind == "absolute" else f"its position_embedding_type is {kind}, a bias that depends on q and k"

    def attention_sizes(self) -> tuple[int, int]:
        return int(self.num_attention_heads), int(self.attention_head_size)

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        return self.query(hidden_states), self.key(hidden_states), self.value(hidden_states)

    def attends_causally(self) -> bool:
        return bool(getattr(self, "is_decoder", False))

    def forward(
        self, hidden_states: Tensor, attention_mask: Optional[Tensor] = None, *, cache: Any = None, **others: Any
    ) -> tuple[Any, ...]:
        others.pop("position_ids", None)  # of the embeddings
        cache = others.pop("past_key_values", cache)
        self.check_arguments(others)
        return self.attend(hidden_states, attention_mask, cache=cache), None


class _AlibiOfEncoder(ServedAttention):
    """BERT-like encoders with ALiBi on both sides, which is an array [1, heads, n, n] of the encoder."""

    owner_in_words = "a module with rebuild_alibi_tensor around it"

    @staticmethod
    def bias_owner(module: Any, parents: Sequence[Any], earlier: Sequence[Any]) -> Any:
        return next((each for each in parents if hasattr(each, "rebuild_alibi_tensor")), None)

    @staticmethod
    def prepare_owner(owner: Any) -> None:
        owner.alibi = torch.full_like(owner.alibi[:, :, :1, :1], torch.nan)  # served layers have their own
        owner._current_alibi_size = sys.maxsize

    @staticmethod
    def restore_owner(owner: Any) -> None:
        owner._current_alibi_size = 0  # the next call rebuilds it

    def attention_sizes(self) -> tuple[int, int]:
        return int(self.num_attention_heads), int(self.attention_head_size)

    def bias_and_position(self) -> tuple[Biases, PositionKind]:
        return _slopes(self, int(self.num_attention_heads)), "alibi"


@register_attention("JinaBertSelfAttention")
class ServedJinaBertAttention(_AlibiOfEncoder):
    """Of jina-embeddings-v2: BERT's layers, with ALiBi."""

    needs = ("query", "key", "value", "num_attention_heads", "attention_head_size")

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        return self.query(hidden_states), self.key(hidden_states), self.value(hidden_states)

    def forward(
        self, hidden_states: Tensor, attention_mask: Optional[Tensor] = None, *others: Any, **named: Any
    ) -> tuple[Any, ...]:
        of_cross_attention = ("head_mask", "encoder_hidden_states", "encoder_attention_mask", "past_key_value")
        given = {**dict(zip((*of_cross_attention, "output_attentions", "bias"), others)), **named}
        given.pop("bias", None)  # ALiBi, of one token
        self.check_arguments(given)
        return (self.attend(hidden_states, attention_mask),)


@register_attention("BertUnpadSelfAttention")
class ServedMosaicBertAttention(_AlibiOfEncoder):
    """Of MosaicBERT and DNABERT-2, whose tokens are packed without padding."""

    needs = ("Wqkv", "num_attention_heads", "attention_head_size")

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = self.Wqkv(hidden_states).chunk(3, dim=-1)
        return parts

    def sequences(self, hidden_states: Tensor, *others: Any, **named: Any) -> Tensor:
        cumulative = others[0] if others else named["cu_seqlens"]
        lengths = cumulative.diff()
        if lengths.numel() == 0 or bool((lengths != lengths[0]).any()):
            raise ValueError(f"sample: expected sequences of equal lengths, without padding, got {lengths.tolist()}")
        sequences: Tensor = hidden_states.unflatten(0, (lengths.numel(), -1))
        return sequences

    def forward(
        self,
        hidden_states: Tensor,  # [tokens of all sequences, channels]
        cu_seqlens: Tensor,
        max_seqlen_in_batch: int,
        indices: Tensor,
        attn_mask: Tensor,
        bias: Tensor,  # the mask and ALiBi, of one query
    ) -> Tensor:
        self.check_arguments({})
        return self.attend(hidden_states[None], longest=int(max_seqlen_in_batch), cumulative_lengths=cu_seqlens)[0]


@register_attention("BloomAttention")
class ServedBloomAttention(ServedAttention):
    """Of BLOOM: causal, with ALiBi by the number of tokens between two that are not padding."""

    needs = ("query_key_value", "dense", "num_heads", "head_dim", "hidden_dropout")

    @staticmethod
    def refusal(module: Any) -> Optional[str]:
        return "it has slow_but_exact" if module.slow_but_exact and module.pretraining_tp > 1 else None

    def attention_sizes(self) -> tuple[int, int]:
        return int(self.num_heads), int(self.head_dim)

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = (
            self.query_key_value(hidden_states).unflatten(-1, (self.num_heads, 3, self.head_dim)).unbind(-2)
        )
        return parts

    def bias_and_position(self) -> tuple[Biases, PositionKind]:
        return _slopes(self, int(self.num_heads)), "alibi"

    def attends_causally(self) -> bool:
        return True

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Optional[Tensor],
        layer_past: Any = None,
        use_cache: bool = False,
        **others: Any,
    ) -> tuple[Any, ...]:
        self.check_arguments(others)
        y = self.dense(self.attend(hidden_states, attention_mask, cache=layer_past, contiguous=True))
        return residual + nn.functional.dropout(y, self.hidden_dropout, self.training), None


@register_attention("MptAttention")
class ServedMptAttention(ServedAttention):
    """Of MPT: causal, with ALiBi, whose slopes are those of alibi_bias_max = 8, as in transformers."""

    needs = ("Wqkv", "out_proj", "n_heads", "head_dim", "softmax_scale", "clip_qkv")

    def attention_sizes(self) -> tuple[int, int]:
        return int(self.n_heads), int(self.head_dim)

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        qkv = self.Wqkv(hidden_states)
        parts: Sequence[Tensor] = (qkv.clamp(-self.clip_qkv, self.clip_qkv) if self.clip_qkv else qkv).chunk(3, dim=-1)
        return parts

    def bias_and_position(self) -> tuple[Biases, PositionKind]:
        return _slopes(self, int(self.n_heads)), "alibi"

    def attends_causally(self) -> bool:
        return True

    def score_factor(self) -> float:
        return float(self.softmax_scale)

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Optional[Tensor],
        cache: Any = None,
        attention_mask: Optional[Tensor] = None,
        **others: Any,
    ) -> tuple[Any, ...]:
        cache = others.pop("past_key_values", cache)
        self.check_arguments(others)
        kept = None if attention_mask is None else ~attention_mask
        return self.out_proj(self.attend(hidden_states, kept, cache=cache)), None


@register_attention("Phi4MultimodalAudioAttention")
class ServedPhi4AudioAttention(ServedAttention):
    """Of the audio encoder of Phi-4, whose bias is a clipped table. Its model adds 1 to the scores of keys that are not
    padding, and cuts sequences to 500 tokens."""

    needs = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "config")
    owner_in_words = "a module with relative_attention_bias_layer around it"

    @staticmethod
    def refusal(module: Any) -> Optional[str]:
        return "its bias is symmetric (bias_symmetric)" if module.config.bias_symmetric else None

    @staticmethod
    def bias_owner(module: Any, parents: Sequence[Any], earlier: Sequence[Any]) -> Any:
        return next((each for each in parents if hasattr(each, "relative_attention_bias_layer")), None)

    def attention_sizes(self) -> tuple[int, int]:
        return int(self.config.num_attention_heads), int(self.head_dim)

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        return self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)

    def bias_and_position(self) -> tuple[Biases, PositionKind]:
        values = self.served.owner.relative_attention_bias_layer.bias_values.weight  # of the lags -R .. R - 1
        return torch.cat([values, values[-1:]]).T, "table"

    def accepts_short_masks(self) -> bool:
        return False

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **others: Any) -> Tensor:
        self.check_arguments(others)
        added = attention_mask - self.served.owner.relative_attention_bias_layer(hidden_states) > 0.5
        if bool((added != added[..., :1]).any()):
            raise ValueError("attention_mask: expected one without padding and windows, got one in which keys differ")
        y: Tensor = self.o_proj(self.attend(hidden_states))
        return y
