# SPDX-License-Identifier: MIT
"""Calibrations of the self-attentions of a model."""

from __future__ import annotations

import functools
import importlib
import inspect
import time
from collections.abc import Callable, Iterable
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from .. import _attention
from .._attention import Calibration
from .._normalization import Normalization
from .._value import index_of
from ._budget import best_choices, choices_of, cost_of
from ._masks import padding_of_rows
from ._model_calibration import ModelCalibration, map_of_a_head
from ._replace import SelfAttention, self_attentions
from ._served import ServedAttention, view_of


def _with_progress(layers: list[SelfAttention], progress: Optional[bool]) -> Iterable[SelfAttention]:
    """The same, with a bar of tqdm; for None, if that is installed."""
    if progress is False:
        return layers
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        if progress is None:
            return layers
        raise ImportError("progress: expected tqdm, which is not installed: pip install 'nprf[progress]'") from error
    bar: Iterable[SelfAttention] = tqdm(layers, desc="calibrate", unit="layer")
    return bar


class _Attends(Exception):
    """Of a layer that would call attend() with this mask."""

    def __init__(self, tokens: int, mask: Optional[Tensor]) -> None:
        self.tokens, self.mask = tokens, mask


def _attends(hidden_states: Tensor, mask: Optional[Tensor] = None, **_: Any) -> Any:
    raise _Attends(hidden_states.shape[1], mask)


def _check_without_padding(view: ServedAttention, args: Any, named: Any) -> None:
    """ValueError for a call of the module whose mask drops keys. What the mask is only the forward of its kind knows."""
    view.__dict__.update(attend=_attends, check_arguments=lambda others: None)
    try:
        view.forward(*args, **named)
    except _Attends as call:
        if call.mask is None:
            return
        if bool(padding_of_rows(call.mask, view.attends_causally(), call.tokens, call.tokens).any()):
            raise ValueError("sample: expected sequences without padding, got a mask that drops keys") from None


