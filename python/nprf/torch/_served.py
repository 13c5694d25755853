# SPDX-License-Identifier: MIT
"""Self-attention of models that were trained with softmax, computed by nprf, and the kinds of modules that can be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Optional, TypeVar

import torch
from torch import Tensor, nn

from .._decoder import Decoder
from .._normalization import Normalization
from ..features import Features, HeadFeatures, taylor
from ..positions import Position
from ._decoder import numpy_of
from ._functional import Biases, attention
from ._masks import padding_of_rows
from ._module import checked_map
from ._module_with_features import ModuleWithFeatures
from ._options import PositionKind, position_name, position_with
from ._softmax import part_of_heads, softmax_rows

if TYPE_CHECKING:
    from .._core import Report

ReportCall = Callable[["Report"], Any]

# arguments that ask the model for other outputs, and do not change its attention
_of_outputs = ("cache_position", "num_items_in_batch", "output_hidden_states", "output_router_logits")


@dataclass
class Served:
    """How a module is served: near, sinks as in nprf.Attention; rollback: as in nprf.Decoder, for a cache; exact:
    whether all pairs are exact, so that a call with more than `near` tokens raises ValueError; softmax: the heads that
    PyTorch computes by exact softmax, in O(n^2); stack: the module that gives it short masks (keep_masks_short), if
    there is one; owner: the module that has its bias, as it is at a call; report: a function that each call calls with
    the nprf.Report of the other heads, in which `softmax_samples` rows of each sequence of each of them are compared
    with exact softmax (it breaks a graph of torch.compile)."""

    near: int
    sinks: int = 0
    rollback: int = 0
    exact: bool = False
    softmax: tuple[int, ...] = ()
    owner: Any = None
    stack: Any = None
    report: Optional[ReportCall] = None
    softmax_samples: int = 0


class BiasOfServed:
    """In place of the n x n biases that a served layer, or its owner, does not make for others: served layers have
    their own, and for another layer it is an error."""

    def to(self, *_: Any, **__: Any) -> BiasOfServed:
        """It is on all devices."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ValueError(
            "position_bias: expected a layer whose attention was replaced, as that of others was; replace, or restore, "
            "the attention of the whole model"
        )

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return cls().numbers


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, n, heads, d], also of [batch, n, heads x d]."""
    return x if x.dim() == 4 else x.unflatten(-1, (heads, x.shape[-1] // heads))


def _maps_of_others(features: Features, heads: Sequence[int]) -> Features:
    """The maps of other heads than these; all if there are no others."""
    if not isinstance(features, HeadFeatures) or not 0 < len(heads) < len(features.maps):
        return features
    return HeadFeatures(each for h, each in enumerate(features.maps) if h not in heads)


class ServedAttention(ModuleWithFeatures):
    """A module of self-attention that replace_attention() has replaced: it has its own parts and parameters, and the
    feature map as a buffer, which stays if a state dict has none: features_seed, or features_constants, as in Attention,
    of the heads that nprf computes, with served_as, int64 [2 + heads]: near and sinks of Served, and 1 for each head in
    softmax; in older versions [3], one number for all heads. It does not apply dropout to attention weights.

    A class for another kind of modules derives from this one and says what they compute. Its `self` is the module:

    >>> @nprf.torch.register_attention("MyAttention")
    ... class ServedMyAttention(nprf.torch.ServedAttention):
    ...     def attention_sizes(self):
    ...         return self.num_heads, self.head_dim
    ...
    ...     def projections(self, hidden_states):
    ...         return self.query(hidden_states), self.key(hidden_states), self.value(hidden_states)
    ...
    ...     def bias_and_position(self):
    ...         return self.slopes, "alibi"
    ...
    ...     def forward(self, hidden_states, attention_mask=None, **others):
    ...         self.check_arguments(others)
    ...         return self.out(self.attend(hidden_states, attention_mask)), None
    """

    served: Served
    # the classes that a derived class is for, and what such a module must have
    serves: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    # what bias_owner() looks for, in words
    owner_in_words: ClassVar[str] = "a module with its bias"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The parts of the module are those of its own class."""

    def attention_sizes(self) -> tuple[int, int]:
        """The number of heads, and of channels of each."""
        raise NotImplementedError

    def projections(self, hidden_states: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values of hidden_states [batch, n, channels], each [batch, n, heads x d] or with heads as
        an axis of its own."""
        raise NotImplementedError

    def bias_and_position(self) -> tuple[Biases, PositionKind]:
        """As for nprf.torch.attention."""
        return None, None

    def attends_causally(self) -> bool:
        return False

    def score_factor(self) -> float:
        """What softmax multiplies q.k by: the module's `scaling`, or 1 / sqrt(d)."""
        return float(getattr(self, "scaling", self.attention_sizes()[1] ** -0.5))

    def accepts_short_masks(self) -> bool:
        """Whether the model may pass a mask of padding [batch, 1, 1, n] instead of one of n x n numbers."""
        return True

    def sequences(self, hidden_states: Tensor, *others: Any, **named: Any) -> Tensor:
        """The sequences [batch, n, channels] of the arguments of a call, without padding, for a calibration."""
        return hidden_states

    @staticmethod
    def is_self_attention(name: str) -> bool:
        """Whether the module of this name attends to its own tokens; others stay as they are."""
        return True

    @staticmethod
    def refusal(module: Any) -> Optional[str]:
        """Why this module cannot be served, in words; None if it can be."""
        return None

    @staticmethod
    def bias_owner(module: Any, parents: Sequence[Any], earlier: Sequence[Any]) -> Any:
        """The module that has the bias of `module`: itself, one of its parents, the nearest one first, or one of the
        self-attentions before it; None if there is none."""
        return module

    @staticmethod
    def prepare_owner(owner: Any) -> None:
        """Keeps the owner of a bias from making n x n numbers of it."""

    @staticmethod
    def restore_owner(owner: Any) -> None:
        """Undoes prepare_owner()."""

    def scaled_projections(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """projections() [batch, n, heads, d], for Normalization.none(), which divides q.k by sqrt(d)."""
        heads, d = self.attention_sizes()
        q, k, v = (_by_heads(each, heads) for each in self.projections(hidden_states))
        factor = self.score_factor() * d**0.5
        return q if factor == 1 else q * factor, k, v

    def attend(
        self,
        hidden_states: Tensor,
        mask: Optional[Tensor] = None,
        *,
        cache: Any = None,
        contiguous: bool = False,
        longest: Optional[int] = None,
        **options: Any,
    ) -> Tensor:
        """The rows [batch, n, heads x d] of hidden_states [batch, n, channels]. mask: [batch or 1, n_k], or with heads
        and queries [batch or 1, heads or 1, n or 1, n_k], bool, where True keeps a key, or additive: 0, or at most
        -1000 for padding. contiguous: there must be no padding between tokens. cache: one of transformers, which has
        the keys and values of the tokens before hidden_states, or the state of a decoder, and gets theirs. longest: the tokens of the longest one
        of packed sequences. options: of nprf.torch.attention. ValueError for a mask by which queries attend to other
        keys than padding and causality give."""
        served, n = self.served, hidden_states.shape[1]
        past, n_k = 0, n
        q, k, v = self.scaled_projections(hidden_states)
        if cache is not None:
            cache = getattr(cache, "self_attention_cache", cache)
            past, n_k = int(cache.get_seq_length(self.layer_idx)), int(cache.get_mask_sizes(n, self.layer_idx)[0])
        longest = n_k if longest is None else longest
        if served.exact and longest > served.near:
            raise ValueError(
                f"hidden_states: expected at most {served.near} tokens (near) without features, got {longest}"
            )
        bias, position = self.bias_and_position()
        if isinstance(bias, Tensor):
            bias = bias.to(q.dtype)
        causal = self.attends_causally()
        padding = None
        if mask is not None:
            padding = padding_of_rows(mask, causal, n, n_k, past, contiguous).expand(hidden_states.shape[0], n_k)
        if cache is not None:
            from ._cache import tokens_in

            tokens = tokens_in(cache, self.layer_idx, n, lambda: self._maker_of_decoders(q, k, v, padding))
            if tokens is not None:
                return self._reported(tokens.rows(q, k, v, padding, served.report is not None, served.softmax_samples))
            k, v = (each.transpose(1, 2) for each in cache.update(k.transpose(1, 2), v.transpose(1, 2), self.layer_idx))
        heads = range(q.shape[2])
        # for the keys of a cache nprf would compute features in each call
        exact = heads if served.softmax and n_k > n else served.softmax
        others = [h for h in heads if h not in exact]
        if exact:
            cumulative = options.get("cumulative_lengths")
            by_softmax = softmax_rows(
                *part_of_heads(exact, q, k, v, bias, position), position, causal, past, padding, cumulative
            )
            if not others:
                return by_softmax.flatten(2)
            q, k, v, bias = part_of_heads(others, q, k, v, bias, position)
            options["bias_layout"] = "heads_first"
        found = attention(
            q,
            k,
            v,
            bias,
            features=self.named_features(),  # type: ignore[arg-type]
            position=position,
            causal=causal,
            offset=past if causal else None,
            near=served.near,
            sinks=served.sinks,
            normalization=Normalization.none(),
            key_padding_mask=padding,
            layout="tokens_first",
            report=served.report is not None,
            softmax_samples=served.softmax_samples if served.report is not None else 0,
            **options,
        )
        rows, report = found if isinstance(found, tuple) else (found, None)
        if exact:
            by_head = dict(zip([*others, *exact], [*rows.unbind(2), *by_softmax.unbind(2)]))
            rows = torch.stack([by_head[h] for h in heads], 2)
        return self._reported((rows, report))

    def _reported(self, found: tuple[Tensor, Optional[Report]]) -> Tensor:
        """The rows of (rows [batch, n, heads, d], report), with heads joined."""
        rows, report = found
        if self.served.report is not None and report is not None:
            self.served.report(report)
        return rows.flatten(2)

    def numpy_position(self) -> Optional[Position]:
        """Of bias_and_position(), with its numbers as they are now."""
        bias, position = self.bias_and_position()
        if isinstance(bias, nn.Embedding):
            bias = bias.weight.T
        return None if bias is None else position_with(position_name(position), numpy_of(bias))

    def _maker_of_decoders(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor]
    ) -> Optional[functools.partial[Decoder]]:
        """None if their rows need keys and values: exact softmax does, and gradients, graphs, GPUs, and padding that is
        not before all tokens."""
        served = self.served
        in_graph = torch.compiler.is_compiling() or torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        if served.exact or served.softmax or in_graph or q.device.type != "cpu" or not self.attends_causally():
            return None
        if padding is not None and bool((~padding[:, :-1] & padding[:, 1:]).any()):
            return None
        return functools.partial(
            Decoder,
            self.features,
            self.numpy_position(),
            heads=q.shape[2],
            rollback=served.rollback,
            near=served.near,
            sinks=served.sinks,
            normalization=Normalization.none(),
            dtype="float64" if q.dtype == torch.float64 else "float32",
        )

    def check_arguments(self, others: dict[str, Any]) -> None:
        """ValueError for a cache that attend() does not get; for output_attentions, since there are no weights to
        return; and for any other argument that may change what is computed."""
        if others.pop("output_attentions", None) or getattr(getattr(self, "config", None), "output_attentions", False):
            raise ValueError("output_attentions: expected False, since no n x n matrix is formed, got True")
        causal = self.attends_causally()
        if others.pop("is_causal", None) not in (None, causal):
            raise ValueError(f"is_causal: expected {causal}, as of the layer that was replaced, got another")
        for name, value in others.items():
            if isinstance(value, BiasOfServed):
                continue
            if name not in _of_outputs and value is not None and value is not False:
                raise ValueError(f"{name}: expected None, got {type(value).__name__}")

    def check_features(self, features: Features) -> None:
        heads, d = self.attention_sizes()
        checked_map(features, d, heads - len(self.served.softmax) or heads)

    def hold_features(self, features: Features, device: Any = None) -> None:
        super().hold_features(features, device)
        self.served.exact = False
        self._buffers.pop("served_as", None)
        if self._features_buffer == "features_constants":  # they are for this near field and these sinks
            self.register_buffer("served_as", torch.tensor(self._numbers_of_served(), dtype=torch.int64, device=device))

    def _numbers_of_served(self) -> list[int]:
        served = self.served
        return [served.near, served.sinks, *(h in served.softmax for h in range(self.attention_sizes()[0]))]

    def _prepare_to_load(self, state_dict: Any, prefix: str) -> None:
        """The model's own checkpoint has neither seed nor constants."""
        if self._features_buffer == "features_seed":
            state_dict.setdefault(prefix + "features_seed", self.features_seed)
        key, before = prefix + "served_as", self.served
        numbers = state_dict.get(key)
        if isinstance(numbers, Tensor) and not numbers.is_meta:
            near, sinks, *softmax = numbers.tolist()
            exact = tuple(h for h in range(self.attention_sizes()[0]) if softmax[h % len(softmax)])
            self.served = replace(before, near=near, sinks=sinks, softmax=exact)
        try:
            super()._prepare_to_load(state_dict, prefix)  # the maps of the heads that are not in softmax
        except ValueError:
            self.served = before
            raise
        finally:
            if "served_as" in self._buffers:
                state_dict[key] = state_dict.get(key, self.served_as).new_tensor(self._numbers_of_served())

    def __reduce__(self) -> Any:
        return _blank, (type(self).kind, type(self).replaced), self.__dict__  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        served = self.served
        causal = f"causal={self.attends_causally()}"
        if len(served.softmax) == self.attention_sizes()[0]:
            return f"softmax, {causal}"
        features = None if served.exact else self.features
        softmax = f"softmax={served.softmax}, " if served.softmax else ""
        return f"features={features}, near={served.near}, sinks={served.sinks}, {softmax}{causal}"


_of_served = ("served", "_made", "_features_name", "_features_buffer")


_served_classes: dict[tuple[Any, Any], Any] = {}


def _served_class(kind: type[ServedAttention], replaced: type[nn.Module]) -> Any:
    """Of modules of the class `replaced`. It has the name of that class, which transformers looks for."""
    found = _served_classes.get((kind, replaced))
    if found is not None:
        return found
    names = {"__module__": replaced.__module__, "__qualname__": replaced.__qualname__, "__doc__": kind.__doc__}
    made = type(replaced.__name__, (kind, replaced), {**names, "kind": kind, "replaced": replaced})
    _served_classes[kind, replaced] = made
    return made


def _blank(kind: type[ServedAttention], replaced: type[nn.Module]) -> ServedAttention:
    """A module without attributes, for pickle and copy."""
    of = _served_class(kind, replaced)
    made: ServedAttention = of.__new__(of)
    return made


def view_of(kind: type[ServedAttention], module: nn.Module, owner: Any) -> ServedAttention:
    """The module as its kind sees it; it stays what it is."""
    view = _blank(kind, original_class(module))
    view.__dict__.update(module.__dict__)
    view.served = Served(near=0, owner=owner)
    return view


def serve(kind: type[ServedAttention], module: Any, features: Optional[Features], served: Served) -> None:
    """The module becomes a ServedAttention of this kind, with these features."""
    if isinstance(module, ServedAttention):
        served.stack = module.served.stack
    parameter = next(module.parameters(), None)
    _, d = view_of(kind, module, served.owner).attention_sizes()
    module.__class__ = _served_class(kind, original_class(module))
    module.served = served
    maps = taylor(d) if features is None else _maps_of_others(features, served.softmax)
    module.hold_features(maps, None if parameter is None else parameter.device)
    module.served.exact = features is None
    module.prepare_owner(served.owner)


def unserve(module: Any) -> None:
    """The module has its own class again."""
    module.restore_owner(module.served.owner)
    for name in ("features_seed", "features_constants", "served_as"):
        module._buffers.pop(name, None)
    for name in _of_served:
        module.__dict__.pop(name, None)
    module.__class__ = original_class(module)


kinds: list[type[ServedAttention]] = []

Kind = TypeVar("Kind", bound=type[ServedAttention])


def register_attention(*classes: str) -> Callable[[Kind], Kind]:
    """A decorator: modules of classes of these names are served by the class that it decorates (ServedAttention). Of
    several that are registered for one name the last one is taken."""

    def register(kind: Kind) -> Kind:
        kind.serves = classes
        kinds.insert(0, kind)
        return kind

    return register


def original_class(module: nn.Module) -> type[Any]:
    """That of a module before it was served."""
    of: type[Any] = (
        getattr(type(module), "replaced", type(module)) if isinstance(module, ServedAttention) else type(module)
    )
    return of


def kind_of(module: nn.Module) -> Optional[type[ServedAttention]]:
    """The kind that is registered for the class that has the module's forward; None if a derived class has other
    methods instead of some of that one."""
    classes = original_class(module).__mro__
    of_forward = next((k for k, each in enumerate(classes) if "forward" in vars(each)), None)
    if of_forward is None:
        return None
    methods = {name for name, each in vars(classes[of_forward]).items() if callable(getattr(each, "__func__", each))}
    if any(methods & vars(each).keys() - {"__init__"} for each in classes[:of_forward]):
        return None
    return next((each for each in kinds if classes[of_forward].__name__ in each.serves), None)
