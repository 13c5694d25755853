# SPDX-License-Identifier: MIT
"""Self-attention of T5-like models, computed by nprf."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from torch import Tensor, nn

from .._normalization import Normalization
from ..features import Features, FeaturesLike, features_of, taylor
from ._functional import attention
from ._masks import padding_of_rows
from ._module import checked_map
from ._module_with_features import ModuleWithFeatures

if TYPE_CHECKING:
    from .._core import Report

ReportCall = Callable[["Report"], Any]

# arguments that ask the model for other outputs, and do not change its attention
_of_outputs = ("cache_position", "num_items_in_batch", "output_hidden_states", "output_router_logits")
_of_caches = ("cache", "past_key_value", "past_key_values", "use_cache")


class T5SelfAttention(ModuleWithFeatures):
    """Takes the place of a T5 model's self-attention: a module with linear layers q, k, v and o, n_heads, and
    has_relative_attention_bias; if that is True also relative_attention_bias, an embedding [buckets, heads]. It has the
    state dict of the module that it replaces, and its feature map (features_seed or features_constants, as in
    Attention), which stays if a state dict has none. It does not have the module's dropout.

    features: a map of vectors of as many numbers as a head has, or one for each head; None: all pairs are exact, and a
    call with more than `near` tokens raises ValueError. T5 does not divide q.k by sqrt(d), and does not normalise, so
    that maps have to be calibrated for its queries and keys (calibrated_features). near, sinks: as in nprf.Attention.
    bias_of: the parent and the name of the layer whose relative_attention_bias is used, as it is at a call, if
    `replaced` has none. report: a function that each call calls with its nprf.Report, in which `softmax_samples` rows
    of each sequence of each head are compared with exact softmax; it breaks a graph of torch.compile.
    """

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear

    def __init__(
        self,
        replaced: Any,
        features: Optional[FeaturesLike] = None,
        near: int = 64,
        *,
        sinks: int = 0,
        bias_of: Optional[tuple[nn.Module, str]] = None,
        report: Optional[ReportCall] = None,
        softmax_samples: int = 0,
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = replaced.q, replaced.k, replaced.v, replaced.o
        if replaced.has_relative_attention_bias:
            self.relative_attention_bias = replaced.relative_attention_bias
        self._bias_of = bias_of  # a tuple: not a part of each layer's state dict
        self.heads, self.near, self.sinks = int(replaced.n_heads), near, sinks
        self.head_dim = int(replaced.q.out_features) // self.heads
        self.causal = bool(getattr(replaced, "is_decoder", False))
        self.max_distance = getattr(replaced, "relative_attention_max_distance", 128)
        made = taylor(self.head_dim) if features is None else features_of(features)
        self.hold_features(checked_map(made, self.head_dim, self.heads), replaced.q.weight.device)
        self.needs_exact_pairs = features is None
        self.report, self.softmax_samples = report, softmax_samples
        self.train(replaced.training)
        # what code of the model reads
        self.config = getattr(replaced, "config", None)
        self.n_heads, self.has_relative_attention_bias = self.heads, False

    def forward(self, hidden_states: Tensor, mask: Optional[Tensor] = None, **others: Any) -> tuple[Any, ...]:
        """hidden_states [batch, n, channels] -> (y, None, None). mask: [batch or 1, n], or with heads and queries
        [batch or 1, heads or 1, n or 1, n], bool, where True keeps a key, or additive: 0, or at most -1000 for padding.
        ValueError for a mask by which queries attend to other keys than padding and `causal` give; for a cache
        (use_cache) and key_value_states, since the keys are those of hidden_states; for a position_bias, since the
        layer has its own; for output_attentions, since there are no weights to return; and for any other argument that
        may change what is computed. Without a cache cache_position is 0, 1, ...
        """
        return self._attend(hidden_states, mask, others), None, None

    def _attend(self, hidden_states: Tensor, mask: Optional[Tensor], others: dict[str, Any]) -> Tensor:
        self._check_arguments(others)
        n = hidden_states.shape[1]
        if self.needs_exact_pairs and n > self.near:
            raise ValueError(f"hidden_states: expected at most {self.near} tokens (near) without features, got {n}")
        split = (self.heads, self.head_dim)
        q, k, v = (layer(hidden_states).unflatten(-1, split) for layer in (self.q, self.k, self.v))
        padding = None
        if mask is not None:
            padding = padding_of_rows(mask, self.causal, n).expand(hidden_states.shape[0], n)
        found = attention(
            q * self.head_dim**0.5,  # Normalization.none() divides by it
            k,
            v,
            self._bias(),
            features=self.named_features(),  # type: ignore[arg-type]
            position=("t5", self.max_distance),
            causal=self.causal,
            near=self.near,
            sinks=self.sinks,
            normalization=Normalization.none(),
            key_padding_mask=padding,
            layout="tokens_first",
            report=self.report is not None,
            softmax_samples=self.softmax_samples if self.report is not None else 0,
        )
        rows, report = found if isinstance(found, tuple) else (found, None)
        if self.report is not None and report is not None:
            self.report(report)
        y: Tensor = self.o(rows.flatten(2))
        return y

    def check_features(self, features: Features) -> None:
        checked_map(features, self.head_dim, self.heads)

    def hold_features(self, features: Features, device: Any = None) -> None:
        super().hold_features(features, device)
        self.needs_exact_pairs = False

    def _prepare_to_load(self, state_dict: Any, prefix: str) -> None:
        """The model's own checkpoint has no seed."""
        if self._features_buffer == "features_seed":
            state_dict.setdefault(prefix + "features_seed", self.features_seed)
        super()._prepare_to_load(state_dict, prefix)

    def _bias(self) -> Any:
        """The embedding: that which the layer has now, or the one that it shares."""
        if self._bias_of is None:
            return self.relative_attention_bias
        parent, name = self._bias_of
        return getattr(parent, name).relative_attention_bias

    def _check_arguments(self, others: dict[str, Any]) -> None:
        if others.pop("output_attentions", None) or getattr(self.config, "output_attentions", False):
            raise ValueError("output_attentions: expected False, since no n x n matrix is formed, got True")
        if others.pop("is_causal", None) not in (None, self.causal):
            raise ValueError(f"is_causal: expected {self.causal}, as of the layer that was replaced, got another")
        for name, value in others.items():
            if name not in _of_outputs and value is not None and value is not False:
                expected = "None (and use_cache=False)" if name in _of_caches else "None"
                raise ValueError(f"{name}: expected {expected}, got {type(value).__name__}")

    def extra_repr(self) -> str:
        features = None if self.needs_exact_pairs else self.features
        return f"features={features}, near={self.near}, sinks={self.sinks}, causal={self.causal}"


class UMT5SelfAttention(T5SelfAttention):
    """The same for UMT5, whose layers have a bias each, and which has other names for arguments."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, *, attention_mask: Optional[Tensor] = None, **others: Any
    ) -> tuple[Any, ...]:
        """As in T5SelfAttention, with the mask as attention_mask -> (y, None)."""
        return self._attend(hidden_states, attention_mask, others), None
