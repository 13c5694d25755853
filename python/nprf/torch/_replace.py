# SPDX-License-Identifier: MIT
"""Models that were trained with softmax attention, served by nprf."""

from __future__ import annotations

import functools
import importlib
import os
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from .. import _attention
from .._attention import Calibration
from .._normalization import Normalization
from .._value import index_of
from ..features import CalibratedFeatures, CentredFeatures, Features, FeaturesLike, HeadFeatures, features_of
from . import _kinds  # noqa: F401, registers its classes
from ._module import checked_map
from ._options import position_name, position_with
from ._served import Served, ServedAttention, kind_of, kinds, original_class, serve, unserve, view_of
from ._stacks import keep_masks_short, restore_masks

if TYPE_CHECKING:
    from .._core import Report

# classes that are alike, and why they are not served
_not_served = {
    "BigBirdBlockSparseAttention": "it attends to blocks of tokens",
    "DebertaAttention": "its biases also depend on queries and keys",
    "DebertaV2Attention": "its biases also depend on queries and keys",
    "LongT5Attention": "other layers of LongT5 attend to windows of tokens",
    "LongT5LocalAttention": "it attends to a window of tokens",
    "LongT5TransientGlobalAttention": "it attends to a window of tokens and to sums of blocks",
    "Pix2StructTextAttention": "its linear layers have other names",
    "SwinAttention": "it attends to windows of a picture",
    "UdopAttention": "its biases also depend on places on a page",
    "WavLMAttention": "its biases also depend on queries",
}


class _SelfAttention(NamedTuple):
    """A self-attention that can be replaced."""

    name: str
    module: Any
    kind: type[ServedAttention]
    parents: list[nn.Module]  # the nearest one first
    view: ServedAttention


def _nothing_found(model: nn.Module) -> ValueError:
    names = {original_class(each).__name__ for each in model.modules()}
    names = {each for each in names if each.endswith("Attention")}
    known = [f"{each} ({_not_served[each]})" for each in sorted(names) if each in _not_served]
    classes = ", ".join(each for kind in reversed(kinds) for each in kind.serves)
    return ValueError(
        f"model: expected self-attention of one of the classes {classes}, got a {type(model).__name__} with "
        f"{', '.join(known or sorted(names)) or 'no attention'}"
    )


def _parents_of(model: nn.Module, name: str) -> list[nn.Module]:
    parents = []
    while name:
        name = name.rpartition(".")[0]
        parents.append(model.get_submodule(name))
    return parents


def _self_attentions(model: nn.Module) -> list[_SelfAttention]:
    """Those of registered kinds. ValueError if there are none, and for one that cannot be served."""
    found: list[_SelfAttention] = []
    for name, module in model.named_modules():
        kind = kind_of(module)
        if kind is None or not kind.is_self_attention(name):
            continue
        missing = [part for part in kind.needs if not hasattr(module, part)]
        if missing:
            raise ValueError(f"{name}: expected a {type(module).__name__} with {missing[0]}, got one without")
        if "forward" in vars(module):
            raise ValueError(
                f"{name}: expected a {type(module).__name__} with the forward of its class, got one whose forward was "
                "replaced, such as by accelerate; replace its attention before that"
            )
        reason = kind.refusal(module)
        if reason is not None:
            raise ValueError(f"{name}: expected a {type(module).__name__} that can be served, but {reason}")
        parents = _parents_of(model, name)
        owner = kind.bias_owner(module, parents, [each.module for each in found if each.kind is kind])
        if owner is None:
            raise ValueError(f"{name}: expected {kind.owner_in_words}")
        found.append(_SelfAttention(name, module, kind, parents, view_of(kind, module, owner)))
    if not found:
        raise _nothing_found(model)
    return found


FeaturesOf = Callable[[str, int], FeaturesLike]


