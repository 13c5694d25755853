# SPDX-License-Identifier: MIT
"""Tensors on a GPU, beside those on the CPU. Where the module for GPUs was compiled over the stand-in for the CUDA
runtime (NPRF_PYTHON_CUDA_ON_HOST), its kernels run on the host, for tensors in its memory."""

import nprf
import numpy as np
import pytest
from conftest import assert_as_exact, gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from nprf.torch import _functional, _gpu, _maps  # noqa: E402
from nprf.torch._options import Arguments, Options  # noqa: E402

B, H, N, D, V = 2, 4, 21, 8, 5


def case(
    position, causal=False, features=None, near=0, kv_heads=H, tokens_first=False, offset=0, sinks=0, lengths=None
):
    """The map, (q, k, v), (bias, extra), Options, and the key_mask: of the lengths, or random; float32."""
    torch.manual_seed(3)
    n = 12 if position.startswith("grid") else N
    shapes = [(B, H, n, D), (B, kv_heads, n, D), (B, kv_heads, n, V)]
    arrays = [torch.randn(s).transpose(1, 2) if tokens_first else torch.randn(s) for s in shapes]
    kind = position.split(":")[0].removeprefix("smooth_")
    shape = {"table": (H, 11), "t5": (32,), "alibi": (H,), "grid": (H, 5, 7), "none": None}[kind]
    bias = None if shape is None else torch.rand(shape)
    extra = torch.rand(2, 4) if position == "grid:3:4" else None
    if extra is not None:
        arrays = [torch.cat([x, x[..., :2, :]], -2) for x in arrays]
    features = features or nprf.orf(D, 16, seed=1)
    name = "table" if position == "none" else position
    options = Options(name, causal, near, 1.0, "automatic", tokens_first, sinks=sinks, offset=offset)
    mask = None if position.startswith("grid") else torch.rand(B, N) < 0.8
    return features, arrays, (bias, extra), options, mask if lengths is None else torch.tensor(lengths)


cases = {
    **{
        f"{p}, causal {c}": {"position": p, "causal": c}
        for p in ("none", "table", "t5:128", "alibi")
        for c in (False, True)
    },
    "grid": {"position": "grid:3:4"},
    "smooth table": {"position": "smooth_table"},
    "near": {"position": "t5:128", "near": 4, "features": nprf.taylor(D)},
    "hyperbolic": {"position": "table", "features": nprf.hyperbolic(D, 8)},
    "calibrated": {"position": "alibi", "near": 3, "features": "calibrated"},
    "grouped queries": {"position": "table", "kv_heads": 2},
    "tokens first": {"position": "table", "tokens_first": True, "causal": True},
    "offset": {"position": "alibi", "causal": True, "offset": 2},
    "grouped queries, tokens first": {"position": "alibi", "kv_heads": 1, "tokens_first": True, "causal": True},
    "grouped queries, near": {"position": "t5:128", "kv_heads": 2, "near": 4, "features": nprf.taylor(D)},
    "sinks": {"position": "table", "sinks": 2},
    "sinks, near, causal": {"position": "t5:128", "sinks": 3, "near": 4, "causal": True},
    "sinks, grouped queries": {"position": "alibi", "sinks": 1, "near": 2, "kv_heads": 2, "tokens_first": True},
    "lengths": {"position": "t5:128", "lengths": [N, 8]},
    "lengths, one 0": {"position": "table", "lengths": [0, 13], "causal": True, "tokens_first": True},
    "lengths, sinks, grouped queries": {"position": "alibi", "lengths": [5, 2], "sinks": 3, "near": 4, "kv_heads": 2},
}


def made(name):
    options = dict(cases[name])
    if options.get("features") == "calibrated":
        q, k, v = np.random.default_rng(0).standard_normal((3, 64, D))
        options["features"] = nprf.calibrate(q, k, v, nprf.Alibi(0.1), num_features=D + 1, near=3).features
    return case(**options)


def on(device, tensors):
    return [None if x is None else x.to(device) for x in tensors]


