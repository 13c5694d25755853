# SPDX-License-Identifier: MIT
"""Tensors on a GPU, beside those on the CPU. Where the module for GPUs was compiled over the stand-in for the CUDA runtime
(NPRF_PYTHON_CUDA_ON_HOST), its kernels run on the host, for tensors in its memory."""

import nprf
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from nprf.torch import _functional, _gpu  # noqa: E402
from nprf.torch._options import Options  # noqa: E402

B, H, N, D, V = 2, 4, 21, 8, 5


def gpu():
    """The device, or a skip with what is missing."""
    try:
        from nprf import _cuda  # noqa: F401
    except ImportError:
        pytest.skip("nprf was not compiled for GPUs: -D NPRF_PYTHON_CUDA=ON, or NPRF_PYTHON_CUDA_ON_HOST=ON")
    if _cuda.on_host:
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    return "cuda"


def case(position, causal=False, features=None, near=0, kv_heads=H, tokens_first=False, offset=0, seed=3):
    """(q, k, v), (bias, extra) and Options, float32."""
    torch.manual_seed(seed)
    n = 12 if position.startswith("grid") else N
    shapes = [(B, H, n, D), (B, kv_heads, n, D), (B, kv_heads, n, V)]
    arrays = [torch.randn(s).transpose(1, 2) if tokens_first else torch.randn(s) for s in shapes]
    shape = {"table": (H, 11), "t5": (32,), "alibi": (H,), "grid": (H, 5, 7), "none": None}[position.split(":")[0]]
    bias = None if shape is None else torch.rand(shape)
    extra = torch.rand(2, 4) if position == "grid:3:4" else None
    if extra is not None:
        arrays = [torch.cat([x, x[..., :2, :]], -2) for x in arrays]
    features = features or nprf.orf(D, 16, seed=1)
    name = "table" if position == "none" else position
    options = Options(features._identity, name, causal, near, 1.0, "automatic", tokens_first, offset)
    return features, arrays, (bias, extra), options


cases = {
    **{
        f"{p}, causal {c}": {"position": p, "causal": c}
        for p in ("none", "table", "t5:128", "alibi")
        for c in (False, True)
    },
    "grid": {"position": "grid:3:4"},
    "near": {"position": "t5:128", "near": 4, "features": nprf.taylor(D)},
    "hyperbolic": {"position": "table", "features": nprf.hyperbolic(D, 8)},
    "calibrated": {"position": "alibi", "near": 3, "features": "calibrated"},
    "grouped queries": {"position": "table", "kv_heads": 2},
    "tokens first": {"position": "table", "tokens_first": True, "causal": True},
    "offset": {"position": "alibi", "causal": True, "offset": 2},
}


def made(name):
    options = dict(cases[name])
    if options.get("features") == "calibrated":
        q, k, v = np.random.default_rng(0).standard_normal((3, 64, D))
        options["features"] = nprf.calibrate(q, k, v, nprf.Alibi(0.1), num_features=D + 1, near=3).features
    return case(**options)


def on(device, tensors):
    return [None if x is None else x.to(device) for x in tensors]


def on_the_cpu(arrays, parameters, mask, options, dy, dtype):
    """y and the gradients of q, k, v, bias and extra, computed in this type."""
    x = [None if each is None else each.to(dtype) for each in (*arrays, *parameters)]
    y, _ = _functional._forward(*x, mask, options, True)
    token = torch.empty(0, dtype=torch.uint8)  # nothing is saved
    return y, *_functional.backward_op(dy.to(dtype), token, *x, mask, options.text())


