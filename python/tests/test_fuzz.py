# SPDX-License-Identifier: MIT
"""Random calls. Of any arguments: each raises ValueError or TypeError, or returns an array that equals that of plain
copies of its inputs, and no input changes. Of arguments that fit: the functions over arrays, beside the formula
(dense.py), within the guaranteed bounds. draws.py says how many."""

import functools
import pickle

import nprf
import numpy as np
import pytest
from conftest import default_tolerance
from dense import Call, Part, worst_condition
from draws import fewer, in_layout, of_type, parameters_of_heads, random_rows, valid_calls, with_parameters
from hypothesis import given
from hypothesis import strategies as st

size = st.integers(0, 7)

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
    engines = ["automatic", "direct", "lanes", "banded", "recurrence", "smooth", "block_causal", "grid"]
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


def test_arrays_equal_the_formula():
    @given(valid_calls(), st.booleans(), st.sampled_from([0.0, 0.0, 1e-2, 1e-6]))
    def random_call(case, tokens_first, tolerance):
        attention, (q, k, v, dy) = of_type(case.attention, case.arrays[0].dtype), case.arrays
        case = case._replace(attention=attention)
        exact, arrays = case.exact(), [in_layout(x, tokens_first) for x in (q, k, v)]
        options = {
            **case.options(),
            "layout": "tokens_first" if tokens_first else "heads_first",
            "tolerance": tolerance,
        }
        y, report = attention(*arrays, report=True, **options)
        arguments = {name: getattr(attention, name) for name in attention._arguments}
        np.testing.assert_array_equal(nprf.attention(*arrays, check_finite=True, **arguments, **options), y)
        exact.check_rows(in_layout(y, tokens_first), report)
        y, saved, report = attention.forward(*arrays, report=True, **options)
        is_softmax = exact.check_rows(in_layout(y, tokens_first), report)
        dy = np.where((is_softmax == None)[..., None], 0, dy)  # noqa: E711
        found = attention.backward(saved, in_layout(dy, tokens_first))
        of_parameters = parameters_of_heads(attention.position, found.bias, found.extra, q.shape[1])
        gradients = [*(in_layout(x, tokens_first) for x in found[:3]), of_parameters]
        exact.check_gradients(dy, gradients, found.report, is_softmax)

    random_call()


def test_references_equal_the_formula():
    @given(valid_calls(), st.booleans())
    def random_call(case, tokens_first):
        attention, v = of_type(case.attention, case.arrays[0].dtype), case.arrays[2]
        case = case._replace(attention=attention)
        arrays = [in_layout(x, tokens_first) for x in case.arrays[:3]]
        options = {**case.options(), "layout": "tokens_first" if tokens_first else "heads_first"}
        exact, eps = case.exact(), np.finfo(v.dtype).eps
        found = nprf.reference.kernelized_attention(attention, *arrays, **options)
        y = in_layout(found, tokens_first)
        of_softmax = {name: getattr(attention, name) for name in ("position", "causal", "normalization")}
        softmax = in_layout(nprf.reference.softmax_attention(*arrays, **of_softmax, **options), tokens_first)
        for b, h, g, rows, keys in exact.parts():
            part = Part(exact, b, h, g, rows, keys)
            attends = part.attends.any(-1)
            assert not y[b, h, rows][~attends].any() and not softmax[b, h, rows][~attends].any()
            part.weigh(np.zeros(len(attends), bool))
            error = np.abs(y[b, h, rows] - part.y).max(-1, initial=0)
            # in long double, but for the features; those of both signs cancel by up to worst_condition
            terms = (10 + part.queries.steepness.max(initial=0) + part.keys.steepness.max(initial=0)) * 100
            allowed = eps * terms * part.v_max * (worst_condition if part.queries.is_signed else 1) + exact.eta
            assert ((error <= allowed) | ~part.is_checked | ~attends).all(), float((error / allowed).max())
            if part.queries.is_elu:  # whose rows have another scale
                continue
            part.weigh(np.ones(len(attends), bool))
            error = np.abs(softmax[b, h, rows] - part.y).max(-1, initial=0)
            scores = np.abs(part.queries.x @ part.keys.x.T) + np.where(part.attends, np.abs(part.biases.b), 0)
            allowed = eps * (len(part.keys.x) + (2 * v.shape[-1] + 6) * scores.max(-1, initial=0) + 2) * 4 * part.v_max
            assert ((error <= allowed + exact.eta) | ~attends).all(), float((error / (allowed + exact.eta)).max())

    random_call()


