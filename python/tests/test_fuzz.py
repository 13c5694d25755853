# SPDX-License-Identifier: MIT
"""Random calls. Of any arguments: each raises ValueError or TypeError, or returns an array that equals that of plain
copies of its inputs, and no input changes. Of arguments that fit: all operators of Python, beside the formula (dense.py),
within the guaranteed bounds. NPRF_FUZZ is a number of calls of each test, then of another seed in each run."""

import copy
import functools
import os
import pickle
from typing import NamedTuple

import nprf
import numpy as np
import pytest
from dense import Call, Part

pytest.importorskip("hypothesis", reason="Hypothesis is not installed: pip install hypothesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

size = st.integers(0, 7)
settings.register_profile(
    "nprf",
    deadline=None,
    database=None,
    derandomize="NPRF_FUZZ" not in os.environ,
    max_examples=int(os.environ.get("NPRF_FUZZ", "150")),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("nprf")

NAN, INF = float("nan"), float("inf")


@st.composite
def array(draw, shape, dtype):
    """Numbers of some layout in memory."""
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    x = rng.standard_normal(shape).astype(dtype)
    special = draw(st.sampled_from([None, None, None, NAN, INF, -INF, 0.0, 1e300]))
    if special is not None and x.size and x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x.flat[rng.integers(x.size)] = special
    layout = draw(
        st.sampled_from(["C", "F", "reversed", "every second", "misaligned", "read-only", "broadcast", "swapped"])
    )
    if layout == "F":
        return np.asfortranarray(x)
    if layout == "reversed":
        return np.flip(np.flip(x).copy())
    if layout == "every second" and x.ndim:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "misaligned" and x.size and x.dtype != object:
        return np.frombuffer(b"-" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    if layout == "read-only":
        x.flags.writeable = False
    if layout == "broadcast" and x.ndim and x.shape[0]:
        return np.broadcast_to(x[:1], x.shape)
    if layout == "swapped" and x.ndim > 1:
        return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, 0, -2)), 0, -2)
    return x


@st.composite
def shapes_and_types(draw, b, h, group, n_q, n_k, d, d_v, tokens_first, wild):
    """Of queries, keys and values, of the same number of dimensions, 2 to 4; if wild, with an error now and then."""
    dims = draw(st.integers(2, 4))
    shapes = [[b, h * group, n_q, d], [b, h, n_k, d], [b, h, n_k, d_v]]
    if tokens_first:
        shapes = [[s[0], s[2], s[1], s[3]] for s in shapes]
        shapes = [s if dims == 4 else s[1:] if dims == 3 else [s[1], s[3]] for s in shapes]
    else:
        shapes = [s[4 - dims :] for s in shapes]
    dtypes = [draw(st.sampled_from(["float32", "float64"]))] * 3
    if wild and draw(st.booleans()):
        which = draw(st.integers(0, 2))
        if draw(st.booleans()):
            dtypes[which] = draw(
                st.sampled_from(["float16", "float32", "float64", "int64", "bool", "complex64", "O", ">f4"])
            )
        else:
            axis = draw(st.integers(0, dims - 1))
            shapes[which][axis] = draw(size)
            if draw(st.booleans()):
                del shapes[which][axis]
    return shapes, dtypes


@st.composite
def options_of_calls(draw, b, n_q, n_k, rng, wild):
    """lengths, masks and others, if not wild such as fit sequences of these sizes."""
    call = {"threads": draw(st.sampled_from([0, 1, 2]))}
    if draw(st.integers(0, 3)) == 0:
        call["offset"] = draw(st.sampled_from([-3, 2, 2**62, -(2**41)] if wild else [-3, 2]))
    if draw(st.booleans()):
        wrong = wild and draw(st.booleans())
        call["key_mask"] = rng.random(draw(size)) < 0.5 if wrong else rng.random((b, n_k)) < 0.6
    if draw(st.integers(0, 3)) == 0:
        entries = st.integers(-1, 8) if wild else st.integers(0, n_k)
        call["lengths"] = draw(st.lists(entries, min_size=b, max_size=b + wild))
    elif draw(st.integers(0, 3)) == 0 and (wild or n_q == n_k):
        inner = draw(st.lists(st.integers(-1, 8) if wild else st.integers(0, n_k), max_size=3))
        call["cumulative_lengths"] = inner if wild else [0, *sorted(inner), n_k]
    if wild and draw(st.booleans()):
        call["check_finite"], call["softmax_samples"] = draw(st.booleans()), draw(st.integers(-1, 3))
    return call


