# SPDX-License-Identifier: MIT
"""Random calls: each raises ValueError or TypeError, or returns an array that equals that of plain copies of its inputs.
No input changes. NPRF_FUZZ is a number of calls, then of another seed in each run."""

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
def cases(draw):
    b, h, group, n_q, n_k, d, d_v = (draw(each) for each in (size, size, st.integers(1, 3), size, size, size, size))
    dims = draw(st.integers(2, 4))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    shapes = [[b, h * group, n_q, d], [b, h, n_k, d], [b, h, n_k, d_v]]
    tokens_first = draw(st.booleans())
    if tokens_first:
        shapes = [[s[0], s[2], s[1], s[3]] for s in shapes]
        shapes = [s if dims == 4 else s[1:] if dims == 3 else [s[1], s[3]] for s in shapes]
    else:
        shapes = [s[4 - dims :] for s in shapes]
    dtypes = [dtype] * 3
    if draw(st.integers(0, 3)) == 0:  # something wrong
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
    arrays = [draw(array(tuple(s), t)) for s, t in zip(shapes, dtypes)]
    real = max(d, 1) if draw(st.integers(0, 9)) else draw(st.integers(1, 9))
    features = draw(st.sampled_from([nprf.orf(real, 5), nprf.hyperbolic(real, 3), nprf.taylor(real), nprf.elu(real)]))
    heads = draw(st.sampled_from([(), (h * group,), (2,)]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    position = draw(
        st.sampled_from(
            [
                lambda: None,
                lambda: nprf.RelativePosition(rng.standard_normal((*heads, 5))),
                lambda: nprf.T5(rng.standard_normal((*heads, 8)), 20),
                lambda: nprf.Alibi(rng.standard_normal(heads)),
                lambda: nprf.Grid(2, 2, rng.standard_normal((*heads, 3, 3))),
            ]
        )
    )
    options = {
        "causal": draw(st.booleans()),
        "near": draw(st.sampled_from([0, 0, 1, 3, 100])),
        "normalization": draw(st.sampled_from([nprf.Normalization.unit(1.5), nprf.Normalization.none()])),
        "engine": draw(
            st.sampled_from(["automatic", "direct", "lanes", "banded", "recurrence", "block_causal", "grid"])
        ),
    }
    call = {"layout": "tokens_first" if tokens_first else "heads_first"}
    if draw(st.booleans()):
        call["offset"] = draw(st.sampled_from([-3, 2, 2**62, -(2**41)]))
    if draw(st.booleans()):
        call["key_mask"] = rng.random((b, n_k)) < 0.6 if draw(st.integers(0, 4)) else rng.random(draw(size)) < 0.5
    if draw(st.integers(0, 3)) == 0:
        call["lengths"] = draw(st.lists(st.integers(-1, 8), min_size=b, max_size=b + draw(st.integers(0, 1))))
    if draw(st.integers(0, 3)) == 0:
        call["cumulative_lengths"] = draw(st.lists(st.integers(-1, 8), max_size=4))
    if draw(st.integers(0, 3)) == 0:
        call["check_finite"], call["softmax_samples"] = draw(st.booleans()), draw(st.integers(-1, 3))
    call["threads"] = draw(st.sampled_from([0, 1, 2]))
    return arrays, features, position, options, call


@given(cases())
def test_random_calls(case):
    arrays, features, position, options, call = case
    before = [x.copy() for x in arrays]
    try:
        attention = nprf.Attention(features, position(), **options)
        y, saved = attention.forward(*arrays, **call)
        gradients = attention.backward(saved, y)
    except (ValueError, TypeError):
        return
    finally:
        for x, copied in zip(arrays, before):
            np.testing.assert_array_equal(x, copied)
    assert y.shape == arrays[0].shape[:-1] + arrays[2].shape[-1:] and y.dtype == arrays[0].dtype
    again, saved = attention.forward(*before, **call)
    np.testing.assert_array_equal(y, again)
    for one, other in zip(gradients[:4], attention.backward(saved, again)[:4]):
        if one is not None:
            np.testing.assert_array_equal(one, other)


@given(st.data())
def test_random_tensors(data):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    import nprf.torch

    arrays, features, _, options, call = data.draw(cases())
    kind = data.draw(st.sampled_from(["table", "t5", "alibi", ("grid", 2, 2)]))
    shape = data.draw(st.sampled_from([(), (5,), (8,), (3, 3), (2, 5), (3, 8), (2, 3, 3), (0,), (1, 5)]))
    bias = data.draw(st.sampled_from([None, torch.randn(shape), torch.randn(shape, dtype=torch.float64)]))
    for flag in (True, False):
        try:
            tensors = [torch.from_numpy(np.array(x)) for x in arrays]
            tensors = [x.requires_grad_(flag and x.is_floating_point()) for x in tensors]
            y = nprf.torch.attention(
                *tensors, bias, features=features, position=kind, layout=call["layout"],
                key_padding_mask=torch.from_numpy(~call["key_mask"]) if "key_mask" in call else None, **options,
            )  # fmt: skip
        except (ValueError, TypeError):
            continue
        assert y.shape == tensors[0].shape[:-1] + tensors[2].shape[-1:] and y.dtype == tensors[0].dtype
        if flag:
            y.sum().backward()
            assert all(x.grad.shape == x.shape for x in tensors)