def test_calibrated_maps_equal_the_reference():
    share = Share()

    @given(st.data(), valid_calls())
    def random_call(data, case):
        attention, (q, k, v, _), draw = of_type(case.attention, case.arrays[0].dtype), case.arrays, data.draw
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        n, heads, dtype = draw(st.integers(8, 150)), q.shape[1], q.dtype
        sample = [random_rows(rng, 2, heads, n, x.shape[-1]).astype(dtype) for x in (q, k, v)]
        names = ("causal", "normalization", "near", "sinks", "position")
        of_map = {name: getattr(attention, name) for name in names}
        most = draw(st.integers(1, 40))
        share.calls += 1
        try:
            found = nprf.calibrate(*sample, num_features=most, seed=draw(st.integers(0, 9)), **of_map)
        except ValueError:
            return
        share.accepted += 1
        assert found.features.output_dim <= most and np.isfinite(found.softmax_error) and found.softmax_error >= 0
        assert len(found.head_errors) == heads and max(found.head_errors, default=0) < np.inf
        again = nprf.Calibration.load(found.save())
        assert again == found and pickle.loads(pickle.dumps(found)) == found
        calibrated = nprf.Attention(found.features, engine=draw(st.sampled_from(["automatic", "direct"])), **of_map)
        y, report = calibrated(q, k, v, report=True, **case.options())
        loops = nprf.reference.kernelized_attention(calibrated, q, k, v, **case.options())
        of_softmax = {name: of_map[name] for name in ("position", "causal", "normalization")}
        doubles = [x.astype(np.float64) for x in (q, k, v)]  # rows that are recomputed are those of softmax
        softmax = nprf.reference.softmax_attention(*doubles, **of_softmax, **case.options())
        error = np.minimum(np.abs(y - loops).max(-1, initial=0), np.abs(y - softmax).max(-1, initial=0))
        allowed = (report.error_bound + default_tolerance[dtype]) * np.abs(v).max(initial=0)
        assert (error <= allowed).all(), float(error.max() / allowed)

    random_call()
    share.at_least(0.5)


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
                order = data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=3))
                decoder.reorder(order)
                batch = len(order)
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


def test_jax_has_the_bits_of_numpy():
    jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
    pytest.importorskip("nprf._jax", reason="nprf was not compiled for JAX: -D NPRF_PYTHON_JAX=ON")
    import nprf.jax

    @fewer
    @given(valid_calls(curves=False))
    def random_call(case):
        dtype, position = case.arrays[0].dtype, case.attention.position
        attention = of_type(case.attention, dtype)
        if (
            isinstance(position, nprf.Grid)
            or attention.sinks > 0
            or case.cumulative is not None
            or 0 in case.arrays[0].shape
        ):
            return
        jax.config.update("jax_enable_x64", dtype == np.float64)
        q, k, v, dy = (x.astype(dtype) for x in case.arrays)
        kind = {nprf.RelativePosition: "table", nprf.Alibi: "alibi", type(None): None}.get(type(position), "t5")
        kind = ("t5", position.max_distance) if kind == "t5" else kind
        kind = "smooth_table" if kind == "table" and position.smooth else kind
        bias = None if position is None else np.array(position.parameters, dtype)
        options = {name: getattr(attention, name) for name in ("features", "causal", "near", "normalization", "engine")}

        def normal(x):  # XLA's threads flush other numbers to 0
            return np.where(np.abs(x) < np.finfo(dtype).tiny, 0, x)

        def function(*inputs):
            return nprf.jax.attention(
                *inputs, position=kind, bias_layout="heads_first", key_mask=case.kept, offset=case.offset, **options
            )

        call = {"offset": case.offset or 0, **({} if case.kept is None else {"key_mask": case.kept})}
        found, backward = jax.vjp(function, q, k, v, bias)
        np.testing.assert_array_equal(normal(found), normal(attention(q, k, v, **call)))
        y, saved = attention.forward(q, k, v, **call)  # it may recompute other rows
        *expected, by_head = attention.backward(saved, dy)[:4]
        if bias is not None and bias.ndim == position._dims:  # heads share it: the sum is in the order of the heads
            of_each = with_parameters(position, np.stack([bias] * q.shape[1]))
            of_heads = nprf.Attention(attention.features, of_each, *attention._values()[2:])
            by_head = functools.reduce(np.add, of_heads.backward(of_heads.forward(q, k, v, **call)[1], dy).bias)
        for one, other in zip(backward(dy), (*expected, by_head)):
            if one is not None:
                np.testing.assert_array_equal(normal(one), normal(other))

    try:
        random_call()
    finally:
        jax.config.update("jax_enable_x64", False)