@st.composite
def cases(draw):
    """Half of them are wild: their parts need not fit each other."""
    wild = draw(st.booleans())
    least = 0 if wild else 1
    b, h, n_q, n_k, d_v = (draw(size) for _ in range(5))
    group, d, tokens_first = draw(st.integers(1, 3)), draw(st.integers(least, 7)), draw(st.booleans())
    kind = draw(st.sampled_from(["none", "table", "t5", "alibi", "grid"]))
    if not wild:
        n_k = 4 if kind == "grid" else n_q if draw(st.booleans()) else n_k
        n_q, b, h = 4 if kind == "grid" else n_q, max(b, draw(st.integers(0, 1))), max(h, 1)
    shapes, dtypes = draw(shapes_and_types(b, h, group, n_q, n_k, d, d_v, tokens_first, wild))
    arrays = [draw(array(tuple(s), t)) for s, t in zip(shapes, dtypes)]
    dims = len(shapes[0])
    b, h_q = (b if dims == 4 else 1), (h * group if dims > 2 else 1)
    real = draw(st.integers(1, 9)) if wild and draw(st.integers(0, 9)) == 0 else max(d, 1)
    features = draw(st.sampled_from([nprf.orf(real, 5), nprf.hyperbolic(real, 3), nprf.taylor(real), nprf.elu(real)]))
    heads = draw(st.sampled_from([(), (h_q,), (2,)] if wild else [(), (h_q,)]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    position = {
        "none": lambda: None,
        "table": lambda: nprf.RelativePosition(rng.standard_normal((*heads, 5))),
        "t5": lambda: nprf.T5(rng.standard_normal((*heads, 8)), 20),
        "alibi": lambda: nprf.Alibi(rng.standard_normal(heads)),
        "grid": lambda: nprf.Grid(2, 2, rng.standard_normal((*heads, 3, 3))),
    }[kind]
    engines = ["automatic", "direct", "lanes", "banded", "recurrence", "block_causal", "grid"]
    options = {
        "causal": draw(st.booleans()) and (wild or kind != "grid"),
        "near": draw(st.sampled_from([0, 0, 1, 3, 100])) * (wild or not isinstance(features, nprf.EluFeatures)),
        "normalization": draw(st.sampled_from([nprf.Normalization.unit(1.5), nprf.Normalization.none()])),
        "engine": draw(st.sampled_from(engines)) if wild else draw(st.sampled_from(engines[:2])),
    }
    call = draw(options_of_calls(b, n_q, n_k, rng, wild))
    if not wild and kind == "grid":
        call = {name: call[name] for name in call if name in ("threads", "key_mask")}
    call["layout"] = "tokens_first" if tokens_first else "heads_first"
    return arrays, features, position, options, call


class Share:
    """How many of the calls of a run were accepted."""

    calls = accepted = 0

    def at_least(self, share):
        assert self.accepted >= share * self.calls > 0, f"{self.accepted} of {self.calls}"


def test_random_calls():
    share = Share()

    @given(cases())
    def random_call(case):
        share.calls += 1
        share.accepted += call_is_accepted(*case)

    random_call()
    share.at_least(0.4)


def call_is_accepted(arrays, features, position, options, call):
    before = [x.copy() for x in arrays]
    try:
        attention = nprf.Attention(features, position(), **options)
        y, saved = attention.forward(*arrays, **call)
        gradients = attention.backward(saved, y)
    except (ValueError, TypeError):
        return False
    finally:
        for x, copied in zip(arrays, before):
            np.testing.assert_array_equal(x, copied)
    assert y.shape == arrays[0].shape[:-1] + arrays[2].shape[-1:] and y.dtype == arrays[0].dtype
    again, saved = attention.forward(*before, **call)
    np.testing.assert_array_equal(y, again)
    for one, other in zip(gradients[:4], attention.backward(saved, again)[:4]):
        if one is not None:
            np.testing.assert_array_equal(one, other)
    return True


def test_random_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    share = Share()
    wrong = st.sampled_from([(), (5,), (8,), (3, 3), (2, 5), (3, 8), (2, 3, 3), (0,), (1, 5)])

    @given(cases(), st.booleans(), st.none() | wrong, st.sampled_from([torch.float32, torch.float64]))
    def random_call(case, requires_grad, shape, dtype):
        share.calls += 1
        share.accepted += call_of_tensors_is_accepted(*case, requires_grad, shape, dtype)

    random_call()
    share.at_least(0.3)


kinds = {nprf.RelativePosition: "table", nprf.T5: ("t5", 20), nprf.Alibi: "alibi", nprf.Grid: ("grid", 2, 2)}


def call_of_tensors_is_accepted(arrays, features, position, options, call, requires_grad, shape, dtype):
    """With the parameters of the position, or others of this shape."""
    import nprf.torch
    import torch

    padding = torch.from_numpy(~call["key_mask"]) if "key_mask" in call else None
    try:
        made, bias = position(), None
        if made is not None:
            bias = torch.from_numpy(np.array(made.parameters)) if shape is None else torch.randn(shape)
            bias = bias.to(dtype)
        tensors = [torch.from_numpy(np.array(x)) for x in arrays]
        tensors = [x.requires_grad_(requires_grad and x.is_floating_point()) for x in tensors]
        y = nprf.torch.attention(
            *tensors, bias, features=features, position=kinds.get(type(made)), layout=call["layout"],
            key_padding_mask=padding, lengths=None if padding is not None else call.get("lengths"),
            offset=call.get("offset", 0), **options,
        )  # fmt: skip
    except (ValueError, TypeError):
        return False
    assert y.shape == tensors[0].shape[:-1] + tensors[2].shape[-1:] and y.dtype == tensors[0].dtype
    if requires_grad:
        y.sum().backward()
        assert all(x.grad.shape == x.shape for x in tensors)
    return True


class Valid(NamedTuple):
    """A call whose arguments fit each other, with arrays [batch, heads, tokens, channels]."""

    attention: nprf.Attention
    arrays: list  # q, k, v and dy
    kept: object  # bool [batch, n_k], or None
    lengths: object
    cumulative: object
    key_cumulative: object
    offset: object

    def options(self):
        found = {
            "key_mask": self.kept if self.lengths is None else None,
            "lengths": self.lengths,
            "offset": self.offset,
        }
        if self.cumulative is not None:
            found.update(cumulative_lengths=self.cumulative, key_cumulative_lengths=self.key_cumulative)
        return {name: x for name, x in found.items() if x is not None}

    def exact(self):
        of_keys = self.cumulative if self.key_cumulative is None else self.key_cumulative
        sequences = None
        if self.cumulative is not None:
            ends = [list(zip(x, x[1:])) for x in (self.cumulative, of_keys)]
            sequences = list(zip(*ends))
        return Call(self.attention, *self.arrays[:3], self.kept, sequences, self.offset or 0)


def random_rows(rng, *shape):
    """Of all sizes, with zeros."""
    x = rng.standard_normal(shape) * rng.choice([0.1, 1, 1, 3], (*shape[:-1], 1))
    return x * (rng.random((*shape[:-1], 1)) < 0.97)


def random_position(draw, rng, kind, heads):
    """With biases of any size, of which some may be -infinity."""
    heads = draw(st.sampled_from([(), (heads,)]))
    scale, gaps = draw(st.sampled_from([0.0, 1.0, 1.0, 30.0, 1e4])), draw(st.sampled_from([0.0, 0.0, 0.2]))

    def parameters(*shape):
        x = scale * rng.standard_normal((*heads, *shape))
        return np.where(rng.random(x.shape) < gaps, -np.inf, x)

    if kind == "table":
        return nprf.RelativePosition(parameters(2 * draw(st.integers(0, 40)) + 1), layout="heads_first")
    if kind == "t5":
        return nprf.T5(parameters(8), draw(st.sampled_from([9, 20])), layout="heads_first")
    if kind == "alibi":
        return nprf.Alibi(scale * rng.standard_normal(heads) / 10)
    if kind == "grid":
        height, width, extra = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 2))
        of_extra = parameters(extra, extra + 2) if extra > 0 else None
        return nprf.Grid(height, width, parameters(2 * height - 1, 2 * width - 1), of_extra)
    return None