def on_device(device, arrays, parameters=(None, None), key_mask=None, packing=None):
    return Arguments(*on(device, [*arrays, *parameters, key_mask, packing]))


def on_the_cpu(features, arrays, parameters, mask, options, dy, dtype, packing=None):
    """y and the gradients of q, k, v, bias and extra, computed in this type."""
    of_type = [None if each is None else each.to(dtype) for each in (*arrays, *parameters)]
    x = Arguments(*of_type, mask, packing)
    y, _ = _functional._forward(x, features, options, True)
    token = torch.empty(0, dtype=torch.uint8)  # nothing is saved
    of_graph = _maps.named(features, y)
    text = _functional._text_of(of_graph, options)
    return y, *_functional.backward_op(dy.to(dtype), token, *x, of_graph.tensor, None, text, options.offset)


@pytest.mark.parametrize("name", cases)
def test_equals_the_cpu(name):
    device = gpu()
    features, arrays, parameters, options, mask = made(name)
    dy = torch.randn(*arrays[0].shape[:-1], V)
    inputs = on_device(device, arrays, parameters, mask)
    y = _gpu.forward(inputs, features, options)
    *gradients, dparameters = _gpu.backward(dy.to(device), inputs, features, options)
    of_bias, of_extra = _functional._split(dparameters, *on(device, parameters))
    like = _functional._like
    of_parameters = like(of_bias, parameters[0], options.bias_dims()), like(of_extra, parameters[1], 2)
    found = [y, *gradients, *(torch.empty(0) if x is None else x for x in of_parameters)]
    exact = on_the_cpu(features, arrays, parameters, mask, options, dy, torch.float64)
    assert_as_exact(found, on_the_cpu(features, arrays, parameters, mask, options, dy, torch.float32), exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", cases)
def test_halves(name, dtype):
    """Products are in bfloat16 or float16, sums and gradients in float, and each number is rounded to `dtype` at the
    end.

    Relative to the largest |v|, numerators and denominators each lose, in halves of eps of bfloat16, 1 for the features
    of a query, 1 for those of a key and 1 for the weight: 3 eps together for positive weights. The terms of those of a
    Taylor series, of which some are negative, may be twice as large.
    """
    device = gpu()
    if not _gpu._module().halves:
        pytest.skip("nprf was compiled for float32 alone: -D NPRF_PYTHON_CUDA_HALVES=OFF")
    features, arrays, parameters, options, mask = made(name)
    arrays = [x.to(dtype) for x in arrays]
    dy = torch.randn(*arrays[0].shape[:-1], V).to(dtype)
    inputs = on_device(device, arrays, parameters, mask)
    y = _gpu.forward(inputs, features, options)
    *gradients, dparameters = _gpu.backward(dy.to(device), inputs, features, options)
    of_bias, _ = _functional._split(dparameters, *on(device, parameters))
    expected, *exact = on_the_cpu(features, arrays, parameters, mask, options, dy, torch.float64)
    assert y.dtype == dtype and all(g.dtype == dtype for g in gradients)
    of_y = (6 * torch.finfo(torch.bfloat16).eps + torch.finfo(dtype).eps) * arrays[2].abs().max()
    assert 0 < (y.cpu() - expected).abs().max() <= of_y
    for g, e in zip(gradients, exact):
        assert (g.cpu() - e).abs().max() <= torch.finfo(dtype).eps * e.abs().max()
    if of_bias is not None:
        of_bias, e = _functional._like(of_bias, parameters[0], options.bias_dims()).cpu(), exact[3]
        assert (of_bias - e).abs().max() <= torch.finfo(dtype).eps * e.abs().max()


def test_plans_are_kept_and_parameters_are_those_of_the_call():
    device = gpu()
    nprf.free_memory()
    features, arrays, parameters, options, _ = made("table, causal False")
    x = on_device(device, arrays, parameters)
    first = _gpu.forward(x, features, options)
    plans = len(_gpu._plans)
    other = _gpu.forward(x._replace(bias=x.bias + torch.randn_like(x.bias)), features, options)
    assert not torch.equal(first, other)
    assert torch.equal(_gpu.forward(x, features, options), first)
    copies = (each.mT.contiguous().mT for each in x[:3])
    assert torch.equal(_gpu.forward(Arguments(*copies, x.bias, None), features, options), first)
    assert len(_gpu._plans) == plans


def test_plans_are_freed():
    device = gpu()
    features, arrays, parameters, options, _ = made("none, causal False")
    x = on_device(device, arrays, parameters)
    y = _gpu.forward(x, features, options)
    assert len(_gpu._plans) > 0
    nprf.free_memory()
    assert len(_gpu._plans) == 0
    assert torch.equal(_gpu.forward(x, features, options), y)


def test_errors_on_a_gpu():
    device = gpu()
    features, arrays, (bias, _), options, _ = made("table, causal False")
    arrays, bias = on(device, arrays), bias.to(device)

    def rejects(error, text, q, k, v, **changes):
        with pytest.raises(error, match=text):
            _gpu.forward(Arguments(q, k, v, bias, None), features, options._replace(**changes))

    q, k, v = arrays
    rejects(TypeError, "float32, float16 or bfloat16 on a GPU", q.double(), k, v)
    rejects(ValueError, "keys: expected the type", q, k.double(), v)
    rejects(ValueError, "k: expected", q, k[..., :3], v)
    rejects(ValueError, "engine: expected", q, k, v, engine="lanes")
    if not _gpu._module().halves:
        rejects(ValueError, "scalars: expected float32 in this build of nprf, got float16", *(x.half() for x in arrays))
    rejects(ValueError, "q: expected 2 x 4 x 21 x 8", q[..., :3], k[..., :3], v)


def test_empty_arrays_on_a_gpu():
    device = gpu()
    features, arrays, parameters, options, _ = made("table, causal False")
    x = on_device(device, [each[:, :, :0] for each in arrays], parameters)
    assert _gpu.forward(x, features, options).shape == (B, H, 0, V)
    gradients = _gpu.backward(torch.empty(B, H, 0, V, device=device), x, features, options)
    assert [g.shape for g in gradients[:3]] == [each.shape for each in x[:3]] and not gradients[3].any()
    without_queries = x._replace(k=arrays[1].to(device), v=arrays[2].to(device))
    gradients = _gpu.backward(torch.empty(B, H, 0, V, device=device), without_queries, features, options)
    assert all(not g.any() for g in gradients)


def test_lengths_are_the_mask_that_they_describe():
    device = gpu()
    features, arrays, parameters, options, lengths = made("lengths, sinks, grouped queries")
    x = on_device(device, arrays, parameters)
    y = _gpu.forward(x._replace(key_mask=(torch.arange(N) < lengths[:, None]).to(device)), features, options)
    assert torch.equal(
        _gpu.forward(x._replace(key_mask=lengths), features, options), y
    )  # on the CPU, and on the device
    assert torch.equal(_gpu.forward(x._replace(key_mask=lengths.to(device)), features, options), y)
    assert not torch.equal(_gpu.forward(x, features, options), y)


packed_cases = {
    "t5, causal": ({"position": "t5:128", "causal": True}, [0, 5, 5, N], None),
    "keys of their own": ({"position": "table", "near": 3, "features": nprf.taylor(D)}, [0, 0, 9, N], [0, 9, 12, N]),
    "tokens first": ({"position": "alibi", "tokens_first": True, "kv_heads": 2, "sinks": 2}, [0, 8, N], None),
    "one": ({"position": "none"}, [0, N], None),
    "a grid": ({"position": "grid:3:4"}, [0, 14, 28], None),
}


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", packed_cases)
def test_packed_sequences_equal_the_cpu(name, mask):
    device = gpu()
    kind, ends, of_keys = packed_cases[name]
    features, arrays, parameters, options, _ = case(**kind)
    axis = 1 if options.tokens_first else 2
    arrays = [x[:1] for x in arrays]
    if name == "a grid":
        arrays = [torch.cat([x, 2 * x], axis) for x in arrays]
    packing = torch.tensor([ends] if of_keys is None else [ends, of_keys])
    key_mask = torch.rand(1, arrays[1].shape[axis]) < 0.7 if mask else None
    dy = torch.randn(*arrays[0].shape[:-1], V)

    exact, expected = (
        on_the_cpu(features, arrays, parameters, key_mask, options, dy, dtype, packing)
        for dtype in (torch.float64, torch.float32)
    )
    for place in (device, "cpu"):  # of the lengths
        x = on_device(device, arrays, parameters, key_mask, packing)._replace(packing=packing.to(place))
        y = _gpu.forward(x, features, options)
        *gradients, dparameters = _gpu.backward(dy.to(device), x, features, options)
        of_bias, of_extra = _functional._split(dparameters, x.bias, x.extra)
        like = _functional._like
        of_parameters = like(of_bias, parameters[0], options.bias_dims()), like(of_extra, parameters[1], 2)
        found = [y, *gradients, *(torch.empty(0) if each is None else each for each in of_parameters)]
        assert all(a.is_contiguous() and a.shape == b.shape for a, b in zip(found[:4], (y, *x[:3])))
        assert_as_exact(found, expected, exact)


def test_packed_sequences_of_other_dimensions_and_sizes():
    device = gpu()
    nprf.free_memory()
    features, arrays, (bias, _), options, _ = made("alibi, causal True")
    packing = torch.tensor([[0, 5, N]])
    one = [x[0].clone() for x in arrays]
    all_heads = _gpu.forward(on_device(device, [x[None] for x in one], (bias, None), None, packing), features, options)
    assert torch.equal(
        _gpu.forward(on_device(device, one, (bias, None), None, packing), features, options), all_heads[0]
    )
    of_head = on_device(device, [x[1] for x in one], (bias[1:2], None), None, packing)
    assert torch.equal(_gpu.forward(of_head, features, options), all_heads[0, 1])
    *gradients, _ = _gpu.backward(torch.ones(N, V, device=device), of_head, features, options)
    assert [g.shape for g in gradients] == [x.shape for x in of_head[:3]]
    # other lengths: the same plan; numbers that are not finite in other sequences: the same rows
    plans = len(_gpu._plans)
    _gpu.forward(on_device(device, one, (bias, None), None, torch.tensor([[0, 9, N]])), features, options)
    arrays[0][0, :, 5:], arrays[1][0, :, 5:], arrays[2][0, :, 5:] = torch.nan, torch.nan, torch.nan
    y = _gpu.forward(on_device(device, [x[0] for x in arrays], (bias, None), None, packing), features, options)
    assert torch.equal(y[:, :5], all_heads[0, :, :5]) and y[:, 5:].isnan().all()
    assert len(_gpu._plans) == plans
    dy = torch.ones(H, N, V, device=device)
    found, expected = (
        _gpu.backward(dy, on_device(device, each, (bias, None), None, packing), features, options)
        for each in ([x[0] for x in arrays], one)
    )
    assert all(torch.equal(g[:, :5], e[:, :5]) and g[:, 5:].isnan().any() for g, e in zip(found[:3], expected))
    no_keys = on_device(
        device, [one[0], one[1][:, :0], one[2][:, :0]], (bias, None), None, torch.tensor([[0, N], [0, 0]])
    )
    assert not _gpu.forward(no_keys, features, options).any()
    *gradients, _ = _gpu.backward(torch.ones(H, N, V, device=device), no_keys, features, options)
    assert [g.shape for g in gradients] == [x.shape for x in no_keys[:3]] and not gradients[0].any()
    for tokens_first in (False, True):
        axis = 1 if tokens_first else 2
        of_batch = [x[None].transpose(1, 2) if tokens_first else x[None] for x in (one[0], *no_keys[1:3])]
        in_order = options._replace(tokens_first=tokens_first)
        x = on_device(device, of_batch, (bias, None), None, torch.tensor([[0, N], [0, 0]]))
        y = _gpu.forward(x, features, in_order)
        assert y.shape[axis] == N and not y.any()
        *gradients, _ = _gpu.backward(torch.ones_like(y), x, features, in_order)
        assert [g.shape for g in gradients] == [each.shape for each in x[:3]] and not gradients[0].any()
    none = on_device(device, [x[:, :0] for x in one], (bias, None), None, torch.tensor([[0]]))
    assert _gpu.forward(none, features, options).shape == (H, 0, V)


def test_errors_that_are_those_of_the_cpu():
    """They need no GPU."""
    features, (q, k, v), (bias, _), options, _ = made("table, causal False")

    def compare(text, q, k, v, lengths=None, packing=None, features=features, **changes):
        key_mask = None if lengths is None else torch.tensor(lengths)
        packing = None if packing is None else torch.tensor(packing)
        x, changed = Arguments(q, k, v, bias, None, key_mask, packing), options._replace(**changes)
        for call in (
            lambda: _gpu.forward(x, features, changed),
            lambda: _functional._forward(x, features, changed, False),
        ):
            with pytest.raises(ValueError, match=text):
                call()

    compare(r"^lengths\[1\]: expected 0 to 21 \(the number of keys\), got 22$", q, k, v, [N, N + 1])
    compare(r"^lengths\[0\]: expected 0 to 21 \(the number of keys\), got -1$", q, k, v, [-1, N])
    of_heads = r"^keys: expected a number of heads that 4 \(of queries\) is a multiple of, got "
    compare(of_heads + "3$", q, k[:, :3], v[:, :3])
    compare(of_heads + "0$", q, k[:, :0], v[:, :0])
    compare("^sinks: expected 0 or more, got -1$", q, k, v, sinks=-1)
    elu = nprf.elu(D)
    compare("^sinks: expected 0 .* got 1$", q, k, v, sinks=1, features=elu)
    one = q[:1], k[:1], v[:1]
    ends = [0, 5, N]
    compare(r"^cumulative_lengths\[0\]: expected 0, got 1$", *one, packing=[[1, 5, N]])
    compare(
        r"^cumulative_lengths\[2\]: expected at least 22 \(the one before\), got 21$", *one, packing=[[0, N + 1, N]]
    )
    compare(r"^cumulative_lengths: expected to end at 21 \(the number of tokens\), got 5$", *one, packing=[[0, 5]])
    compare(r"^key_cumulative_lengths: expected to end at 21 ", *one, packing=[ends, [0, 5, N - 1]])
    compare(r"^cumulative_lengths: expected to end at 20 ", q[:1], k[:1, :, :-1], v[:1, :, :-1], packing=[ends])
    compare("^lengths: expected none for packed sequences, got 1$", *one, lengths=[N], packing=[ends])
    in_two = [x[None, None] for x in one]
    compare("^queries: expected 2, 3 or 4 dimensions, got 6$", *in_two, packing=[ends])
    with pytest.raises(ValueError, match="keys: expected a batch of 1 for packed sequences on a GPU, got 2"):
        _gpu.forward(Arguments(q[:1], k, v, bias, None, None, torch.tensor([ends])), features, options)
    with pytest.raises(ValueError, match=r"values: expected 21 rows \(those of the keys\), got 20"):
        _gpu.forward(Arguments(*one[:2], v[:1, :, :-1], bias, None, None, torch.tensor([ends])), features, options)
    on_grid = options._replace(position="grid:1:5")
    with pytest.raises(ValueError, match=r"queries: expected 5 rows \(the position's tokens\), got 16"):
        _gpu.forward(Arguments(*one, bias, None, None, torch.tensor([ends])), features, on_grid)


def test_what_is_copied_and_what_is_written():
    """They need no GPU: inputs whose channels are contiguous are read in place, others are copied."""
    q = torch.randn(B, H, N, D)
    for view in (
        q,
        q.transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat([q, q], dim=-1)[..., :D],
        torch.cat([q, q], dim=2)[:, :, ::2],
        q[:, :, :1],
        q[:, :, :0],
    ):
        assert _gpu._readable(view) is view
    for other in (q.mT.contiguous().mT, torch.cat([q, q], dim=-1)[..., ::2], q[:, :1].expand(q.shape)):
        copy = _gpu._readable(other)
        assert copy.is_contiguous() and torch.equal(copy, other) and copy.data_ptr() != other.data_ptr()


def test_inputs_stay_and_only_gradients_are_written():
    device = gpu()
    features, arrays, (bias, _), options, mask = made("table, causal False")
    arrays = [torch.cat([x, x[..., :3]], dim=-1).to(device) for x in arrays]  # with channels that are not theirs
    wide = [x.clone() for x in arrays]
    x = on_device(device, [each[..., :-3] for each in arrays], (bias, None), mask)
    y = _gpu.forward(x, features, options)
    gradients = _gpu.backward(torch.ones_like(y), x, features, options)
    assert all(torch.equal(each, before) for each, before in zip(arrays, wide))
    contiguous = Arguments(*(each.contiguous() for each in x[:3]), *x[3:])
    for g, e in zip(gradients, _gpu.backward(torch.ones_like(y), contiguous, features, options)):
        torch.testing.assert_close(g, e)


def test_the_module_never_copies_what_it_writes():
    device = gpu()
    features, arrays, parameters, options, _ = made("table, causal False")
    x = on_device(device, arrays, parameters)
    q, k, v = x[:3]
    module, capsules = _gpu._module(), _gpu._capsules
    plan = _gpu._plan_of(x, features, options, True)
    parameters = _gpu._parameters(x, options)
    y = _gpu.forward(x, features, options)
    dy, call = torch.ones_like(y), _gpu._call(plan, x, parameters)

    def rejects(error, text, function, position, out):
        """`function` with this output among its right ones."""
        before = out.clone()
        arrays = [q, k, v, y.clone()]
        if function == "backward":
            arrays = [q, k, v, dy, *map(torch.empty_like, (q, k, v, parameters))]
        arrays[position - (1 if function == "forward" else 4)] = out
        with pytest.raises(error, match=text):
            getattr(plan, function)(*capsules(*arrays), call)
        assert torch.equal(out, before)

    def every_second(x):
        return torch.zeros(*x.shape[:-1], 2 * x.shape[-1], device=device)[..., ::2]

    strides, scalars = "expected an array whose channels are contiguous", "expected the type of the other arrays"
    rejects(ValueError, "y: " + strides, "forward", 0, every_second(y))
    rejects(ValueError, "y: " + scalars, "forward", 0, y.double())
    for i, (name, x) in enumerate((("dq", q), ("dk", k), ("dv", v))):
        rejects(ValueError, f"{name}: {strides}", "backward", i, every_second(x))
        rejects(ValueError, f"{name}: {scalars}", "backward", i, x.double())
    for wrong in (every_second(parameters), parameters.double()):  # tensors, which nanobind could convert
        with pytest.raises(TypeError, match="incompatible function arguments"):
            plan.backward(*capsules(q, k, v, dy, *map(torch.empty_like, (q, k, v))), wrong, call)
    workspace = _gpu._workspace(plan, q)
    for wrong in (torch.cat([workspace, workspace])[::2], workspace.to(torch.int16)):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            module.CallArrays(*capsules(parameters, None, None), wrong, _gpu._stream(q))
    few = module.CallArrays(*capsules(parameters, None, None, workspace[:1]), _gpu._stream(q))
    with pytest.raises(ValueError, match=r"workspace: expected \d+ bytes, got 1"):
        plan.forward(*capsules(q, k, v, torch.empty_like(y)), few)


options_of_attention = {
    "plain": {},
    "grouped queries": {"kv_heads": 2},
    "sinks": {"near": 4, "sinks": 2},
    "lengths": {"lengths": [N, 8]},
    "packed": {"batch": 1, "cumulative_lengths": [0, 8, 8, N], "near": 3},
    "packed, lengths on the GPU": {"batch": 1, "cumulative_lengths": "on the GPU", "causal": True},
    "all, causal": {"kv_heads": 2, "near": 4, "sinks": 2, "lengths": [13, 0], "causal": True},
}


@pytest.mark.parametrize("name", options_of_attention)
def test_autograd_on_a_gpu(name):
    device = gpu()
    if device == "cpu":
        pytest.skip("autograd calls the module for tensors on a GPU alone")
    options = dict(options_of_attention[name])
    features, arrays, (bias, _), _, _ = case("table", kv_heads=options.pop("kv_heads", H))
    batch = options.pop("batch", B)
    inputs = [*(x[:batch] for x in arrays), bias]
    weights = torch.randn(batch, H, N, V)  # of L = sum(weights y)
    if options.get("cumulative_lengths") == "on the GPU":
        options["cumulative_lengths"] = torch.tensor([0, 5, N], device=device)

    def function(q, k, v, bias, **changes):
        each = {"position": "table", **options, **changes}
        if q.device.type == "cpu" and isinstance(each.get("cumulative_lengths"), torch.Tensor):
            each["cumulative_lengths"] = each["cumulative_lengths"].cpu()
        return nprf.torch.attention(q, k, v, bias, features=features, **each)

    def all_results(device, dtype):
        x = [each.to(device, dtype, copy=True).requires_grad_() for each in inputs]
        y = function(*x)
        (y * weights.to(y)).sum().backward()
        return [y.detach(), *(each.grad for each in x)]

    found = all_results(device, torch.float32)
    assert_as_exact(found, all_results("cpu", torch.float32), all_results("cpu", torch.float64))
    x = on(device, inputs)
    torch._dynamo.reset()  # compilations of the case before count towards a limit
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*x), found[0])
    if "lengths" in options:
        for place in ("cpu", device):
            assert torch.equal(compiled(*x, lengths=torch.tensor(options["lengths"], device=place)), found[0])
        with pytest.raises(ValueError, match=r"lengths\[1\]: expected 0 to 21 \(the number of keys\), got 22"):
            function(*x, lengths=torch.tensor([0, N + 1]))
        beyond = function(*x, lengths=torch.tensor([-1, N + 1], device=device))  # are clamped
        assert torch.equal(beyond, function(*x, lengths=torch.tensor([0, N])))