@dataclass(repr=False)
class ModelCalibration:
    """Calibrations of the self-attentions of a model, by their names, for replace_attention; the near field and the
    sinks that they are for; the numbers of sequences and of tokens of each in the sample, and the seconds that it took.
    It can be pickled, and prints as a table. `softmax_errors` are the relative errors that they promise for the outputs
    of each (nprf.Calibration)."""

    calibrations: dict[str, Calibration]
    near: int
    sinks: int = 0
    sequences: int = 0
    tokens: int = 0
    seconds: float = field(default=0.0, compare=False)

    @property
    def softmax_errors(self) -> dict[str, float]:
        return {name: each.softmax_error for name, each in self.calibrations.items()}

    def __call__(self, name: str, _: int) -> Features:
        if name not in self.calibrations:
            raise ValueError(f"features: expected a self-attention of the calibrated model, got {name!r}")
        return self.calibrations[name].features

    def __repr__(self) -> str:
        errors = ", ".join(f"{name}: {100 * error:.2g} %" for name, error in self.softmax_errors.items())
        return f"ModelCalibration(near={self.near}, sinks={self.sinks}, {errors})"

    def __str__(self) -> str:
        width = max([len("layer"), *map(len, self.calibrations)])
        lines = [f"{'layer':{width}}  features  error, %  worst head, %"]
        for name, each in self.calibrations.items():
            maps = each.features.maps if isinstance(each.features, HeadFeatures) else (each.features,)
            errors = 100 * each.softmax_error, 100 * max(each.head_errors)
            lines.append(f"{name:{width}}  {maps[0].output_dim:8}  {errors[0]:8.2g}  {errors[1]:13.2g}")
        sample = f"{self.sequences} sequences of {self.tokens} tokens"
        return "\n".join([*lines, f"near = {self.near}, sinks = {self.sinks}; {sample}, {self.seconds:.1f} s"])

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes a file of safetensors, which can lie beside the model's checkpoint."""
        texts = {name: each.save() for name, each in self.calibrations.items()}
        of_file = {key: str(getattr(self, key)) for key in ("near", "sinks", "sequences", "tokens", "seconds")}
        tensors = {name: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) for name, text in texts.items()}
        _safetensors().save_file(tensors, path, {"nprf": "calibration 1", "names": "\n".join(texts), **of_file})

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> ModelCalibration:
        """What save() wrote, with the same bits. ValueError for other files."""
        with _safetensors().safe_open(path, "pt") as file:
            found = file.metadata() or {}
            if found.get("nprf") != "calibration 1":
                raise ValueError(f"path: expected a file that ModelCalibration.save() wrote, got {path}")
            names = found["names"].split("\n")
            texts = {name: bytes(file.get_tensor(name).numpy()).decode() for name in names}
        near, sinks, sequences, tokens = (int(found[key]) for key in ("near", "sinks", "sequences", "tokens"))
        calibrations = {name: Calibration.load(text) for name, text in texts.items()}
        return cls(calibrations, near, sinks, sequences, tokens, float(found["seconds"]))


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise ImportError("path: expected safetensors, which is not installed: pip install safetensors") from error


def _is_calibrated(features: Features) -> bool:
    maps = features.maps if isinstance(features, HeadFeatures) else (features,)
    return all(isinstance(each, (CalibratedFeatures, CentredFeatures)) for each in maps)


def _warn_of_uncalibrated(all_features: Iterable[Optional[Features]]) -> None:
    for each in all_features:
        if each is not None and not _is_calibrated(each):
            warnings.warn(
                f"features: expected maps that are calibrated for the model, whose queries and keys are not "
                f"normalised, got {each}: outputs may be far from those of softmax. Use calibrate(model, ..."
                f"), and measure with report= and softmax_samples=",
                stacklevel=3,
            )
            return


def _near_and_sinks(features: Any, near: Optional[int], sinks: Optional[int]) -> tuple[int, int]:
    """ValueError unless they are those of the calibration."""
    if not isinstance(features, ModelCalibration):
        return 64 if near is None else near, sinks or 0
    for name, value, calibrated in (("near", near, features.near), ("sinks", sinks, features.sinks)):
        if value not in (None, calibrated):
            raise ValueError(f"{name}: expected {calibrated}, for which the features were calibrated, got {value}")
    return features.near, features.sinks


def replace_attention(
    model: nn.Module,
    features: Union[None, Features, FeaturesOf] = None,
    near: Optional[int] = None,
    *,
    sinks: Optional[int] = None,
    max_error: Optional[float] = None,
    report: Optional[Callable[[str, Report], Any]] = None,
    softmax_samples: int = 0,
    rollback: int = 32,
) -> dict[str, ServedAttention]:
    """Replaces every self-attention of a model that was trained with softmax, in place, and returns them by name: of
    models of transformers, and of alike ones, whose classes are registered (register_attention).

    A module that is replaced stays, with its parameters and its state dict; it becomes a ServedAttention of its kind
    until restore_attention(). Cross attention stays as it is. features: what calibrate() returns; or a map,
    or features(name, d) for each module; None: all pairs are exact, and a call with more than `near` tokens raises
    ValueError. near, sinks: as in nprf.Attention; by default those of the calibration, else 64 and 0. max_error:
    layers for which calibrate() promises a larger error stay exact, by softmax of PyTorch (served.softmax). report: a
    function that each call of a replaced module calls with its name and its nprf.Report, with softmax_samples as in
    nprf.attention. A model whose attention has been replaced before gets these features and options.

    ValueError, which changes nothing, if nothing was found, and for features that do not fit. UserWarning for maps that
    are not calibrated. rollback: as in nprf.Decoder, whose states take the place of keys and values in a DynamicCache.
    From a mask [batch, n] of padding, a model of transformers (but Phi-4's) then makes n numbers for each sequence, not
    n x n.
    """
    near, sinks = _near_and_sinks(features, near, sinks)
    near, sinks = index_of(near, "near"), index_of(sinks, "sinks")
    softmax_samples, rollback = index_of(softmax_samples, "softmax_samples"), index_of(rollback, "rollback")
    counts = {"near": near, "sinks": sinks, "softmax_samples": softmax_samples, "rollback": rollback}
    for name, value in counts.items():
        if value < 0:
            raise ValueError(f"{name}: expected at least 0, got {value}")
    if report is not None and not callable(report):
        raise TypeError(f"report: expected a function, got {type(report).__name__}")
    if max_error is not None and not isinstance(features, ModelCalibration):
        raise ValueError(f"max_error: expected None without what calibrate() returns, got {max_error}")
    if max_error is not None and not max_error >= 0:
        raise ValueError(f"max_error: expected at least 0, got {max_error}")
    found = _self_attentions(model)
    made: list[Optional[Features]] = []
    for each in found:
        heads, d = each.view.attention_sizes()
        of_layer = features(each.name, d) if callable(features) else features
        made.append(None if of_layer is None else checked_map(features_of(of_layer), d, heads))
    _warn_of_uncalibrated(made)
    for each, of_layer in zip(found, made):
        of_name = None if report is None else functools.partial(report, each.name)
        owner = each.view.served.owner
        served = Served(near, sinks, rollback, owner=owner, report=of_name, softmax_samples=softmax_samples)
        if isinstance(features, ModelCalibration) and max_error is not None:
            served.softmax = not features.softmax_errors[each.name] <= max_error
        serve(each.kind, each.module, of_layer, served)
    for each in found:  # when all are served
        module = each.module
        if module.accepts_short_masks():
            stack = keep_masks_short(each.parents, module.attends_causally(), ServedAttention)
            module.served.stack = stack or module.served.stack
    return {each.name: each.module for each in found}