def random_map(draw, d, heads):
    kind = draw(st.sampled_from(["orf", "prf", "hyperbolic", "trf", "taylor", "elu", "heads"]))
    seed = draw(st.integers(0, 2**64 - 1))
    if kind == "heads":
        return nprf.HeadFeatures(nprf.orf(d, 5, (seed + h) % 2**64) for h in range(heads))
    if kind == "taylor":
        return nprf.taylor(d, draw(st.integers(0, d)))
    return nprf.elu(d) if kind == "elu" else getattr(nprf, kind)(d, draw(st.integers(1, 9)), seed)


@st.composite
def valid_calls(draw, of_decoder=False):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    few, tokens = st.integers(1, 3), st.integers(0, 9) | st.integers(10, 70)
    b, h, group, d, d_v = (
        draw(st.integers(0, 2)),
        draw(few),
        draw(few),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 6)),
    )
    kind = draw(st.sampled_from(["none", "table", "t5", "alibi"] + ["grid"] * (not of_decoder)))
    position, features = random_position(draw, rng, kind, h * group), random_map(draw, d, h * group)
    causal = of_decoder or draw(st.booleans())
    n_q = n_k = draw(tokens)
    lengths = kept = cumulative = key_cumulative = offset = None
    if kind == "grid":
        n_q = n_k = position.height * position.width + (0 if position.extra is None else position.extra.shape[-2])
    elif not of_decoder:
        if draw(st.booleans()):
            n_k = draw(tokens)
        if draw(st.integers(0, 3)) == 0:
            b = 1
            cumulative = [0, *sorted(rng.integers(0, n_q + 1, 2).tolist()), n_q]
            if n_k != n_q or draw(st.booleans()):
                key_cumulative = [0, *sorted(rng.integers(0, n_k + 1, 2).tolist()), n_k]
        if n_q != n_k or key_cumulative is not None or draw(st.booleans()):
            offset = draw(st.sampled_from([0, n_k - n_q, 3, -2]))
    if draw(st.booleans()) and not of_decoder:
        kept = rng.random((b, n_k)) < draw(st.sampled_from([0.9, 0.3, 0.0]))
        if draw(st.booleans()) and cumulative is None:
            lengths = rng.integers(0, n_k + 1, b).tolist()
            kept = np.arange(n_k) < np.array(lengths, int)[:, None]
    normalization = draw(
        st.sampled_from([nprf.Normalization.unit(), nprf.Normalization.unit(1.5), nprf.Normalization.none()])
    )
    has_exact = not isinstance(features, nprf.EluFeatures)
    near, sinks = draw(st.sampled_from([0, 0, 1, 5, 100])) * has_exact, draw(st.sampled_from([0, 0, 1, 3])) * has_exact
    engines = ["automatic", "automatic", "direct"] + ["lanes"] * (kind != "grid") + ["grid"] * (kind == "grid")
    engine = (
        "automatic" if of_decoder else draw(st.sampled_from(engines + ["block_causal"] * (causal and kind != "grid")))
    )
    attention = nprf.Attention(features, position, causal, normalization, near, engine, sinks)
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    size = 10.0 ** draw(st.sampled_from([0, 0, 15, -15]))
    shapes = (b, h * group, n_q, d), (b, h, n_k, d), (b, h, n_k, d_v), (b, h * group, n_q, d_v)
    arrays = [(random_rows(rng, *s) * x).astype(dtype) for s, x in zip(shapes, (1, 1, size, 1))]
    return Valid(attention, arrays, kept, lengths, cumulative, key_cumulative, offset)


