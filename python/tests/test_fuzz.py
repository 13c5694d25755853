# SPDX-License-Identifier: MIT
"""Random calls: each raises ValueError or TypeError, or returns an array that equals that of plain copies of its
inputs. No input changes. NPRF_FUZZ is a number of calls, then of another seed in each run."""

import os

import nprf
import numpy as np
import pytest

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
            *tensors, bias, features=features, position=kinds.get(type(made), "table"), layout=call["layout"],
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
