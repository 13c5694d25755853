# SPDX-License-Identifier: MIT
"""nprf.torch on the CPU."""

import copy
import io
import subprocess
import sys

import nprf
import numpy as np
import pytest
from conftest import interrupted, seconds

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from nprf.torch import _functional, _maps  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

B, H, N, D = 2, 3, 17, 8


pytestmark = pytest.mark.usefixtures("seeded_on_one_thread")


def tensors(*shape, dtype=torch.float64):
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for _ in range(3)]


def biases():
    """Names of positions and the shape of their parameters."""
    h, w = 3, 5
    return {
        "table": (11,),
        "smooth_table": (11,),
        "t5": (32,),
        "alibi": (),
        "grid": (2 * h - 1, 2 * w - 1),
        "table of heads": (H, 11),
        "t5 of heads": (H, 32),
        "alibi of heads": (H,),
        "grid of heads": (H, 2 * h - 1, 2 * w - 1),
    }


def case(name, **options):
    """(function of q, k, v, bias and extra, its arguments)"""
    kind = name.split()[0]
    q, k, v = tensors(B, H, N, D)
    bias = torch.randn(biases()[name], dtype=torch.float64, requires_grad=True)
    extra = torch.randn(2, 4, dtype=torch.float64, requires_grad=True) if kind == "grid" else None
    position = ("grid", 3, 5) if kind == "grid" else kind
    features = nprf.orf(D, 16, seed=1)

    def function(q, k, v, bias, extra):
        return nprf.torch.attention(
            q, k, v, bias, extra=extra, features=features, position=position, **{"near": 2, **options}
        )

    return function, (q, k, v, bias, extra)


@pytest.mark.parametrize("name", biases())
@pytest.mark.parametrize("causal", [False, True])
def test_equals_numpy_and_gradcheck(name, causal):
    function, arguments = case(name, causal=causal)
    y = function(*arguments)
    q, k, v, bias, extra = (None if x is None else x.detach().numpy() for x in arguments)
    kind = name.split()[0]
    position = {
        "table": lambda: nprf.RelativePosition(bias),
        "smooth_table": lambda: nprf.RelativePosition(bias, smooth=True),
        "t5": lambda: nprf.T5(bias),
        "alibi": lambda: nprf.Alibi(bias),
        "grid": lambda: nprf.Grid(3, 5, bias, extra),
    }[kind]()
    attention = nprf.Attention(nprf.orf(D, 16, seed=1), position, causal, near=2)
    assert np.array_equal(y.detach().numpy(), attention.forward(q, k, v)[0])
    assert torch.autograd.gradcheck(function, arguments, fast_mode=True)


def test_sinks():
    function, arguments = case("table", sinks=3)
    q, k, v, bias = (x.detach().numpy() for x in arguments[:4])
    attention = nprf.Attention(nprf.orf(D, 16, seed=1), nprf.RelativePosition(bias), near=2, sinks=3)
    y = function(*arguments)
    assert np.array_equal(y.detach().numpy(), attention.forward(q, k, v)[0])
    assert not torch.equal(y, case("table")[0](*arguments))
    assert torch.autograd.gradcheck(function, arguments, fast_mode=True)


def test_salient_keys():
    function, arguments = case("t5", sinks=1, salient=3)
    q, k, v, bias = (x.detach().numpy() for x in arguments[:4])
    attention = nprf.Attention(nprf.orf(D, 16, seed=1), nprf.T5(bias), near=2, sinks=1, salient=3)
    y = function(*arguments)
    assert np.array_equal(y.detach().numpy(), attention.forward(q, k, v)[0])
    assert not torch.equal(y, case("t5", sinks=1)[0](*arguments))
    assert torch.equal(torch.compile(function, fullgraph=True, backend="aot_eager")(*arguments), y)
    assert torch.autograd.gradcheck(function, arguments, fast_mode=True)
    layer = nprf.torch.Attention(24, 3, position="t5", near=2, salient=3)
    assert "salient=3" in repr(layer)
    x = torch.randn(2, 9, 24)
    y, _ = layer(x)
    layer.salient = 0
    assert not torch.equal(layer(x)[0], y)
    with pytest.raises(ValueError, match="salient: expected 0 for causal attention"):
        nprf.torch.Attention(24, 3, causal=True, salient=3)


def test_without_a_position():
    q, k, v = tensors(B, H, N, D)
    function = lambda q, k, v: nprf.torch.attention(q, k, v, features=nprf.taylor(D), near=4)
    assert torch.autograd.gradcheck(function, (q, k, v), fast_mode=True)


def test_padding_grouped_queries_and_cross_attention():
    q, _, _ = tensors(B, 4, N, D)
    k, v, _ = tensors(B, 2, N + 3, D)
    bias = torch.randn(4, 11, dtype=torch.float64, requires_grad=True)
    padding = torch.arange(N + 3)[None, :] >= torch.tensor([[N], [6]])
    features = nprf.orf(D, 16)

    def function(q, k, v, bias):
        return nprf.torch.attention(
            q, k, v, bias, features=features, position="table", key_padding_mask=padding, offset=2
        )

    assert torch.autograd.gradcheck(function, (q, k, v, bias), fast_mode=True)
    function(q, k, v, bias).sum().backward()
    assert not k.grad[1, :, 6:].any() and k.grad[1, :, :6].any()


def test_lengths():
    function, arguments = case("t5 of heads", causal=True)
    with_lengths, _ = case("t5 of heads", causal=True, lengths=[N, 5])
    with_padding, _ = case("t5 of heads", causal=True, key_padding_mask=torch.arange(N) >= torch.tensor([[N], [5]]))
    y = with_lengths(*arguments)
    assert torch.equal(y, with_padding(*arguments)) and not torch.equal(y, function(*arguments))
    assert torch.autograd.gradcheck(with_lengths, arguments, fast_mode=True)
    features = nprf.orf(D, 16, seed=1)
    of_tensor = torch.compile(
        lambda q, k, v, bias, lengths: nprf.torch.attention(
            q, k, v, bias, features=features, position="t5", causal=True, near=2, lengths=lengths
        ),
        fullgraph=True,
        backend="aot_eager",
    )
    with torch._dynamo.config.patch(error_on_recompile=True):  # one graph for all lengths
        assert torch.equal(of_tensor(*arguments[:4], torch.tensor([N, 5])), y)
        assert torch.equal(of_tensor(*arguments[:4], torch.tensor([N, N])), function(*arguments))


def test_report_and_tolerance():
    q, k, v = (x.detach().float() for x in tensors(B, H, 100, D))
    bias = torch.randn(H, 11)
    features = nprf.orf(D, 16)
    position = nprf.RelativePosition(bias.numpy())
    for tolerance in (0.0, 1e-9):  # the second is below what any engine has: rows are recomputed
        y, report = nprf.torch.attention(
            q, k, v, bias, features=features, position="table", engine="lanes", tolerance=tolerance, report=True
        )
        expected, in_numpy = nprf.attention(
            *(x.numpy() for x in (q, k, v)), features=features, position=position, engine="lanes",
            tolerance=tolerance, report=True,
        )  # fmt: skip
        assert np.array_equal(y.numpy(), expected) and repr(report) == repr(in_numpy)
        assert (report.repaired_rows > 0) == (tolerance > 0)
    q.requires_grad_()
    y, saved = nprf.torch.attention(q, k, v, bias, features=features, position="table", report=True)
    assert y.requires_grad and saved.error_bound > 0 and isinstance(saved, nprf.Report)
    half, report = nprf.torch.attention(*(x.bfloat16() for x in (q, k, v)), features=features, report=True)
    assert half.dtype == torch.bfloat16 and report.engine
    with pytest.raises(ValueError, match="report: expected False for tensors without numbers"):
        nprf.torch.attention(*(x.detach().to("meta") for x in (q, k, v)), features=features, report=True)

    def function(q):
        y, report = nprf.torch.attention(q, q, q, features=features, report=True)
        return y * report.error_bound

    assert torch.equal(torch.compile(function, backend="aot_eager")(k), function(k))  # with a break
    with pytest.raises(torch._dynamo.exc.Unsupported, match="report: expected False in a graph of torch.compile"):
        torch.compile(lambda q: function(q), fullgraph=True, backend="aot_eager")(k)


def test_softmax_samples_and_finite_inputs():
    q, k, v = (x.detach() for x in tensors(B, H, 40, D))
    bias, features = torch.randn(H, 11, dtype=torch.float64), nprf.orf(D, 16)
    options = {"report": True, "softmax_samples": 7, "softmax_seed": 3}
    position = nprf.RelativePosition(bias.numpy())
    in_numpy = nprf.attention(*(x.numpy() for x in (q, k, v)), features=features, position=position, **options)[1]
    for x in ((q, k, v), (q.clone().requires_grad_(), k, v)):
        report = nprf.torch.attention(*x, bias, features=features, position="table", **options)[1]
        assert report.compared_rows == B * H * 7 and report.softmax_error == in_numpy.softmax_error
    with pytest.raises(ValueError, match="softmax_samples: expected 0 without report=True, got 7"):
        nprf.torch.attention(q, k, v, bias, features=features, position="table", softmax_samples=7)
    with pytest.raises(TypeError, match="softmax_samples: expected an integer, got 7.5"):
        nprf.torch.attention(q, k, v, bias, features=features, position="table", report=True, softmax_samples=7.5)

    def function(q):
        return nprf.torch.attention(q, k, v, bias, features=features, position="table", check_finite=True)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), function(q))
    wrong = q.clone()
    wrong[1, 2, 3, 4] = torch.nan
    for each in (function, compiled):
        with pytest.raises(ValueError, match=r"queries: expected finite numbers \(check_finite\), got nan in batch 1"):
            each(wrong)