def of_type(attention, dtype):
    """The same attention with the parameters of its position rounded to the type in which the call is computed."""
    position = attention.position
    if position is None:
        return attention
    arguments = [x.astype(dtype) if isinstance(x, np.ndarray) else x for x in position._values()]
    others = (attention.causal, attention.normalization, attention.near, attention.engine, attention.sinks)
    return nprf.Attention(attention.features, type(position)(*arguments), *others)


def with_parameters(position, parameters):
    """A position of the same kind with parameters [heads, ...]."""
    if isinstance(position, nprf.Alibi):
        return nprf.Alibi(parameters)
    sizes = (position.max_distance,) if isinstance(position, nprf.T5) else ()
    return type(position)(parameters, *sizes, layout="heads_first")


def parameters_of_heads(position, bias, extra, heads):
    """The gradients of all parameters [heads, p] from those in their own shape; None if heads share them."""
    if position is None or position.parameters.ndim == position._dims or len(position.parameters) == 1 < heads:
        return None
    rows = [x.reshape(heads, -1) for x in (bias, extra) if x is not None]
    return np.concatenate(rows, 1) if len({len(x) for x in rows}) == 1 else None


def in_layout(x, tokens_first):
    return np.ascontiguousarray(np.swapaxes(x, 1, 2)) if tokens_first else x