def restore_attention(model: nn.Module) -> list[str]:
    """Undoes replace_attention(), and returns the names of the modules that it had replaced. Parameters stay as they
    are now. ValueError if there are none."""
    served = [(name, module) for name, module in model.named_modules() if isinstance(module, ServedAttention)]
    if not served:
        raise ValueError(f"model: expected one whose attention was replaced, got a {type(model).__name__}")
    for _, module in served:
        if module.served.stack is not None:
            restore_masks(module.served.stack)
        unserve(module)
    return [name for name, _ in served]


def _with_progress(layers: list[_SelfAttention], progress: Optional[bool]) -> Iterable[_SelfAttention]:
    """The same, with a bar of tqdm; for None, if that is installed."""
    if progress is False:
        return layers
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        if progress is None:
            return layers
        raise ImportError("progress: expected tqdm, which is not installed: pip install 'nprf[progress]'") from error
    bar: Iterable[_SelfAttention] = tqdm(layers, desc="calibrate", unit="layer")
    return bar


@torch.no_grad()
def calibrate(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    near: int = 64,
    sinks: int = 0,
    num_features: int = 0,
    target_error: float = 0.0,
    seed: int = 0,
    progress: Optional[bool] = None,
) -> ModelCalibration:
    """Feature maps for replace_attention of a model, calibrated for its own queries and keys:

    >>> features = calibrate(model, lambda: model(**samples), near=64, num_features=72)
    >>> replace_attention(model, features)

    run: calls the model, with softmax, on some typical sequences without padding; each self-attention is calibrated for
    its first call. num_features, target_error, near, sinks, seed: as in nprf.calibrate. progress: whether a bar of tqdm
    (pip install 'nprf[progress]') counts the layers and says how long the others will take; None: if it is installed. A
    layer of 12 heads takes about half a second for 512 tokens, three for 2048, on one thread. ValueError for a model
    that replace_attention refuses, for one whose attention has been replaced, and for a self-attention that run()
    does not call.
    """
    start = time.perf_counter()
    inputs: dict[str, Tensor] = {}
    found = _self_attentions(model)
    hooks = []
    for each in found:
        if isinstance(each.module, ServedAttention):
            raise ValueError(f"model: expected one whose attention has not been replaced, but {each.name} has been")

        def keep(_: Any, args: Any, named: Any, of: _SelfAttention = each) -> None:
            if of.name not in inputs:
                inputs[of.name] = of.view.sequences(*args, **named)

        hooks.append(each.module.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    for each in found:
        if each.name not in inputs:
            raise ValueError(f"run: expected a call of {each.name}, got none")
    calibrations: dict[str, Calibration] = {}
    for each in _with_progress(found, progress):
        options = {
            "num_features": num_features,
            "near": near,
            "sinks": sinks,
            "seed": seed,
            "target_error": target_error,
        }
        try:
            calibrations[each.name] = _calibration_of(each.view, inputs[each.name], **options)
        except ValueError as error:
            raise ValueError(f"{each.name}: {error}") from None
    sequences, tokens = next(iter(inputs.values())).shape[:2]
    return ModelCalibration(calibrations, near, sinks, sequences, tokens, time.perf_counter() - start)


def _calibration_of(layer: ServedAttention, hidden_states: Tensor, **options: Any) -> Calibration:
    q, k, v = (each.transpose(1, 2).float().cpu().numpy() for each in layer.scaled_projections(hidden_states))
    bias, position = layer.bias_and_position()
    if isinstance(bias, nn.Embedding):
        bias = bias.weight.T
    return _attention.calibrate(
        q,
        k,
        v,
        None if bias is None else position_with(position_name(position), bias.detach().float().cpu()),
        causal=layer.attends_causally(),
        normalization=Normalization.none(),
        **options,
    )