@pytest.mark.parametrize("layout", ["heads_first", "tokens_first"])
def test_packed_sequences(layout):
    q, _, _ = tensors(1, H, N, D)
    k, v, _ = tensors(1, H, N + 3, D)
    bias = torch.randn(H, 11, dtype=torch.float64, requires_grad=True)
    ends, of_keys, features = [0, 5, 5, N], [0, 9, 12, N + 3], nprf.orf(D, 16)
    of_attention = {"features": features, "position": "table", "causal": True, "near": 2}
    parts = [(slice(a, b), slice(c, d)) for a, b, c, d in zip(ends, ends[1:], of_keys, of_keys[1:])]
    if layout == "tokens_first":
        q, k, v = (x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v))

    def function(q, k, v, bias, lengths=torch.tensor(ends, dtype=torch.int32), of_keys=of_keys):
        options = {"cumulative_lengths": lengths, "key_cumulative_lengths": of_keys, "layout": layout, "offset": 0}
        return nprf.torch.attention(q, k, v, bias, **of_attention, **options)

    y = function(q, k, v, bias)
    position = nprf.RelativePosition(bias.detach().numpy())
    attention = nprf.Attention(features, position, causal=True, near=2)
    options = {"cumulative_lengths": ends, "key_cumulative_lengths": of_keys, "layout": layout, "offset": 0}
    assert np.array_equal(y.detach().numpy(), attention(*(x.detach().numpy() for x in (q, k, v)), **options))
    in_order = (lambda x: x.transpose(1, 2)) if layout == "tokens_first" else lambda x: x
    for rows, keys in parts:  # as separate calls
        x = [in_order(each)[:, :, of] for each, of in ((q, rows), (k, keys), (v, keys))]
        one = nprf.torch.attention(*x, bias, **of_attention, offset=0)
        torch.testing.assert_close(in_order(y)[:, :, rows], one)
    assert torch.autograd.gradcheck(function, (q, k, v, bias), fast_mode=True)
    expected = torch.autograd.grad(y.sum(), (q, k, v, bias))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):  # forward is computed again
        found = torch.autograd.grad(function(q, k, v, bias).sum(), (q, k, v, bias))
    assert all(torch.equal(g, e) for g, e in zip(found, expected))
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):  # one graph for all lengths
        for lengths in (ends, [0, 1, 2, N]):
            lengths = torch.tensor(lengths)
            assert torch.equal(compiled(q, k, v, bias, lengths), function(q, k, v, bias, lengths))


def test_errors_of_packed_sequences():
    q, k, v = tensors(1, H, N, D)

    def rejects(error, text, cumulative, of_keys=None, **options):
        with pytest.raises(error, match=text):
            options = {"cumulative_lengths": cumulative, "key_cumulative_lengths": of_keys, **options}
            nprf.torch.attention(q, k, v, features=nprf.orf(D, 16), **options)

    rejects(ValueError, "key_cumulative_lengths: expected none without cumulative_lengths", None, [0, N])
    of_number = r"key_cumulative_lengths: expected \[2\] \(as cumulative_lengths\), got the shape \[3\]"
    rejects(ValueError, of_number, [0, N], [0, 1, N])
    rejects(ValueError, r"cumulative_lengths: expected \[sequences \+ 1\], got the shape \[1, 2\]", [[0, N]])
    rejects(ValueError, "cumulative_lengths: expected to end at 17", [0, N + 1])
    rejects(TypeError, "cumulative_lengths: expected integers, got torch.float32", [0.0, 17.0])
    rejects(ValueError, "lengths: expected none for packed sequences", [0, N], lengths=[N])
    with pytest.raises(NotImplementedError, match="cumulative_lengths: expected none under vmap"):
        torch.func.vmap(lambda q: nprf.torch.attention(q, q, q, features=nprf.orf(D, 16), cumulative_lengths=[0, N]))(
            q.detach()
        )


def test_gradient_reports():
    function, arguments = case("table of heads")
    q, k, v, bias, _ = arguments
    features, reports = nprf.orf(D, 16, seed=1), []

    def with_report(*x):
        return nprf.torch.attention(*x, features=features, position="table", near=2, gradient_report=reports.append)

    y, dy = with_report(q, k, v, bias), torch.randn(B, H, N, D, dtype=torch.float64)
    assert not reports
    gradients = torch.autograd.grad(y, (q, k, v, bias), dy, retain_graph=True)
    expected = torch.autograd.grad(function(*arguments), (q, k, v, bias), dy)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected))
    attention = nprf.Attention(features, nprf.RelativePosition(bias.detach().numpy()), near=2)
    _, saved = attention.forward(*(x.detach().numpy() for x in (q, k, v)))
    in_numpy = attention.backward(saved, dy.numpy()).report
    assert len(reports) == 1 and isinstance(reports[0], nprf.GradientReport)
    assert reports[0].engine == in_numpy.engine and reports[0].error_bound == in_numpy.error_bound
    torch.autograd.grad(y, q, dy, create_graph=True)  # by the operator
    assert len(reports) == 2 and reports[1].error_bound == in_numpy.error_bound
    with torch.no_grad():
        with_report(q, k, v, bias)
    checkpointed = torch.utils.checkpoint.checkpoint(with_report, q, k, v, bias, use_reentrant=False)
    assert len(reports) == 2
    checkpointed.sum().backward()
    assert len(reports) == 3
    x = [each.detach() for each in (q, k, v, bias)]
    for call in (
        lambda: torch.vmap(with_report, (0, 0, 0, None))(*x),
        lambda: with_report(*(each.to("meta") for each in x)),
        lambda: torch.fx.experimental.proxy_tensor.make_fx(with_report)(*x),
    ):
        with pytest.raises(ValueError, match="gradient_report: expected None on a GPU, under transforms or under"):
            call()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="gradient_report: expected None in a graph"):
        torch.compile(with_report, fullgraph=True, backend="aot_eager")(q, k, v, bias)
    broken = torch.compile(lambda *x: with_report(*x) * 2, backend="aot_eager")(q, k, v, bias)
    broken.sum().backward()
    assert len(reports) == 4


def test_opcheck():
    function, (q, k, v, bias, extra) = case("t5 of heads")
    mask, packing = torch.ones(B, N, dtype=torch.bool), torch.tensor([[0, 5, N], [0, 7, N]])
    features, seed, offset = nprf.orf(D, 16), torch.tensor(7), torch.tensor(2)
    constants = _maps.bytes_of(nprf.ProjectedFeatures("positive", np.eye(D)))
    options = _functional.Options("t5:128", True, 2, 1.0, "automatic", False, check_finite=True)
    text = _functional._text_of(_maps.named(features, q), options)
    for key_mask, packed, of_map, at, save in (
        (None, None, None, None, True), (mask, None, None, None, True), (torch.tensor([N, 5]), None, None, None, True),
        (mask, None, seed, offset, True), (None, None, None, None, False), (mask, None, constants, None, False),
        (torch.tensor([N, 5]), None, None, None, False), (None, None, seed, None, False),
        (None, packing, constants, offset, True), (mask, packing[:1], None, None, False),
    ):  # fmt: skip
        arguments = (q, k, v, bias, None, key_mask, packed, of_map, at, text, 0 if at is not None else 3, save)
        if not save:
            arguments = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in arguments)
        torch.library.opcheck(_functional.attention_op, arguments)
    for packed, of_map in ((None, None), (packing, seed), (packing, constants)):
        y, token, kept = _functional.attention_op(q, k, v, bias, None, None, packed, of_map, None, text, 1, True)
        assert kept.numel() == 0 if of_map is None else torch.equal(kept, of_map)
        inputs = [x.detach() for x in (torch.ones_like(y), token, q, k, v, bias)]
        torch.library.opcheck(_functional.backward_op, (*inputs, None, None, packed, of_map, None, text, 1))
        torch.library.opcheck(_functional.backward_op, (*inputs, None, None, packed, of_map, offset, text, 0))