def test_arrays_equal_the_formula():
    @given(valid_calls(), st.booleans())
    def random_call(case, tokens_first):
        attention, (q, k, v, dy) = of_type(case.attention, case.arrays[0].dtype), case.arrays
        case = case._replace(attention=attention)
        exact, arrays = case.exact(), [in_layout(x, tokens_first) for x in (q, k, v)]
        options = {**case.options(), "layout": "tokens_first" if tokens_first else "heads_first"}
        y, report = attention(*arrays, report=True, **options)
        exact.check_rows(in_layout(y, tokens_first), report)
        y, saved, report = attention.forward(*arrays, report=True, **options)
        is_softmax = exact.check_rows(in_layout(y, tokens_first), report)
        dy = np.where((is_softmax == None)[..., None], 0, dy)  # noqa: E711
        found = attention.backward(saved, in_layout(dy, tokens_first))
        of_parameters = parameters_of_heads(attention.position, found.bias, found.extra, q.shape[1])
        gradients = [*(in_layout(x, tokens_first) for x in found[:3]), of_parameters]
        exact.check_gradients(dy, gradients, found.report, is_softmax)

    random_call()


def torch_arguments(draw, torch, case):
    """The options of a call of nprf.torch.attention in one of the ways to say the same, and q, k, v, the bias, as leaf
    tensors, and that of extra tokens."""
    attention, position = case.attention, case.attention.position
    tokens_first, dtype = draw(st.booleans()), draw(st.sampled_from(["as it is", "as it is", "float16", "bfloat16"]))
    tensors = [torch.from_numpy(in_layout(x, tokens_first)) for x in case.arrays[:3]]
    if dtype == "float16" and any(x.numel() > 0 and x.abs().max() > torch.finfo(torch.float16).max for x in tensors):
        dtype = "bfloat16"
    if dtype != "as it is":
        tensors = [x.to(getattr(torch, dtype)) for x in tensors]
    if draw(st.booleans()):
        tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    of_parameters = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    bias = extra = kind = layout = None
    if position is not None:
        bias = torch.from_numpy(np.array(position.parameters)).to(of_parameters)
        kind = {nprf.RelativePosition: "table", nprf.Alibi: "alibi"}.get(type(position))
        if isinstance(position, nprf.T5):
            kind = ("t5", position.max_distance)
        elif isinstance(position, nprf.Grid):
            kind = ("grid", position.height, position.width)
            extra = None if position.extra is None else torch.from_numpy(np.array(position.extra)).to(of_parameters)
        if bias.dim() > position._dims:
            layout = draw(st.sampled_from(["heads_first", "heads_last"]))
            bias = bias.movedim(0, -1).contiguous() if layout == "heads_last" and position._dims > 0 else bias
    leaves = [None if x is None else x.requires_grad_() for x in (*tensors, bias, extra)]
    options = {
        "features": attention.features, "position": kind, "causal": attention.causal, "near": attention.near,
        "normalization": attention.normalization, "engine": attention.engine, "sinks": attention.sinks,
        "layout": "tokens_first" if tokens_first else "heads_first", "bias_layout": layout, "extra": leaves[4],
    }  # fmt: skip
    as_tensor = draw(st.booleans())
    say = (lambda x: torch.tensor(x)) if as_tensor else (lambda x: x)
    if case.lengths is not None and draw(st.booleans()):
        options["lengths"] = torch.tensor(case.lengths, dtype=torch.int32) if as_tensor else case.lengths
    elif case.kept is not None:
        padding = torch.from_numpy(~case.kept)
        as_numbers = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        options["key_padding_mask"] = as_numbers if draw(st.booleans()) else padding
    for name, x in (("cumulative_lengths", case.cumulative), ("key_cumulative_lengths", case.key_cumulative)):
        options[name] = None if x is None else say(x)
    options["offset"] = None if case.offset is None else say(case.offset)
    if draw(st.booleans()) and isinstance(kind, tuple) and kind[0] == "t5" and layout == "heads_last":
        given, options["bias_layout"] = torch.nn.Embedding.from_pretrained(leaves[3], freeze=False), None
        leaves[3] = given.weight
    else:
        given = leaves[3]
    return options, leaves, given