def _sequences_of(texts: Iterable[str], tokenizer: Any, tokens: int, count: int) -> list[list[int]]:
    """At most `count` sequences of `tokens` tokens, with the special tokens of the tokenizer, of the joined texts."""
    joined: list[int] = []
    before: list[int] = []
    after: list[int] = []
    length = tokens
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"sample: expected a function or strings, got {type(text).__name__}")
        own = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if own and not joined:
            whole = list(tokenizer(text, verbose=False)["input_ids"])
            at = next((i for i in range(len(whole)) if whole[i : i + len(own)] == own), -1)
            if at < 0:
                raise ValueError(
                    "tokenizer: expected one that adds tokens before and after those of a text, got another"
                )
            before, after = whole[:at], whole[at + len(own) :]
            length = tokens - len(before) - len(after)
            if length < 1:
                raise ValueError(f"tokens: expected more than {tokens - length} (special tokens), got {tokens}")
        joined += own
        if len(joined) >= count * length:
            break
    found = min(count, len(joined) // length)
    if found < min(count, 2):
        raise ValueError(
            f"sample: expected texts of at least {min(count, 2) * length} tokens, for {min(count, 2)} sequences of "
            f"{tokens} (tokens), got {len(joined)}"
        )
    return [[*before, *joined[i * length : (i + 1) * length], *after] for i in range(found)]


def _runs_of_texts(
    model: nn.Module, texts: Iterable[str], tokenizer: Any, tokens: Optional[int], count: int
) -> list[Callable[[], Any]]:
    """Calls of the model, one for each sequence of the texts."""
    if tokenizer is None:
        raise ValueError("tokenizer: expected that of the model, for a sample of texts, got None")
    if tokens is None:
        most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        tokens = int(min(512, getattr(tokenizer, "model_max_length", 512), most or 512))
    tokens, count = index_of(tokens, "tokens"), index_of(count, "sequences")
    if count < 1:
        raise ValueError(f"sequences: expected at least 1, got {count}")
    parameter = next(model.parameters(), None)
    names = {"input_ids", "decoder_input_ids"} & inspect.signature(model.forward).parameters.keys()
    found: list[Callable[[], Any]] = []
    for sequence in _sequences_of([texts] if isinstance(texts, str) else texts, tokenizer, tokens, count):
        ids = torch.tensor([sequence], device=None if parameter is None else parameter.device)
        found.append(functools.partial(model, **dict.fromkeys(names, ids)))
    return found


def _inputs_of(layers: list[SelfAttention], runs: Iterable[Callable[[], Any]]) -> dict[str, Tensor]:
    """The sequences [sequences, n, channels] of the first call of each layer in each run. ValueError if there is none,
    and for padding."""
    inputs: dict[str, list[Tensor]] = {}
    called: set[str] = set()
    hooks = []
    for each in layers:

        def keep(module: Any, args: Any, named: Any, of: SelfAttention = each) -> None:
            if of.name in called:
                return
            called.add(of.name)
            try:
                inputs.setdefault(of.name, []).append(of.view.sequences(*args, **named))
                _check_without_padding(view_of(of.kind, module, of.view.served.owner), args, named)
            except ValueError as error:
                raise ValueError(f"{of.name}: {error}") from None

        hooks.append(each.module.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        for run in runs:
            called.clear()
            run()
    finally:
        for hook in hooks:
            hook.remove()
    for each in layers:
        if each.name not in inputs:
            raise ValueError(f"sample: expected a call of {each.name}, got none")
    return {name: torch.cat(each) for name, each in inputs.items()}


@torch.no_grad()
def calibrate(
    model: nn.Module,
    sample: Union[Callable[[], Any], str, Iterable[str]],
    *,
    tokenizer: Any = None,
    tokens: Optional[int] = None,
    sequences: int = 16,
    near: Union[int, Iterable[int]] = 64,
    sinks: Union[int, Iterable[int]] = 0,
    num_features: int = 0,
    budget: Optional[float] = None,
    target_error: float = 0.0,
    seed: int = 0,
    progress: Optional[bool] = None,
) -> ModelCalibration:
    """Feature maps for replace_attention of a model, calibrated for its own queries and keys:

    >>> features = calibrate(model, texts, tokenizer=tokenizer)
    >>> replace_attention(model, features)

    sample: typical texts, which are joined, and cut by the tokenizer into at most `sequences` sequences of `tokens`
    tokens with its special tokens, by default 512, or the most that the model takes; or a function that calls the model,
    with softmax, on some sequences of one length without padding, where each self-attention is calibrated for its first
    call. The model should be in eval mode.

    near, sinks, num_features, target_error, seed: as in nprf.calibrate; num_features is d + 8 unless it, or a
    target_error, is given. Several near or sinks, or a budget: each layer gets those of them, and so many of the
    num_features, that the sum of the squared errors of all layers, as estimated with the first half of the sample, is
    least. The promised errors are of the second half. budget: the most that layers may cost in the mean, in keys
    (ModelCalibration).

    Errors are measured with at most 4096 queries of each head, drawn by the seed. A layer of 12 heads takes about a
    second for 16 sequences of 512 tokens on one thread, for each pair of near and sinks. progress: whether a bar of tqdm
    (pip install 'nprf[progress]') counts the layers and says how long the others will take; None: if it is installed.

    ValueError for a model that replace_attention refuses, for one whose attention has been replaced, for a
    self-attention that the sample does not call, or with padding, for texts that are too short or without a tokenizer,
    and for a budget that is less than the cheapest choice costs.
    """
    start = time.perf_counter()
    choices = [(one, other) for one in _numbers(near, "near") for other in _numbers(sinks, "sinks")]
    chooses = budget is not None or len(choices) > 1
    if chooses and target_error != 0:
        raise ValueError(f"target_error: expected 0 with a budget, or several near or sinks, got {target_error}")
    found = self_attentions(model)
    for each in found:
        if isinstance(each.module, ServedAttention):
            raise ValueError(f"model: expected one whose attention has not been replaced, but {each.name} has been")
    runs = [sample] if callable(sample) else _runs_of_texts(model, sample, tokenizer, tokens, sequences)
    inputs = _inputs_of(found, runs)
    options: dict[str, Any] = {"seed": seed, "target_error": target_error}
    calibrations: list[dict[tuple[int, int], Calibration]] = []
    for each in _with_progress(found, progress):
        most = num_features or (0 if target_error != 0 else each.view.attention_sizes()[1] + 8)
        calibrations.append(_calibrations_of(each, inputs[each.name], choices, num_features=most, **options))
    chosen = [(choices[0], of_layer[choices[0]]) for of_layer in calibrations]
    if chooses:
        all_choices = [choices_of(each.view, of_layer) for each, of_layer in zip(found, calibrations)]
        for i, (each, best) in enumerate(zip(found, best_choices(all_choices, budget))):
            of = best.near, best.sinks
            if map_of_a_head(calibrations[i][of]).output_dim != best.num_features:
                options["num_features"] = best.num_features
                calibrations[i].update(_calibrations_of(each, inputs[each.name], [of], **options))
            chosen[i] = of, calibrations[i][of]
    made, near_of, sinks_of, costs = {}, {}, {}, {}
    for each, ((of_near, of_sinks), calibration) in zip(found, chosen):
        made[each.name], near_of[each.name], sinks_of[each.name] = calibration, of_near, of_sinks
        costs[each.name] = float(cost_of(each.view, map_of_a_head(calibration).output_dim, of_near, of_sinks))
    count, n, _ = next(iter(inputs.values())).shape
    return ModelCalibration(made, near_of, sinks_of, costs, count, n, time.perf_counter() - start)


def _numbers(values: Union[int, Iterable[int]], name: str) -> list[int]:
    """One or several, each once."""
    given = list(values) if isinstance(values, Iterable) else [values]
    if not given:
        raise ValueError(f"{name}: expected a number, or some, got none")
    return list(dict.fromkeys(index_of(each, name) for each in given))


_most_compared = 4096  # queries of each head


def _calibrations_of(
    layer: SelfAttention, hidden_states: Tensor, choices: list[tuple[int, int]], **options: Any
) -> dict[tuple[int, int], Calibration]:
    """For each near and sinks of the choices. hidden_states [sequences, n, channels]."""
    view = layer.view
    q, k, v = (each.transpose(1, 2).float().cpu().numpy() for each in view.scaled_projections(hidden_states))
    position = view.numpy_position()
    options.update(causal=view.attends_causally(), normalization=Normalization.none())
    options.update(max_queries=max(1, _most_compared // len(hidden_states)))
    try:
        return {of: _attention.calibrate(q, k, v, position, near=of[0], sinks=of[1], **options) for of in choices}
    except ValueError as error:
        raise ValueError(f"{layer.name}: {error}") from None