def test_the_operator_is_left_out_where_it_can_be(monkeypatch):
    """Plain tensors do not go through it. Others do, with the same bits."""
    inputs = [torch.randn(s, requires_grad=True) for s in ((2, 3, 12, 8), (2, 3, 12, 8), (2, 3, 12, 5), (3, 23))]
    features, way, calls = nprf.orf(8, 16), _functional.is_plain, []

    def function(*x):
        return nprf.torch.attention(*x, features=features, position="table")

    def results():
        calls.clear()
        y = function(*inputs)
        with torch.no_grad():
            assert torch.equal(function(*inputs), y)
        return [y.detach(), *torch.autograd.grad(y.sum(), inputs)], list(calls)

    monkeypatch.setattr(_functional, "is_plain", lambda *x: calls.append(way(*x)) or calls[-1])
    expected, plain = results()
    assert plain == [True] * 3
    monkeypatch.setattr(_functional, "is_plain", lambda *x: False)
    assert all(torch.equal(a, b) for a, b in zip(results()[0], expected))
    monkeypatch.setattr(_functional, "is_plain", lambda *x: calls.append(way(*x)) or calls[-1])
    x = [each.detach() for each in inputs]

    calls.clear()
    mapped = torch.vmap(function, (0, 0, 0, None))(*(each[:, None] for each in x[:3]), x[3])
    assert torch.equal(mapped[:, 0], expected[0])
    graph = torch.fx.experimental.proxy_tensor.make_fx(function)(*x)
    assert "nprf.attention" in graph.code and torch.equal(graph(*x), expected[0])
    with torch._subclasses.FakeTensorMode() as mode:
        assert function(*map(mode.from_tensor, x)).shape == expected[0].shape
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        assert torch.equal(function(*x), expected[0])
    assert len(calls) >= 4 and not any(calls)

    class Other(torch.Tensor):
        pass

    assert torch.equal(function(x[0].as_subclass(Other), *x[1:]).as_subclass(torch.Tensor), expected[0])
    assert not calls[-1]
    negated = [torch._neg_view(-each) for each in x]
    assert torch.equal(function(*negated), expected[0]) and not calls[-1]
    y = function(*inputs)
    assert torch.equal(torch.autograd.grad(y, inputs[0], torch._neg_view(-torch.ones_like(y)))[0], expected[1])
    with torch.device("meta"):  # tensors without a device of their own are made there
        y = function(*inputs)
        gradients = torch.autograd.grad(y, inputs, torch.ones(y.shape, device="cpu"))
    assert torch.equal(y, expected[0]) and all(torch.equal(a, b) for a, b in zip(gradients, expected[1:]))
    of_numpy = {"causal": np.bool_(False), "near": np.int64(0)}
    assert torch.equal(function(*x), nprf.torch.attention(*x, features=features, position="table", **of_numpy))

    first = torch.autograd.grad(function(*inputs).square().sum(), inputs[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="attention_backward"):
        torch.autograd.grad(first.sum(), inputs[0])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_graph_breaks(backend):
    function, arguments = case("t5 of heads", causal=True)
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    try:
        y = compiled(*arguments)
    except torch._inductor.exc.InductorError as error:  # no compiler for its own kernels
        pytest.skip(f"torch.compile does not work here: {error}")
    (y * y).sum().backward()
    found = [x.grad for x in arguments[:4]]
    for x in arguments[:4]:
        x.grad = None
    expected = function(*arguments)
    (expected * expected).sum().backward()
    assert torch.equal(y, expected)
    for x, gradient in zip(arguments[:4], found):
        assert torch.equal(gradient, x.grad)  # dy = y + y, by whichever kernel


def test_saved_state_is_freed_and_may_be_lost():
    function, arguments = case("table")
    before = len(_functional._saved)
    y = function(*arguments)
    assert len(_functional._saved) == before + 1
    y.sum().backward()
    del y
    assert len(_functional._saved) == before
    with torch.no_grad():
        function(*arguments)
    assert len(_functional._saved) == before
    expected = [x.grad.clone() for x in arguments[:4]]
    for x in arguments[:4]:
        x.grad = None
    # hooks that copy what is saved: forward is computed again
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        y = function(*arguments)
    assert len(_functional._saved) == before
    y.sum().backward()
    assert all(torch.equal(x.grad, e) for x, e in zip(arguments[:4], expected))
    # a feature map that the caller no longer has
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        y = nprf.torch.attention(*arguments[:4], features=nprf.orf(D, 16, seed=1), position="table", near=2)
    found = torch.autograd.grad(y.sum(), arguments[:4])
    assert all(torch.equal(g, e) for g, e in zip(found, expected))
    # twice
    y = function(*arguments)
    first = torch.autograd.grad(y.sum(), arguments[:4], retain_graph=True)
    second = torch.autograd.grad(y.sum(), arguments[:4])
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    checkpointed = torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(checkpointed.sum(), arguments[:4])))


def test_layouts_and_strides():
    q, k, v = tensors(B, H, N, D)
    bias = torch.randn(H, 11, dtype=torch.float64)
    features = nprf.orf(D, 16)
    y = nprf.torch.attention(q, k, v, bias, features=features, position="table")
    first = nprf.torch.attention(
        *(x.transpose(1, 2) for x in (q, k, v)), bias, features=features, position="table", layout="tokens_first"
    )
    assert torch.equal(first.transpose(1, 2), y) and first.is_contiguous()
    for other in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: torch.cat([x, x], dim=-1)[..., :D],
        lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    ):
        assert torch.equal(
            nprf.torch.attention(other(q), other(k), other(v), bias, features=features, position="table"), y
        )
    gradient = torch.randn_like(y)
    expected = torch.autograd.grad(y, q, gradient)[0]
    y = nprf.torch.attention(q, k, v, bias, features=features, position="table")
    strided = gradient.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(torch.autograd.grad(y, q, strided)[0], expected)
    y = nprf.torch.attention(q, k, v, bias, features=features, position="table")
    broadcast = torch.ones(1, dtype=torch.float64).expand(y.shape)
    assert torch.isfinite(torch.autograd.grad(y, q, broadcast)[0]).all()