def test_tensors_equal_the_formula(monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    import nprf.torch
    from nprf.torch import _functional

    @given(st.data(), valid_calls())
    def random_call(data, case):
        options, leaves, bias = torch_arguments(data.draw, torch, case)
        q = leaves[0]
        tokens_first = options["layout"] == "tokens_first"
        dtype = np.float64 if q.dtype == torch.float64 else np.float32
        rows = lambda x: in_layout(x.detach().to(getattr(torch, np.dtype(dtype).name)).numpy(), tokens_first)
        arrays = [rows(x) for x in leaves[:3]]
        dy = torch.from_numpy(case.arrays[3]).to(q.dtype)
        case = case._replace(attention=of_type(case.attention, dtype), arrays=[*arrays, None])
        exact, reports = case.exact(), []

        def call(**more):
            return nprf.torch.attention(*leaves[:3], bias, **options, **more)

        y, report = call(report=True, gradient_report=reports.append)
        if q.dtype in (torch.float16, torch.bfloat16):  # computed in float32, and rounded once
            y32, report = nprf.torch.attention(*(x.float() for x in leaves[:3]), bias, **options, report=True)
            assert torch.equal(y, y32.to(q.dtype))
            is_softmax = exact.check_rows(rows(y32), report)
        else:
            is_softmax = exact.check_rows(rows(y), report)
        unknown = torch.from_numpy(np.array(is_softmax == None))  # noqa: E711
        dy = dy.masked_fill(unknown[..., None], 0)
        of_y = dy.transpose(1, 2) if tokens_first else dy
        wanted = [x for x in leaves if x is not None]
        gradients = torch.autograd.grad(y, wanted, of_y)
        if q.dtype not in (torch.float16, torch.bfloat16):
            found, position = [rows(x) for x in gradients[:3]], case.attention.position
            of_position = [np.array(x) for x in gradients[3:]] + [None, None]
            if options["bias_layout"] == "heads_last" or isinstance(bias, torch.nn.Embedding):
                of_position[0] = np.moveaxis(of_position[0], -1, 0) if position._dims > 0 else of_position[0]
            found.append(parameters_of_heads(position, *of_position[:2], q.shape[2 if tokens_first else 1]))
            exact.check_gradients(rows(of_y), found, reports[0], is_softmax)
        how = data.draw(st.sampled_from(["operator", "without what forward saved", "without gradients"]))
        if how == "without gradients":  # it may recompute other rows
            with torch.no_grad():
                other, report = call(report=True)
            if other.dtype not in (torch.float16, torch.bfloat16):
                exact.check_rows(rows(other), report)
            return
        with monkeypatch.context() as patched:
            if how == "operator":
                patched.setattr(_functional, "is_plain", lambda *x: False)
            keep = (lambda x: x.clone()) if how == "without what forward saved" else (lambda x: x)
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
                again = call()
            assert torch.equal(again, y)
            assert all(map(torch.equal, torch.autograd.grad(again, wanted, of_y), gradients))

    random_call()


class Histories:
    """The tokens of each sequence of a decoder, for the formula."""

    def __init__(self, attention, batch):
        self.attention, self.tokens, self.most = attention, [None] * batch, [0] * batch

    def append(self, b, arrays):
        old = self.tokens[b]
        self.tokens[b] = arrays if old is None else [np.concatenate([x, y], 1) for x, y in zip(old, arrays)]
        self.most[b] = max(self.most[b], self.count(b))

    def count(self, b):
        return 0 if self.tokens[b] is None else self.tokens[b][0].shape[1]

    def cut(self, b, n):
        self.tokens[b] = [x[:, : self.count(b) - n] for x in self.tokens[b]] if n > 0 else self.tokens[b]

    def check(self, b, y, report):
        """The last rows of sequence b."""
        call = Call(self.attention, *(x[None] for x in self.tokens[b]))
        n, known = y.shape[1], self.count(b)
        for _, h, g, rows, keys in call.parts():
            part = Part(call, 0, h, g, rows, keys)
            bound = np.longdouble(report.error_bound) * part.v_max[:, None] + call.eta
            ok = False
            for is_softmax in (False, True) if part.may_be_softmax else (False,):
                part.weigh(np.full(known, is_softmax))
                error = np.abs(y[h].astype(np.longdouble) - part.y[known - n :])
                ok = ok | (error <= bound[known - n :]).all(-1) | ~part.is_checked[known - n :]
            assert ok.all(), (b, h, known, n)


def test_decoders_equal_the_formula():
    @given(st.data(), valid_calls(of_decoder=True))
    def random_calls(data, case):
        attention, (q, k, v, _) = of_type(case.attention, case.arrays[0].dtype), case.arrays
        rollback, batch = data.draw(st.integers(0, 3)), max(q.shape[0], 1)
        options = {"near": attention.near, "sinks": attention.sinks, "normalization": attention.normalization}
        decoder = nprf.Decoder(
            attention.features,
            attention.position,
            heads=q.shape[1],
            batch=batch,
            rollback=rollback,
            dtype=q.dtype,
            **options,
        )
        rng, known = np.random.default_rng(data.draw(st.integers(0, 9))), Histories(attention, batch)
        actions = ["prefill", "step", "step", "step", "rollback", "reorder", "fork", "reset", "pickle"]
        for action in data.draw(st.lists(st.sampled_from(actions), min_size=1, max_size=8)):
            b = data.draw(st.integers(0, batch - 1))
            if action in ("prefill", "step"):
                n = data.draw(st.integers(0, 40 if action == "prefill" else 3))
                size = float(np.abs(v).max(initial=1e-30)) or 1.0
                shapes = (q.shape[1], q.shape[3], 1), (k.shape[1], k.shape[3], 1), (k.shape[1], v.shape[3], size)
                arrays = [(random_rows(rng, batch, h, n, d) * s).astype(q.dtype) for h, d, s in shapes]
                lengths = data.draw(st.none() | st.lists(st.integers(0, n), min_size=batch, max_size=batch))
                y, report = getattr(decoder, action)(*arrays, lengths=lengths, report=True)
                for each in range(batch):
                    m = n if lengths is None else lengths[each]
                    known.append(each, [x[each, :, :m] for x in arrays])
                    assert not y[each, :, m:].any()
                    if report.failing_rows == 0 and m > 0:
                        known.check(each, y[each, :, :m], report)
            elif action == "rollback":
                most = min(known.count(b), rollback - (known.most[b] - known.count(b)))
                if most >= 0:
                    n = data.draw(st.integers(0, most))
                    decoder.rollback(b, n)
                    known.cut(b, n)
            elif action == "reorder":
                order = [data.draw(st.integers(0, batch - 1)) for _ in range(batch)]
                decoder.reorder(order)
                known.tokens, known.most = ([of[i] for i in order] for of in (known.tokens, known.most))
            elif action == "fork":
                to = data.draw(st.integers(0, batch - 1))
                decoder.fork(b, to)
                known.tokens[to], known.most[to] = known.tokens[b], known.most[b]
            elif action == "reset":
                decoder.reset(b)
                known.tokens[b], known.most[b] = None, 0
            else:
                decoder = pickle.loads(pickle.dumps(decoder))
            assert decoder.tokens == [known.count(each) for each in range(batch)]

    random_calls()


def test_layers_through_changes_of_their_tensors():
    """A layer is the attention by the map and the parameters that were written last."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    import nprf.torch

    @given(st.data(), valid_calls())
    def random_changes(data, case):
        heads, d = case.arrays[0].shape[1], case.arrays[0].shape[3]
        kind = data.draw(st.sampled_from([None, "table", "t5", "alibi"]))
        features, causal = case.attention.features, case.attention.causal
        options = {"position": kind, "near": case.attention.near, "sinks": case.attention.sinks, "causal": causal}
        seeds = iter(range(1, 100))

        def layer_with(features):
            layer = nprf.torch.Attention(heads * d, heads, features=features, dtype=torch.float64, **options)
            for each in layer.parameters():
                torch.nn.init.normal_(each, std=0.5)
            return layer

        def other_map():
            try:
                return features.redraw(next(seeds))
            except ValueError:  # it has no random vectors
                return features

        layer, expected = layer_with(features), features
        x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 9, heads * d)))
        ways = ["redraw", "load", "assign", "copy", "data", "deepcopy", "pickle", "call with tensors", "reset"]
        for way in data.draw(st.lists(st.sampled_from(ways), min_size=1, max_size=5)):
            tensors = None
            if way == "redraw" and other_map() != features:
                seed = next(seeds)
                layer.redraw(seed)
                expected = features.redraw(seed)
            elif way in ("load", "assign", "copy", "data", "call with tensors"):
                expected = other_map()
                other = layer_with(expected)
                if way == "call with tensors":
                    tensors = {**dict(other.named_parameters()), **dict(other.named_buffers())}
                elif way in ("load", "assign"):
                    layer.load_state_dict(other.state_dict(), assign=way == "assign")
                else:
                    for name, each in layer.state_dict().items():
                        (each.data if way == "data" else each).copy_(other.state_dict()[name])
            elif way == "deepcopy":
                layer = copy.deepcopy(layer)
            elif way == "pickle":
                layer = pickle.loads(pickle.dumps(layer))
            elif way == "reset":
                layer.reset_parameters()
                expected = features
            of_call = layer if tensors is None else other
            q, k, v = (each.transpose(1, 2) for each in of_call._project(x, x, x))
            bias = of_call.position_slopes if kind == "alibi" else of_call.position_bias
            y = nprf.torch.attention(
                q,
                k,
                v,
                bias,
                features=expected,
                normalization=layer.normalization,
                bias_layout="heads_first",
                **options,
            )
            y = of_call.out_proj(y.transpose(1, 2).flatten(2))
            found = layer(x) if tensors is None else torch.func.functional_call(layer, tensors, (x,))
            assert torch.equal(found[0], y), way
            if tensors is not None:
                expected = layer.features
            assert layer.features == expected

    random_changes()


def test_jax_has_the_bits_of_numpy():
    jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
    pytest.importorskip("nprf._jax", reason="nprf was not compiled for JAX: -D NPRF_PYTHON_JAX=ON")
    import nprf.jax

    @given(valid_calls())
    def random_call(case):
        attention, position = of_type(case.attention, np.float32), case.attention.position
        if (
            isinstance(position, nprf.Grid)
            or attention.sinks > 0
            or case.cumulative is not None
            or 0 in case.arrays[0].shape
        ):
            return
        q, k, v, dy = (x.astype(np.float32) for x in case.arrays)
        kind = {nprf.RelativePosition: "table", nprf.Alibi: "alibi", type(None): None}.get(type(position), "t5")
        kind = ("t5", position.max_distance) if kind == "t5" else kind
        bias = None if position is None else np.array(position.parameters, np.float32)
        options = {name: getattr(attention, name) for name in ("features", "causal", "near", "normalization", "engine")}

        def function(*inputs):
            return nprf.jax.attention(
                *inputs, position=kind, bias_layout="heads_first", key_mask=case.kept, offset=case.offset, **options
            )

        call = {"offset": case.offset or 0, **({} if case.kept is None else {"key_mask": case.kept})}
        found, backward = jax.vjp(function, q, k, v, bias)
        np.testing.assert_array_equal(found, attention(q, k, v, **call))
        y, saved = attention.forward(q, k, v, **call)  # it may recompute other rows
        *expected, by_head = attention.backward(saved, dy)[:4]
        if bias is not None and bias.ndim == position._dims:  # heads share it: the sum is in the order of the heads
            of_each = with_parameters(position, np.stack([bias] * q.shape[1]))
            of_heads = nprf.Attention(attention.features, of_each, *attention._values()[2:])
            by_head = functools.reduce(np.add, of_heads.backward(of_heads.forward(q, k, v, **call)[1], dy).bias)
        for one, other in zip(backward(dy), (*expected, by_head)):
            if one is not None:
                np.testing.assert_array_equal(one, other)

    random_call()