def test_lengths_in_a_captured_graph():
    """The lengths may be others when it is replayed."""
    device = gpu()
    if device == "cpu":
        pytest.skip("graphs are of a GPU")
    features, arrays, _, _, _ = made("none, causal False")
    inputs, lengths = on(device, arrays), torch.tensor([N, 8], device=device)

    def function():
        return nprf.torch.attention(*inputs, features=features, lengths=lengths)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()  # makes the plan
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = function()
    for each in ([N, 8], [3, 0]):
        lengths.copy_(torch.tensor(each))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, function())


def test_the_layer_on_a_gpu():
    device = gpu()
    if device == "cpu":
        pytest.skip("layers call the module for tensors on a GPU alone")
    torch.manual_seed(5)
    layer = nprf.torch.Attention(H * D, H, position="t5", near=4, sinks=2, causal=True)
    torch.nn.init.normal_(layer.position_bias)
    x, padding = torch.randn(B, N, H * D), torch.arange(N) >= torch.tensor([[N], [8]])
    with torch.no_grad():
        expected, _ = layer(x, key_padding_mask=padding)
        found, _ = layer.to(device)(x.to(device), key_padding_mask=padding.to(device))
    torch.testing.assert_close(found.cpu(), expected)


def test_without_the_module(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nprf._cuda", None)
    with pytest.raises(RuntimeError, match="NPRF_PYTHON_CUDA=ON"):
        _gpu._module()