def test_halves_and_autocast():
    features = nprf.orf(D, 16)
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in tensors(B, H, N, D))
        bias = torch.zeros(11, requires_grad=True)
        y = nprf.torch.attention(q, k, v, bias, features=features, position="table")
        exact = nprf.torch.attention(
            q.double(), k.double(), v.double(), bias.double(), features=features, position="table"
        )
        assert y.dtype == dtype
        # y is rounded once to the half
        assert (y - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
        y.float().sum().backward()
        assert q.grad.dtype == dtype and bias.grad.dtype == torch.float32
    layer = nprf.torch.Attention(32, 4, position="t5")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(torch.randn(2, 9, 32))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.position_bias.grad.dtype == torch.float32


def test_graphs_of_other_numbers():
    """Numbers that differ from call to call, which torch.compile makes variables of."""
    q, k, v = tensors(B, H, N, D, dtype=torch.float32)
    features = nprf.orf(D, 16)

    def function(tolerance, radius, offset):
        options = {"normalization": nprf.Normalization.unit(radius), "tolerance": tolerance, "offset": offset}
        return nprf.torch.attention(q, k, v, features=features, causal=True, **options)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for tolerance, radius, offset in ((1e-3, 1.0, 0), (1e-5, 1.0, 0), (1e-4, 1.5, 2), (1e-6, 0.5, -3), (0.0, 2.0, 5)):
        assert torch.equal(compiled(tolerance, radius, offset), function(tolerance, radius, offset))
    torch._dynamo.reset()
    layers = [nprf.torch.Attention(16, 2, scale=scale, position="alibi", near=2) for scale in (1.0, 2.0, 3.0)]
    x = torch.randn(2, 9, 16)
    for layer in layers:
        layer_alone = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(layer_alone(x)[0], layer(x)[0])


def test_positions_and_other_options_of_odd_types():
    q, k, v = tensors(B, H, N, D)
    features = nprf.orf(D, 16)
    y = nprf.torch.attention(q, k, v, features=features, position=None)
    assert torch.equal(y, nprf.torch.attention(q, k, v, features=features))
    for error, text, bias, options in (
        (
            ValueError,
            "position: expected 'table', .* beside a bias, got None",
            torch.zeros(5),
            {"position": None},
        ),
        (ValueError, "bias: expected the parameters of position='table', got None", None, {}),
        (
            TypeError,
            "position: expected a str, a tuple or None, got T5",
            torch.zeros(32),
            {"position": nprf.T5([0] * 32)},
        ),
        (TypeError, "position: expected an integer, got 128.0", torch.zeros(32), {"position": ("t5", 128.0)}),
        (ValueError, "position: expected 'table'", torch.zeros(32), {"position": ("t5", 1, 2)}),
        (ValueError, "position: expected 'table'", torch.zeros(32), {"position": ()}),
        (
            TypeError,
            r"normalization: expected .* none\(\) .*, got float",
            None,
            {"position": None, "normalization": 1.0},
        ),
        (TypeError, "engine: expected a str, got list", None, {"position": None, "engine": []}),
        (ValueError, "engine: expected", None, {"position": None, "engine": "fast"}),
        (ValueError, "softmax_seed: expected 0 to 2.64 - 1, got -1", None, {"position": None, "softmax_seed": -1}),
    ):
        bias = None if bias is None else bias.to(q.dtype)
        with pytest.raises(error, match=text):
            nprf.torch.attention(q, k, v, bias, **{"features": features, "position": "table", **options})


def test_threads_are_those_of_torch():
    q, k, v = tensors(B, H, 300, D, dtype=torch.float32)
    bias = torch.randn(32, requires_grad=True)
    function = lambda: nprf.torch.attention(q, k, v, bias, features=nprf.orf(D, 16), position="t5")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        y = function()
        gradients = torch.autograd.grad(y.square().sum(), (q, k, v, bias))
        assert nprf.num_threads() in (1, before)
        torch.set_num_threads(3)
        assert torch.equal(function(), y)
        others = torch.autograd.grad(function().square().sum(), (q, k, v, bias))
        assert all(torch.equal(a, b) for a, b in zip(gradients, others))
    finally:
        torch.set_num_threads(before)


def test_one_openmp_in_the_process():
    program = """
import torch, nprf.torch
q = torch.randn(1, 2, 300, 8)
nprf.torch.attention(q, q, q, features=nprf.taylor(8))
with open("/proc/self/maps") as maps:
    print({line.split()[-1] for line in maps if "libgomp" in line})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("libgomp") == 1, done.stdout


def test_ctrl_c_ends_a_call():
    before, x = len(_functional._saved), torch.randn(1, 2**18, 8, requires_grad=True)
    with interrupted():
        nprf.torch.attention(x, x, x, features=nprf.orf(8, 64), engine="direct")
    assert len(_functional._saved) == before


@pytest.mark.parametrize("lost", [False, True])
def test_ctrl_c_ends_a_backward(lost):
    """Also one that computes forward again."""
    x = torch.randn(1, 3 * 2**11, 8, requires_grad=True)
    bias = torch.zeros(11, requires_grad=True)
    hooks = (lambda x: x.clone() if lost else x, lambda x: x)
    before = len(_functional._saved)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        y = nprf.torch.attention(x, x, x, bias, features=nprf.orf(8, 64), position="table", engine="direct")
    backward = lambda: torch.autograd.grad(y, [x, bias], x.detach(), retain_graph=True)  # noqa: F821
    expected, whole = seconds(backward)
    with interrupted(after=whole / 8, within=whole / 2):
        backward()
    assert all(torch.equal(a, b) for a, b in zip(backward(), expected))
    with interrupted(after=whole / 8, within=whole / 2):
        y.backward(x.detach())
    assert x.grad is None and bias.grad is None
    del y
    assert len(_functional._saved) == before


def test_vmap():
    q, k, v = tensors(3, H, N, D)
    function = lambda q, k, v: nprf.torch.attention(q, k, v, features=nprf.orf(D, 16))
    y = torch.func.vmap(function)(q, k, v)
    assert torch.equal(y, function(q, k, v))
    bias = torch.randn(3, H, 11, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="bias"):
        torch.func.vmap(
            lambda q, bias: nprf.torch.attention(q, q, q, bias, features=nprf.orf(D, 16), position="table")
        )(q, bias)


def derivative(how, function, x):
    """By ways to differentiate that are not those of torch.autograd."""
    if how == "jvp":
        return torch.func.jvp(function, (x,), (x,))[1]
    if how == "grad":
        return torch.func.grad(function)(x)
    if how == "vjp":
        return torch.func.vjp(function, x)[1](torch.ones(()))[0]
    if how == "vmap of grad":
        return torch.func.vmap(torch.func.grad(function))(x.expand(2, H, N, D))
    with torch.autograd.forward_ad.dual_level():
        y = function(torch.autograd.forward_ad.make_dual(x, x))
        return torch.autograd.forward_ad.unpack_dual(y).tangent


@pytest.mark.parametrize("how", ["jvp", "grad", "vjp", "vmap of grad", "dual"])
def test_derivatives_that_are_not_supported_are_refused(how):
    """In a graph of torch.compile, too."""
    x, features = torch.randn(H, N, D), nprf.orf(D, 16)
    function = lambda x: nprf.torch.attention(x, x, x, features=features).sum()
    text = "attention: expected (derivatives by torch.autograd|reverse-mode derivatives)"
    with pytest.raises(NotImplementedError, match=text):
        derivative(how, function, x)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=text):
        torch.compile(lambda x: derivative(how, function, x), fullgraph=True, backend="aot_eager")(x)
    with pytest.raises(NotImplementedError, match=text):  # after a break
        torch.compile(lambda x: derivative(how, function, x), backend="aot_eager")(x)
    torch._dynamo.reset()
    with pytest.raises(NotImplementedError, match=text):
        derivative(how, torch.compile(function, backend="aot_eager"), x)


def test_what_is_near_to_derivatives_that_are_not_supported():
    """Values under dual_level without tangents, and vmap, also under torch.compile."""
    x, features = torch.randn(2, H, N, D), nprf.orf(D, 16)
    function = lambda x: nprf.torch.attention(x, x, x, features=features)

    def under_a_level(x):
        with torch.autograd.forward_ad.dual_level():
            return function(x)

    torch._dynamo.reset()
    for each in (under_a_level, torch.func.vmap(function)):
        assert torch.equal(each(x), function(x))
        is_graph = each is not under_a_level  # the call breaks a graph, in case that an input has a tangent
        compiled = torch.compile(lambda x: each(x), fullgraph=is_graph, backend="aot_eager")  # noqa: B023
        assert torch.equal(compiled(x), function(x))


def test_other_devices_and_layouts():
    x, f = torch.randn(H, N, D), nprf.orf(D, 16)
    meta, bias = torch.empty(H, N, D, device="meta"), torch.zeros(5)
    for arrays, options in (
        ((x, meta, x), {}),
        ((x, x, meta), {}),
        ((meta, x, x), {}),
        ((x, x, x, bias.to("meta")), {"position": "table"}),
        ((x, x, x), {"key_padding_mask": torch.zeros(N, dtype=torch.bool, device="meta")}),
    ):
        with pytest.raises(ValueError, match="expected a tensor on (cpu|meta), as the queries, got one on"):
            nprf.torch.attention(*arrays, features=f, **options)
    with pytest.raises(ValueError, match="keys: expected a dense tensor"):
        nprf.torch.attention(x, x.to_sparse(), x, features=f)
    for name, arrays in (("queries", (x.numpy(), x, x)), ("values", (x, x, x.tolist()))):
        with pytest.raises(TypeError, match=f"{name}: expected a tensor, got"):
            nprf.torch.attention(*arrays, features=f)
    mask = torch.zeros(N, requires_grad=True)
    with pytest.raises(ValueError, match="key_padding_mask: expected a mask without requires_grad"):
        nprf.torch.attention(x, x, x, features=f, key_padding_mask=mask)


def test_biases_of_extra_tokens_may_have_heads_of_their_own():
    x, f = torch.randn(1, 2, 13, 4, dtype=torch.float64), nprf.orf(4, 8)
    bias, extra = torch.randn(5, 7, dtype=torch.float64), torch.randn(2, 1, 3, dtype=torch.float64)
    options = {"features": f, "position": ("grid", 3, 4)}
    both = bias.expand(2, 5, 7).clone().requires_grad_()
    shared, border = bias.clone().requires_grad_(), extra.clone().requires_grad_()
    y = nprf.torch.attention(x, x, x, shared, extra=border, **options)
    expected = nprf.torch.attention(x, x, x, both, extra=extra, **options)
    assert torch.equal(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(shared.grad, both.grad.sum(0))
    assert border.grad.shape == border.shape and (border.grad != 0).any()
    for wrong in (extra[0, 0], extra[..., :2], torch.zeros(3, 1, 3, dtype=torch.float64)):
        with pytest.raises(ValueError, match="extra: expected"):
            nprf.torch.attention(x, x, x, both, extra=wrong, **options)


def test_a_layer_accepts_the_arguments_of_multihead_attention():
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(embed_dim=16, num_heads=2, batch_first=True, dropout=0.0)
    ours = nprf.torch.Attention(embed_dim=16, num_heads=2, batch_first=True, dropout=0.0, kdim=None, vdim=None)
    ours.load_state_dict(theirs.state_dict())
    nprf.torch.Attention(16, 2, kdim=16, vdim=16)
    for name, value in (("dropout", 0.1), ("batch_first", False), ("kdim", 8), ("add_bias_kv", True)):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            nprf.torch.Attention(16, 2, **{name: value})
    with pytest.raises(TypeError, match="unknown argument 'heds'"):
        nprf.torch.Attention(16, 2, heds=2)
    for heads in ({}, {"heads": 2, "num_heads": 2}):
        with pytest.raises(TypeError, match="one of heads and num_heads"):
            nprf.torch.Attention(16, **heads)
    of_layer = [
        ("num_features: expected None for features='taylor', got 8", {"num_features": 8}),
        ("num_features: expected None beside a feature map", {"num_features": 8, "features": nprf.orf(8, 16)}),
        ("scale: expected a positive number, got -1", {"scale": -1}),
        ("scale: expected 1 beside a normalization, got 2", {"scale": 2, "normalization": nprf.Normalization.none()}),
        ("buckets: expected 32 unless position='t5', got 16", {"buckets": 16, "position": "table"}),
        ("reach: expected 128 unless position='table', got 5", {"reach": 5}),
        ("features: expected one map, or 2 .heads., got 3", {"features": [nprf.orf(8, 4, seed) for seed in range(3)]}),
        ("engine: expected", {"engine": "fast"}),
        ("near: expected 0", {"near": -1}),
        ("near", {"features": nprf.elu(8)}),
        ("buckets: expected at least 1, got 0", {"position": "t5", "buckets": 0}),
        ("reach: expected 0 or more, got -1", {"position": "table", "reach": -1}),
        ("position: expected a grid of at least 1 x 1, got 0 x 3", {"position": ("grid", 0, 3)}),
        ("position: expected .* in a layer, got 'smooth_table'", {"position": "smooth_table"}),
    ]
    for text, options in of_layer:
        with pytest.raises(ValueError, match=text):
            nprf.torch.Attention(16, 2, **options)
    nprf.torch.Attention(16, 2, engine="fused")  # of a GPU
    nprf.torch.Attention(16, 2, position=("t5", 16))  # too short a distance for a causal layer
    with pytest.raises(ValueError, match="max_distance"):
        nprf.torch.Attention(16, 2, position=("t5", 16), causal=True)
    x = torch.randn(2, 5, 16)
    for option in ({"near": 3}, {"lenghts": [5, 4]}):  # of attention, which a layer does not have; misspelt
        with pytest.raises(TypeError, match=f"forward: got an unknown option {next(iter(option))!r}"):
            ours(x, **option)


def test_reset_parameters():
    layer = nprf.torch.Attention(16, 2, position="t5", device="meta").to_empty(device="cpu")
    torch.manual_seed(3)
    layer.reset_parameters()
    assert (layer.position_bias == 0).all() and (layer.in_proj_bias == 0).all() and (layer.out_proj.bias == 0).all()
    assert 0.1 < layer.in_proj_weight.std() < 0.3
    torch.manual_seed(3)
    before = layer.out_proj.weight.clone()
    layer.reset_parameters()
    assert torch.equal(layer.out_proj.weight, before)


def test_a_layer_that_is_made_on_the_meta_device():
    options = {"position": "alibi", "features": "orf", "near": 0, "seed": 7}
    with torch.device("meta"):
        layer = nprf.torch.Attention(16, 2, **options)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    expected = nprf.torch.Attention(16, 2, **options)
    assert torch.equal(layer.position_slopes, expected.position_slopes) and int(layer.features_seed) == 7
    expected.load_state_dict(layer.state_dict())
    x = torch.randn(2, 12, 16)
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0]
    assert torch.equal(y, expected(x)[0])


def test_decoding_under_autocast():
    layer = nprf.torch.Attention(16, 2, position="t5", causal=True)
    x = torch.randn(2, 9, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)[0]
        y = layer.decoder(batch=2)(x)
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, atol=2**-6, rtol=0)


def test_errors():
    q, k, v = tensors(B, H, N, D)
    f = nprf.orf(D, 16)

    def rejects(error, text, *arrays, **options):
        with pytest.raises(error, match=text):
            nprf.torch.attention(*arrays, **{"features": f, **options})

    bias = torch.zeros(11, dtype=torch.float64)
    rejects(ValueError, "keys: expected", q, k[..., :3], v)
    rejects(ValueError, "queries: expected 8 columns", q[..., :5], k[..., :5], v)
    rejects(
        ValueError,
        r"b: expected an odd number of scalars, 2n-1 .*, got 4; of 2n leave out",
        q,
        k,
        v,
        bias[:4],
        position="table",
    )
    rejects(ValueError, "heads", q, k, v, bias.expand(2, 11), position="table")
    rejects(ValueError, "bias: expected 1 dimensions, or 2 with heads, got 0", q, k, v, bias[0], position="table")
    rejects(ValueError, "position: expected 'table'", q, k, v, bias, position="rope")
    rejects(ValueError, "bias: expected the parameters of position='t5', got None", q, k, v, position="t5")
    rejects(ValueError, "extra: expected None without a grid", q, k, v, bias, position="table", extra=bias)
    rejects(ValueError, "layout", q, k, v, layout="x")
    padding = torch.zeros(B, N, dtype=torch.bool)
    rejects(TypeError, "key_padding_mask: expected bool", q, k, v, key_padding_mask=padding.byte())
    rejects(ValueError, "key_padding_mask: expected 0, or at most", q, k, v, key_padding_mask=torch.ones(B, N))
    rejects(ValueError, r"key_padding_mask: expected \[2, 17\]", q, k, v, key_padding_mask=padding[:, 1:])
    rejects(ValueError, r"key_padding_mask: expected \[2, 17\]", q, k, v, key_padding_mask=padding.T)
    rejects(ValueError, r"key_padding_mask: expected \[2, 17\]", q, k, v, key_padding_mask=padding[0])
    rejects(ValueError, "lengths: expected none beside", q, k, v, key_padding_mask=padding, lengths=[N, N])
    rejects(ValueError, r"lengths\[1\]: expected 0 to 17 \(the number of keys\), got 18", q, k, v, lengths=[N, N + 1])
    rejects(ValueError, r"lengths\[0\]: expected 0 to 17", q, k, v, lengths=torch.tensor([-1, N]))
    rejects(ValueError, r"lengths: expected 2 numbers \(one a sequence\), got the shape \[1\]", q, k, v, lengths=[N])
    rejects(TypeError, "lengths: expected integers, got torch.float32", q, k, v, lengths=[1.0, 2.0])
    rejects(ValueError, "tolerance", q, k, v, tolerance=-1.0)
    rejects(TypeError, "queries: expected float32 or float64", *(torch.ones(2, 3, 4, 8, dtype=torch.int64),) * 3)
    rejects(TypeError, "keys: expected torch.float64, as the queries, got torch.int64", q, k.long(), v)
    rejects(TypeError, "values: expected torch.float64, as the queries, got torch.float32", q, k, v.float())
    rejects(ValueError, "grid", q, k, v, torch.zeros(3, 3, dtype=torch.float64), position=("grid", 4, 4))
    rejects(ValueError, "grid", q, k, v, torch.zeros(1, 1, dtype=torch.float64), position=("grid", 0, 0))
    y = nprf.torch.attention(q, k, v, features=f)
    (first,) = torch.autograd.grad(y.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


def layers():
    return {
        "none": {},
        "t5": {"position": "t5"},
        "table": {"position": "table", "reach": 5, "causal": True},
        "alibi": {"position": "alibi", "features": "orf", "near": 0},
        "grid": {"position": ("grid", 3, 4), "near": 2},
        "hyperbolic": {"position": "t5", "features": "hyperbolic", "num_features": 16, "near": 0},
        "sinks=2": {"position": "alibi", "near": 4, "sinks": 2},
    }


def rounding_of_layer(layer, x):
    """How far two computations of a layer may differ by rounding: eps x magnitude x growth.

    The magnitude is the largest output that the projections can make of x. The growth is, in halves of eps for each of
    the two: embed_dim for each of two projections, and what attention loses (rounding of conftest.py), by its own sums
    and by those of the queries and keys, which add embed_dim to the 2 head_dim of an exponent. The exponents of random
    features w.x are at most |w|, and so are those of softmax, q.k / sqrt(d), of the norms of queries and keys.
    """
    d, n = layer.embed_dim, x.shape[1]
    with torch.no_grad():
        q, k, v = layer._project(x, x, x)
        largest = v.abs().max() * layer.out_proj.weight.abs().sum(1).max()
        if layer.normalization == nprf.Normalization.none():
            exponent = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) / layer.head_dim**0.5
        else:
            rows = getattr(layer.features, "rows", lambda: np.eye(1))()
            exponent = 2 * float(np.linalg.norm(rows, axis=1).max())
        if layer.position_bias is not None:
            exponent += float(layer.position_bias.abs().max())
        if layer._position == "alibi":
            exponent += n * float(layer.position_slopes.abs().max())
    growth = 2 * (n + layer.features.output_dim + (2 * layer.head_dim + d + 6) * exponent + 2) + 2 * d
    return torch.finfo(x.dtype).eps * float(largest) * growth


@pytest.mark.parametrize("name", layers())
def test_the_module(name):
    layer = nprf.torch.Attention(24, 3, **layers()[name])
    if layer.position_bias is not None:
        torch.nn.init.normal_(layer.position_bias)
    x = torch.randn(2, 12, 24)
    y, weights = layer(x)
    assert y.shape == x.shape and weights is None
    y.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())
    assert (layer(x, x.clone(), x.clone())[0] - y).abs().max() <= rounding_of_layer(layer, x)
    state = io.BytesIO()
    torch.save(layer.state_dict(), state)
    state.seek(0)
    other = nprf.torch.Attention(24, 3, **{"seed": 99, **layers()[name]})
    other.load_state_dict(torch.load(state))
    assert torch.equal(other(x)[0], y)
    assert torch.equal(copy.deepcopy(layer)(x)[0], y)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0], y)
    assert name in repr(layer) or name in ("none", "hyperbolic")


@pytest.mark.parametrize("name", ["none", "t5", "table", "alibi", "hyperbolic", "sinks=2"])
def test_a_layer_token_by_token(name):
    layer = nprf.torch.Attention(24, 3, **{**layers()[name], "causal": True}, dtype=torch.float64)
    if layer.position_bias is not None:
        torch.nn.init.normal_(layer.position_bias)
    x = torch.randn(2, 50, 24, dtype=torch.float64)
    expected = layer(x)[0].detach()
    close = {"rtol": 0, "atol": rounding_of_layer(layer, x)}
    decoder = layer.decoder(batch=2, rollback=4)
    pieces = [decoder(x[:, :20])] + [decoder(x[:, [i]]) for i in range(20, 40)]
    decoder(torch.randn(2, 3, 24, dtype=torch.float64))
    for sequence in (0, 1):
        decoder.state.rollback(sequence, 3)
    pieces.append(decoder(x[:, 40:]))
    y = torch.cat(pieces, 1)
    assert not y.requires_grad and decoder.state.tokens == [50, 50]
    torch.testing.assert_close(y, expected, **close)
    decoder.state.reset()
    padded, counts = x.clone(), torch.tensor([7, 0])
    padded[0, 7:], padded[0, :7] = x[0, :43], 9
    y = decoder(padded, key_padding_mask=torch.arange(50) < counts[:, None])
    assert decoder.state.tokens == [43, 50] and torch.equal(y[0, :7], layer.out_proj(torch.zeros_like(y[0, :7])))
    decoder.state.reset()
    without = decoder(x, lengths=[43, 50])
    assert torch.equal(y[0, 7:], without[0, :43]) and torch.equal(y[1], without[1])
    with pytest.raises(ValueError, match="lengths: expected none beside a key_padding_mask"):
        decoder(x, [50, 50], torch.zeros(2, 50, dtype=torch.bool))
    with pytest.raises(ValueError, match="key_mask: expected padding .* before the tokens"):
        decoder(x, key_padding_mask=torch.arange(50) > counts[:, None])
    decoder.state.reset()
    y = decoder(x, lengths=[50, 30])
    torch.testing.assert_close(y[0], expected[0], **close)
    torch.testing.assert_close(y[1, :30], expected[1, :30], **close)
    assert decoder.state.tokens == [50, 30]


def test_a_layer_is_made_on_its_device():
    for position in ("t5", "alibi", "table", ("grid", 3, 4), None):
        layer = nprf.torch.Attention(24, 3, position=position, device="meta")
        assert all(each.is_meta for each in layer.parameters())
        assert position != "alibi" or layer.position_slopes.is_meta


def test_layers_that_cannot_go_token_by_token():
    with pytest.raises(ValueError, match="expected a causal one"):
        nprf.torch.Attention(24, 3).decoder()
    with pytest.raises(ValueError, match="by the distance of tokens, got 'grid:3:4'"):
        nprf.torch.Attention(24, 3, position=("grid", 3, 4), near=2, causal=True).decoder()
    with pytest.raises(TypeError, match="float32 or float64, got torch.bfloat16"):
        nprf.torch.Attention(24, 3, causal=True, dtype=torch.bfloat16).decoder()
    with pytest.raises(ValueError, match="layer: expected one on the CPU or a GPU, got one on meta"):
        nprf.torch.Attention(24, 3, position="t5", causal=True, device="meta").decoder()
    decoder = nprf.torch.Attention(24, 3, causal=True).decoder(batch=2)
    with pytest.raises(ValueError, match=r"x: expected \[batch, tokens, 24\], got \[2, 5, 8\]"):
        decoder(torch.randn(2, 5, 8))
    with pytest.raises(ValueError, match="expected 2"):
        decoder(torch.randn(3, 5, 24))
    assert decoder.state.tokens == [0, 0]


def test_the_module_loads_and_approximates_multihead_attention():
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    # every pair is near, so that weights are those of softmax
    ours = nprf.torch.Attention(32, 4, near=50, normalization=nprf.Normalization.none())
    ours.load_state_dict(theirs.state_dict())
    x, memory = torch.randn(2, 20, 32), torch.randn(2, 14, 32)
    padding = torch.arange(20)[None, :] >= torch.tensor([[20], [11]])
    close = rounding_of_layer(ours, torch.cat([x, memory], 1))
    with torch.no_grad():
        masked = theirs(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        assert (ours(x, x, x, key_padding_mask=padding)[0] - masked).abs().max() <= close
        assert (ours(x, memory, memory)[0] - theirs(x, memory, memory)[0]).abs().max() <= close
    with pytest.raises(ValueError, match="need_weights"):
        ours(x, need_weights=True)
    with pytest.raises(ValueError, match="attn_mask"):
        ours(x, attn_mask=torch.zeros(20, 20))


def test_what_a_state_dict_of_multihead_attention_lacks():
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    for position, lacks in (("t5", "position_bias"), ("alibi", "position_slopes")):
        ours = nprf.torch.Attention(32, 4, position=position, features="orf", near=0)
        kept = {name: x.clone() for name, x in ours.state_dict().items()}
        with pytest.raises(RuntimeError, match=lacks):
            ours.load_state_dict(theirs.state_dict())
        missing = ours.load_state_dict(theirs.state_dict(), strict=False)
        assert set(missing.missing_keys) == {lacks, "features_seed"} and not missing.unexpected_keys
        for name, x in ours.state_dict().items():
            assert torch.equal(x, kept[name] if name in missing.missing_keys else theirs.state_dict()[name])


def test_redraw():
    layer = nprf.torch.Attention(24, 3, position="alibi", features="orf", near=0, seed=4)
    x = torch.randn(2, 12, 24)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    before = compiled(x)[0]
    layer.redraw()
    assert layer.features == nprf.orf(8, 8, seed=5) and int(layer.features_seed) == 5
    after = compiled(x)[0]  # no new graph
    assert torch.equal(after, layer(x)[0]) and not torch.equal(after, before)
    with pytest.raises(ValueError, match="random vectors"):
        nprf.torch.Attention(24, 3).redraw()


def test_layers_that_are_compiled_one_by_one_share_a_graph():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    layers = [nprf.torch.Attention(16, 2, position="t5", features="orf", near=0, seed=n) for n in range(10)]
    x = torch.randn(2, 12, 16)
    for layer in layers:
        compiled = torch.compile(layer, fullgraph=True, backend=backend)
        assert torch.equal(compiled(x)[0], layer(x)[0])
    assert len(graphs) == 1
    torch._dynamo.reset()
    for layer in layers[:2]:  # their gradients, too
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        gradients = []
        for each in (compiled, layer):
            layer.zero_grad()
            each(x)[0].square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
        for ours, expected in zip(*gradients):
            assert torch.equal(ours, expected)


def maps_with_constants():
    """Two of each kind."""
    rng = np.random.default_rng(3)
    q, k, v = rng.standard_normal((3, 2, 3, 60, 8)) * np.linspace(0.3, 1, 8)
    centrings = [nprf.balance(q[i, 0], k[i, 0]).centring for i in range(2)]
    rows = [np.asarray(rng.standard_normal((5, 8)), dtype) for dtype in (np.float32, np.float64)]
    return {
        "calibrated": [nprf.calibrate(q[i, 0], k[i, 0], v[i, 0], num_features=9).features for i in range(2)],
        "calibrated heads": [nprf.calibrate(q[i], k[i], v[i], num_features=9).features for i in range(2)],
        "projected": [nprf.ProjectedFeatures(kind, x) for kind, x in zip(("positive", "hyperbolic"), rows)],
        "centred": [nprf.CentredFeatures(nprf.taylor(8, i), c) for i, c in enumerate(centrings)],
        "centred random": [
            nprf.CentredFeatures(nprf.orf(8, 4, seed=2**64 - 1 - i), c) for i, c in enumerate(centrings)
        ],
        "heads": [nprf.HeadFeatures([nprf.orf(8, 8, seed) for seed in range(i, i + 3)]) for i in range(2)],
        "tilted": [nprf.RandomFeatures("positive", 8, 6, seed=i, tilt=nprf.oprf_tilt(8, 1.0 + i)) for i in range(2)],
    }


@pytest.mark.parametrize("name", maps_with_constants())
def test_a_state_dict_has_the_constants_of_the_feature_map(name):
    one, other = maps_with_constants()[name]
    layer, fresh = (nprf.torch.Attention(24, 3, features=each, near=4, position="t5") for each in (one, other))
    x, file = torch.randn(2, 12, 24), io.BytesIO()
    y = layer(x)[0]
    assert layer.state_dict()["features_constants"].dtype == torch.uint8
    torch.save(layer.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict({n: p for n, p in layer.state_dict().items() if "features" not in n}, strict=False)
    assert not torch.equal(fresh(x)[0], y)
    torch._dynamo.reset()
    compiled = torch.compile(fresh, fullgraph=True, backend="aot_eager")
    compiled(x)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert fresh.features == one and torch.equal(fresh(x)[0], y) and torch.equal(compiled(x)[0], y)
    if name in ("heads", "tilted", "centred random"):
        layer.redraw()
        fresh.load_state_dict(layer.state_dict())
        assert fresh.features == layer.features != one
        layer.redraw(), fresh.redraw()
        assert fresh.features == layer.features
    # a state dict of a layer around it, and one of an older version, without them
    model = torch.nn.Sequential(fresh)
    model.load_state_dict(torch.nn.Sequential(nprf.torch.Attention(24, 3, features=one, position="t5")).state_dict())
    assert fresh.features == one
    state = layer.state_dict()
    del state["features_constants"]
    kept = nprf.torch.Attention(24, 3, features=one, position="t5")
    kept.load_state_dict(state)
    assert kept.features == one
    kept.reset_parameters()
    assert kept.features == one


def test_constants_that_do_not_fit():
    layer = nprf.torch.Attention(24, 3)
    assert set(layer.state_dict()) == set(torch.nn.MultiheadAttention(24, 3).state_dict())
    wide = nprf.torch.Attention(24, 2, features=nprf.ProjectedFeatures("positive", np.eye(12)))
    before = layer.features
    with pytest.raises(RuntimeError, match="features: expected a map of vectors of 8 numbers, got ProjectedFeatures"):
        layer.load_state_dict(wide.state_dict())
    of_two = nprf.torch.Attention(16, 2, features=[nprf.orf(8, 16, seed) for seed in range(2)])
    with pytest.raises(RuntimeError, match="features: expected one map, or 3 .heads., got 2"):
        layer.load_state_dict({**layer.state_dict(), "features_constants": of_two.state_dict()["features_constants"]})
    state = layer.state_dict()
    maps = (b'{"class": "system"}', b'{"class": "Tilt", "axes": 3, "a": 2}', b"[]", b"[" * 100000)
    for text in (b"", b"nonsense", b"[]", *(b'{"redraws": 0, "map": ' + each + b"}" for each in maps)):
        state["features_constants"] = torch.tensor(list(text), dtype=torch.uint8)
        with pytest.raises(RuntimeError, match="features_constants: expected"):
            layer.load_state_dict(state)
    for other in ("text", torch.zeros(3), torch.zeros((2, 2), dtype=torch.uint8)):
        state["features_constants"] = other
        with pytest.raises(RuntimeError, match="features_constants: expected a tensor uint8"):
            layer.load_state_dict(state)
    assert layer.features is before
    random = nprf.torch.Attention(24, 3, features="orf", seed=5)
    tilted = nprf.RandomFeatures("positive", 8, 6, tilt=nprf.oprf_tilt(8, 1.0))
    for features in (tilted, nprf.HeadFeatures([nprf.orf(8, 8, seed) for seed in range(3)])):
        with pytest.raises(RuntimeError, match="features_constants: expected none beside features_seed, got those of"):
            random.load_state_dict(nprf.torch.Attention(24, 3, features=features).state_dict(), strict=False)
    assert random.features.seed == 5 and int(random.features_seed) == 5
    layer.reset_parameters(), random.reset_parameters()


def test_state_dicts_of_older_versions():
    """In them maps with a tilt have a seed, too, and bytes are not padded."""
    tilted = nprf.RandomFeatures("positive", 8, 6, seed=3, tilt=nprf.oprf_tilt(8, 1.0))
    layer = nprf.torch.Attention(24, 3, features=tilted)
    state = {**layer.state_dict(), "features_seed": torch.tensor(3)}
    state["features_constants"] = torch.tensor(list(bytes(state["features_constants"].tolist()).rstrip()))
    fresh = nprf.torch.Attention(24, 3, features=tilted.redraw(8))
    for assign in (False, True):
        fresh.load_state_dict({n: x.to(torch.uint8) if "const" in n else x for n, x in state.items()}, assign=assign)
        assert fresh.features == tilted
        fresh.redraw(), layer.redraw(4)
        assert torch.equal(fresh.features_constants, layer.features_constants)
    del state["features_constants"]
    fresh.load_state_dict(state)
    assert fresh.features == tilted


def test_options_mean_the_same_in_a_graph():
    q = torch.randn(1, 2, 9, 8)
    features = nprf.taylor(8)

    def attend(**options):
        return nprf.torch.attention(q, q, q, features=features, **options)

    options = {"causal": True, "near": True, "check_finite": True}
    y = attend(**options)
    assert torch.equal(torch.compile(attend, fullgraph=True, backend="aot_eager")(**options), y)
    of_numpy = {"causal": np.bool_(True), "near": np.int64(1)}
    for call in (attend, torch.compile(attend, backend="aot_eager")):  # with a break
        assert torch.equal(call(**of_numpy), y)
    for name in ("near", "offset", "sinks", "salient", "softmax_seed"):
        for call in (attend, torch.compile(attend, backend="aot_eager")):
            with pytest.raises(TypeError, match=f"{name}: expected an integer"):
                call(**{name: 1.5})
    for name in ("causal", "check_finite", "report"):
        for value in (1, "yes", None, torch.tensor(True)):
            for call in (attend, torch.compile(attend, backend="aot_eager")):
                with pytest.raises(TypeError, match=f"{name}: expected True or False, got"):
                    call(**{name: value})


def test_arguments_of_other_types():
    q = torch.randn(1, 2, 9, 8)
    for arguments, name in (((None, q, q), "queries"), ((q, None, q), "keys"), ((q, q, None), "values")):
        with pytest.raises(TypeError, match=f"^{name}: expected a tensor, got NoneType"):
            nprf.torch.attention(*arguments, features=nprf.taylor(8))
    with pytest.raises(TypeError, match="gradient_report: expected a function, got int"):
        nprf.torch.attention(q, q, q, features=nprf.taylor(8), gradient_report=3)
    for lengths in ([None], {0: 1}, "nine"):
        with pytest.raises(TypeError, match="lengths: expected integers"):
            nprf.torch.attention(q, q, q, features=nprf.taylor(8), lengths=lengths)
    for empty in ([], torch.empty(0), torch.empty(0, dtype=torch.int64)):
        with pytest.raises(ValueError, match="cumulative_lengths: expected .sequences . 1., got the shape .0."):
            nprf.torch.attention(q, q, q, features=nprf.taylor(8), cumulative_lengths=empty)


def test_a_graph_inside_a_level_of_forward_ad_loses_no_tangent():
    q = torch.randn(1, 2, 9, 8)

    def attend(x):
        return nprf.torch.attention(x, q, q, features=nprf.taylor(8)) + (x * x).sum()

    compiled = torch.compile(attend, backend="aot_eager")
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(compiled(q), attend(q))
        with pytest.raises(NotImplementedError, match="forward_ad"):
            compiled(torch.autograd.forward_ad.make_dual(q, torch.ones_like(q)))


def test_options_of_a_call_of_a_layer():
    layer = nprf.torch.Attention(24, 3, position="t5", features="orf", near=0, causal=True)
    x, reports = torch.randn(1, 12, 24), []
    y, report = layer(x, report=True, softmax_samples=5, gradient_report=reports.append)
    assert report.compared_rows == 3 * 5 and report.softmax_error > 0
    y.sum().backward()
    assert isinstance(reports[0], nprf.GradientReport)
    packed, _ = layer(x, cumulative_lengths=[0, 5, 12])
    for rows in (slice(0, 5), slice(5, 12)):
        torch.testing.assert_close(packed[:, rows], layer(x[:, rows])[0])
    assert torch.equal(layer(x[0], cumulative_lengths=[0, 5, 12])[0], packed[0])
    padded, _ = layer(x, lengths=[7])
    assert torch.equal(padded, layer(x, key_padding_mask=torch.arange(12)[None] >= 7)[0])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, cumulative_lengths=torch.tensor([0, 5, 12]))[0], packed)
    with pytest.raises(ValueError, match="expected finite numbers"):
        layer(x * torch.nan, check_finite=True)
    with pytest.raises(ValueError, match="nested tensor only for self-attention without masks and options of a call"):
        layer(torch.nested.as_nested_tensor([x[0], x[0, :5]]), check_finite=True)


def test_redraw_of_maps_without_a_seed_of_their_own():
    maps = nprf.HeadFeatures([nprf.orf(8, 8, seed) for seed in range(3)])
    layer = nprf.torch.Attention(24, 3, features=maps)
    found = [maps]
    for _ in range(3):
        layer.redraw()
        assert layer.features not in found
        found.append(layer.features)


def test_a_layer_learns():
    """To attend three tokens back, by its bias.

    Of independent tokens of variance 1, weights w explain w_3^2 / sum_j w_j^2 of the variance of the third last one:
    with less than half left, it has more weight than all others together.
    """
    layer = nprf.torch.Attention(16, 2, position="table", reach=6, near=0, features="orf", num_features=32)
    optimizer = torch.optim.Adam(layer.parameters(), 0.03)
    for _ in range(100):
        x = torch.randn(8, 24, 16)
        loss = (layer(x)[0][:, 3:] - x[:, :-3]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5


def test_a_causal_call_says_how_queries_and_keys_are_aligned():
    q, k, v = (x.detach() for x in tensors(B, H, N, D))
    bias = torch.randn(H, 11, dtype=torch.float64)
    options = {"features": nprf.orf(D, 16), "position": "table", "causal": True}
    whole = nprf.torch.attention(q, k, v, bias, **options)
    attend = lambda q, k, v, **at: nprf.torch.attention(q, k, v, bias, **options, **at)
    one = q[:, :, -1:]
    for offset in (N - 1, np.int64(N - 1), torch.tensor(N - 1), torch.tensor([N - 1], dtype=torch.int32)):
        torch.testing.assert_close(attend(one, k, v, offset=offset), whole[:, :, -1:])
    text = "offset: expected one for a causal call of 1 queries and 17 keys, got none: 0 .* 16 the last query"
    for call in (attend, torch.compile(attend, backend="aot_eager")):
        with pytest.raises(ValueError, match=text):
            call(one, k, v)
        assert torch.equal(call(q[:, :, :0], k, v), q[:, :, :0]) and torch.equal(call(q, k, v), whole)
    with pytest.raises(ValueError, match=text):
        nprf.torch.attention(*(x.transpose(1, 2) for x in (one, k, v)), bias, layout="tokens_first", **options)
    packed = {"cumulative_lengths": [0, 5, N], "key_cumulative_lengths": [0, 4, N]}
    with pytest.raises(ValueError, match="offset: expected one for a causal call with key_cumulative_lengths"):
        attend(q[:1], k[:1], v[:1], **packed)
    for error, text, offset in (
        (TypeError, "offset: expected integers, got torch.float32", torch.tensor(1.0)),
        (TypeError, "offset: expected an integer, got '3'", "3"),
        (ValueError, r"offset: expected one integer, got the shape \[2\]", torch.tensor([1, 2])),
        (ValueError, "offset: expected an integer of 64 bits", 2**70),
        (ValueError, r"offset: expected -2\^40 to 2\^40", 2**41),
    ):
        with pytest.raises(error, match=text):
            attend(q, k, v, offset=offset)


def test_what_differs_from_call_to_call_needs_no_new_graph():
    """Sizes, offsets, and lengths of sequences: two graphs at most, one for the first and one for all others. They have
    the numbers of calls without a graph, and their gradients."""
    bias, features = torch.randn(H, 11), nprf.orf(D, 16)

    def attend(q, k, bias, **options):
        return nprf.torch.attention(q, k, k, bias, features=features, position="table", near=3, **options)

    def random(n, batch=B):
        return torch.randn(batch, H, n, D)

    calls = {
        "an offset": lambda i: {"q": random(1), "k": random(i + 1), "causal": True, "offset": i},
        "a tensor": lambda i: {"q": random(1), "k": random(i + 1), "causal": True, "offset": torch.tensor(i)},
        "sizes": lambda i: {"q": random(i + 5), "k": random(i + 5), "causal": True},
        "lengths": lambda i: {"q": random(20), "k": random(20), "lengths": [i, 20]},
        "packed": lambda i: {"q": random(20, 1), "k": random(20, 1), "cumulative_lengths": [0, i + 2, 20]},
        "padding": lambda i: {"q": random(20), "k": random(20), "key_padding_mask": torch.rand(B, 20) < i / 20},
    }
    for name, call in calls.items():
        torch._dynamo.reset()
        graphs = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(attend, fullgraph=True, backend=graphs, dynamic=None)
        for i in range(12):
            inputs, leaf = call(i), bias.clone().requires_grad_()
            y, expected = compiled(bias=leaf, **inputs), attend(bias=leaf, **inputs)
            assert torch.equal(y, expected), name
            found, wanted = (torch.autograd.grad(each.square().sum(), leaf)[0] for each in (y, expected))
            assert torch.equal(found, wanted), name
        assert graphs.frame_count <= 2, name


def test_dynamo_is_imported_by_nobody_but_who_traces():
    """Its 900 modules take seconds."""
    program = """
import sys, torch, nprf, nprf.torch

x = torch.randn(1, 9, 16, requires_grad=True)
for features in ("taylor", "orf", [nprf.orf(8, 8, seed) for seed in range(2)]):
    layer = nprf.torch.Attention(16, 2, position="t5", features=features, near=2, causal=True)
    for mask in (None, torch.zeros(1, 9, dtype=torch.bool), torch.zeros(1, 9)):
        y, report = layer(x, key_padding_mask=mask, report=True)
        y.sum().backward()
    layer.load_state_dict(layer.state_dict())
    with torch.no_grad():
        layer.decoder()(x)


class T5Attention(torch.nn.Module):
    n_heads, has_relative_attention_bias = 2, True

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(16, 16) for _ in range(4))
        self.relative_attention_bias = torch.nn.Embedding(8, 2)

    def forward(self, hidden_states):
        raise NotImplementedError