@pytest.mark.parametrize("name", cases)
def test_equals_the_cpu(name):
    """As exact as the CPU is in float32, up to a factor of ten for other orders of sums, relative to float64."""
    device = gpu()
    features, arrays, parameters, options = made(name)
    mask = None if options.position.startswith("grid") else torch.rand(B, N) < 0.8
    dy = torch.randn(*arrays[0].shape[:-1], V)
    inputs = [*arrays, *parameters, mask]
    y = _gpu.forward(*on(device, inputs), options)
    *gradients, dparameters = _gpu.backward(*on(device, [dy, *inputs]), options)
    of_bias, of_extra = _functional._split(dparameters, *on(device, parameters))
    like = _functional._like
    found = [y, *gradients, like(of_bias, parameters[0], options.bias_dims()), like(of_extra, parameters[1], 2)]
    exact = on_the_cpu(arrays, parameters, mask, options, dy, torch.float64)
    in_float = on_the_cpu(arrays, parameters, mask, options, dy, torch.float32)
    for g, f, e in zip(found, in_float, exact):
        assert g.shape == e.shape
        if e.numel() > 0:
            eps = torch.finfo(torch.float32).eps * e.abs().max()
            assert (g.cpu() - e).abs().max() <= 10 * max((f - e).abs().max(), eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", cases)
def test_halves(name, dtype):
    """Products are in bfloat16 or float16, sums and gradients in float, and each number is rounded to `dtype` at the end.

    Relative to the largest |v|, numerators and denominators each lose, in halves of eps of bfloat16, 1 for the features of
    a query, 1 for those of a key and 1 for the weight: 3 eps together for positive weights. The terms of those of a Taylor
    series, of which some are negative, may be twice as large.
    """
    device = gpu()
    features, arrays, parameters, options = made(name)
    mask = None if options.position.startswith("grid") else torch.rand(B, N) < 0.8
    arrays = [x.to(dtype) for x in arrays]
    dy = torch.randn(*arrays[0].shape[:-1], V).to(dtype)
    inputs = [*arrays, *parameters, mask]
    y = _gpu.forward(*on(device, inputs), options)
    *gradients, dparameters = _gpu.backward(*on(device, [dy, *inputs]), options)
    of_bias, _ = _functional._split(dparameters, *on(device, parameters))
    expected, *exact = on_the_cpu(arrays, parameters, mask, options, dy, torch.float64)
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
    features, arrays, (bias, _), options = made("table, causal False")
    arrays, bias = on(device, arrays), bias.to(device)
    first = _gpu.forward(*arrays, bias, None, None, options)
    plans = len(_gpu._plans)
    other = _gpu.forward(*arrays, bias + torch.randn_like(bias), None, None, options)
    assert not torch.equal(first, other)
    assert torch.equal(_gpu.forward(*arrays, bias, None, None, options), first)
    assert torch.equal(_gpu.forward(*(x.mT.contiguous().mT for x in arrays), bias, None, None, options), first)
    assert len(_gpu._plans) == plans


def test_errors_on_a_gpu():
    device = gpu()
    features, arrays, (bias, _), options = made("table, causal False")
    arrays, bias = on(device, arrays), bias.to(device)

    def rejects(error, text, q, k, v, **changes):
        with pytest.raises(error, match=text):
            _gpu.forward(q, k, v, bias, None, None, options._replace(**changes))

    q, k, v = arrays
    rejects(TypeError, "float32, float16 or bfloat16 on a GPU", q.double(), k, v)
    rejects(ValueError, "keys: expected the type", q, k.double(), v)
    rejects(ValueError, "k: expected", q, k[..., :3], v)
    rejects(ValueError, "engine: expected", q, k, v, engine="lanes")
    rejects(ValueError, "q: expected 2 x 4 x 21 x 8", q[..., :3], k[..., :3], v)


def test_empty_arrays_on_a_gpu():
    device = gpu()
    features, arrays, (bias, _), options = made("table, causal False")
    q, k, v = (x.to(device)[:, :, :0] for x in arrays)
    assert _gpu.forward(q, k, v, bias.to(device), None, None, options).shape == (B, H, 0, V)
    gradients = _gpu.backward(torch.empty(B, H, 0, V, device=device), q, k, v, bias.to(device), None, None, options)
    assert [g.shape for g in gradients[:3]] == [x.shape for x in (q, k, v)] and not gradients[3].any()


def test_autograd_on_a_gpu():
    device = gpu()
    if device == "cpu":
        pytest.skip("autograd calls the module for tensors on a GPU alone")
    features, arrays, (bias, _), _ = made("table, causal False")
    function = lambda q, k, v, bias: nprf.torch.attention(q, k, v, bias, features=features)  # noqa: E731
    inputs = [x.to(device).requires_grad_() for x in (*arrays, bias)]
    copies = [x.detach().cpu().requires_grad_() for x in inputs]
    for x in (inputs, copies):
        function(*x).square().sum().backward()
    for x, y in zip(inputs, copies):
        torch.testing.assert_close(x.grad.cpu(), y.grad)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), function(*inputs))


def test_without_the_module(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nprf._cuda", None)
    with pytest.raises(RuntimeError, match="NPRF_PYTHON_CUDA=ON"):
        _gpu._module()