model = torch.nn.ModuleList([T5Attention()])
nprf.torch.replace_attention(model)
for mask in (None, torch.ones(1, 1, 9, 9, dtype=torch.bool), torch.zeros(1, 1, 1, 9)):
    model[0](x, mask=mask)[0].sum().backward()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_arguments_by_place_are_those_of_multihead_attention():
    theirs = torch.nn.MultiheadAttention(16, 2, 0.0, False, False, False, None, None, True, "cpu", torch.float64)
    ours = nprf.torch.Attention(16, 2, 0.0, False, False, False, None, None, True, "cpu", torch.float64, near=50)
    assert ours.in_proj_bias is None and ours.in_proj_weight.dtype == torch.float64
    ours.load_state_dict(theirs.state_dict())
    query, memory = torch.randn(2, 2, 5, 16, dtype=torch.float64)
    y, weights = ours(query, memory, memory)
    expected, _ = theirs(query, memory, memory, need_weights=False)
    assert weights is None and y.shape == expected.shape
    exact = nprf.torch.Attention(
        16, 2, 0.0, False, near=50, normalization=nprf.Normalization.none(), dtype=torch.float64
    )
    exact.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(exact(query, memory, memory)[0], expected)
    assert torch.equal(ours(query, memory, memory, None, False)[0], y)
    for error, text, by_place, by_name in (
        (ValueError, "dropout: expected 0.0, got 0.1", (0.1,), {}),
        (ValueError, "add_zero_attn: expected False, got True", (0.0, True, False, True), {}),
        (TypeError, "bias: expected one value, got one by place and one by name", (0.0, False), {"bias": False}),
        (TypeError, "bias: expected True or False, got 'no'", (0.0, "no"), {}),
        (TypeError, "Attention: expected at most 11 arguments by place, got 12", (0.0,) * 10, {}),
        (TypeError, "causal: expected True or False, got 'no'", (), {"causal": "no"}),
    ):
        with pytest.raises(error, match=text):
            nprf.torch.Attention(16, 2, *by_place, **by_name)


def test_biases_as_other_libraries_have_them():
    q, k, v = tensors(B, 8, N, D)
    embedding = torch.nn.Embedding(8, 8, dtype=torch.float64)
    options = {"features": nprf.orf(D, 16), "position": "t5", "near": 2}
    y = nprf.torch.attention(q, k, v, embedding.weight.t(), bias_layout="heads_first", **options)
    dy = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, embedding.weight, dy)
    attend = lambda bias, **more: nprf.torch.attention(q, k, v, bias, **options, **more)
    for call in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        for bias, more in ((embedding, {}), (embedding.weight, {"bias_layout": "heads_last"})):
            found = call(bias, **more)
            assert torch.equal(found, y)
            assert torch.equal(torch.autograd.grad(found, embedding.weight, dy)[0], expected)
    transposed = nprf.torch.attention(q, k, v, embedding.weight, bias_layout="heads_first", **options)
    assert not torch.equal(transposed, y)
    other, table = torch.nn.Embedding(32, 8, dtype=torch.float64), torch.zeros(8, 8, dtype=torch.float64)
    assert torch.equal(attend(other), attend(other.weight.t().contiguous()))
    grid = torch.randn(5, 7, 8, dtype=torch.float64)
    twelve = [x[:, :, :12] for x in (q, k, v)]
    of_grid = {"features": options["features"], "position": ("grid", 3, 4)}
    assert torch.equal(
        nprf.torch.attention(*twelve, grid, bias_layout="heads_last", **of_grid),
        nprf.torch.attention(*twelve, grid.movedim(-1, 0), **of_grid),
    )
    wrong = torch.zeros(8, 32, dtype=torch.float64)
    wrong[2, 3] = torch.nan
    for text, bias, more in (
        (r"bias: expected \[8, ..\] \(heads first\), got the shape \[32, 8\], .* pass bias_layout=", other.weight, {}),
        (r"bias_layout: expected 'heads_first', or 'heads_last' .* of the shape \[8, 8\]", embedding.weight, {}),
        (
            r"bias_layout: expected 'heads_first', or 'heads_last' .* of the shape \[8, 8\]",
            table,
            {"position": "table"},
        ),
        ("bias_layout: expected 'heads_last', as an nn.Embedding", other, {"bias_layout": "heads_first"}),
        ("bias_layout: expected 'heads_first' or 'heads_last', got 'x'", other.weight, {"bias_layout": "x"}),
        (r"bucket_weights\[3\]: expected .*, got nan in head 2", wrong, {}),
        (
            "2n-1 for the lags .*, got 60; of 2n leave out",
            torch.zeros(8, 60, dtype=torch.float64),
            {"position": "table"},
        ),
        (
            r"bias: expected .* got 4; the table of a matrix .* is nprf.RelativePosition.of_matrix\(bias\).b",
            torch.zeros(1, 8, N, N, dtype=torch.float64),
            {"position": "table"},
        ),
        ("position: expected 'table', .* beside a bias, got None", torch.zeros(33), {"position": None}),
    ):
        with pytest.raises(ValueError, match=text):
            nprf.torch.attention(q, k, v, bias, **{**options, **more})
    layer = nprf.torch.Attention(64, 8, position="t5", buckets=8)  # as many heads as buckets
    assert layer(torch.randn(1, 5, 64))[0].shape == (1, 5, 64)


def test_masks_of_the_other_polarity_are_named():
    q, layer = torch.randn(1, 2, 9, 8), nprf.torch.Attention(16, 2)
    text = "key_mask: expected key_padding_mask=~key_mask, whose True is padding, got key_mask, whose True keeps a key"
    for call in (
        lambda **options: nprf.torch.attention(q, q, q, features=nprf.taylor(8), **options),
        lambda **options: layer(torch.randn(1, 9, 16), **options),
    ):
        with pytest.raises(TypeError, match=text):
            call(key_mask=torch.ones(1, 9, dtype=torch.bool))
        with pytest.raises(TypeError, match="got an unknown option 'mask'"):
            call(mask=None)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_parts_of_sequences_are_refused(tmp_path):
    """In a process group of one, where a part is the whole: the call cannot know."""
    tensor = pytest.importorskip("torch.distributed.tensor")
    experimental = pytest.importorskip("torch.distributed.tensor.experimental")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        q, layer = torch.randn(1, 2, 16, 8), nprf.torch.Attention(16, 2)
        attend = lambda q, k: nprf.torch.attention(q, k, q, features=nprf.taylor(8), near=3)
        torch._dynamo.reset()
        compiled = torch.compile(attend, backend="aot_eager")
        y = attend(q, q)
        assert torch.equal(compiled(q, q), y)
        with experimental.context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
            for call in (lambda: attend(q, q), lambda: compiled(q, q), lambda: layer(torch.randn(1, 5, 16))):
                with pytest.raises(
                    NotImplementedError, match="attention: expected whole sequences, got a call in torch"
                ):
                    call()
        assert torch.equal(attend(q, q), y) and torch.equal(compiled(q, q), y)
        shards = tensor.distribute_tensor(q, mesh, [tensor.Shard(2)])
        for call in (attend, compiled):
            for arrays, name in (((shards, shards), "queries"), ((q, shards), "keys")):
                with pytest.raises(NotImplementedError, match=f"{name}: expected a tensor, got a DTensor: of shards"):
                    call(*arrays)
        heads = experimental.local_map(
            attend, [tensor.Shard(1)], in_placements=([tensor.Shard(1)],) * 2, device_mesh=mesh
        )
        by_heads = tensor.distribute_tensor(q, mesh, [tensor.Shard(1)])
        assert torch.equal(heads(by_heads, by_heads).full_tensor(), y)
    finally:
        torch.distributed.destroy_process_group()
