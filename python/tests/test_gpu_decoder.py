# SPDX-License-Identifier: MIT
"""nprf.torch.GpuDecoder, beside nprf.Decoder on the CPU; without a GPU over the stand-in, as test_gpu.py."""

import nprf
import numpy as np
import pytest
from conftest import assert_as_exact, gpu, positions

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from nprf.torch import _decoder, _integers  # noqa: E402

B, H, N, D, V = 2, 4, 17, 8, 5


def tokens(n=N, kv_heads=H):
    """q, k, v of the batch, in float32."""
    torch.manual_seed(3)
    return torch.randn(B, H, n, D), torch.randn(B, kv_heads, n, D), torch.randn(B, kv_heads, n, V)


def part(x, first, last):
    return [each[:, :, first:last] for each in x]


class Both:
    """A decoder on the GPU, and those on the CPU in float64 and float32, which get the same calls."""

    def __init__(self, features, position=None, kv_heads=H, rollback=0, max_tokens=0, **options):
        self.device = gpu()
        self.on_gpu = nprf.torch.GpuDecoder(
            features,
            position,
            heads=H,
            channels=V,
            kv_heads=kv_heads,
            batch=B,
            rollback=rollback,
            max_tokens=max_tokens,
            device=self.device,
            **options,
        )
        self.on_cpu = [
            nprf.Decoder(features, position, heads=H, batch=B, rollback=rollback, dtype=dtype, **options)
            for dtype in (np.float64, np.float32)
        ]

    def step(self, *x, lengths=None):
        y = self.on_gpu.step(*(each.to(self.device) for each in x), lengths)
        exact, in_float = (self.rows(decoder, x, lengths) for decoder in self.on_cpu)
        assert_as_exact([y], [in_float], [exact])
        return y

    @staticmethod
    def rows(decoder, x, lengths):
        options = {} if lengths is None else {"lengths": lengths}
        return torch.from_numpy(decoder.step(*(each.numpy().astype(decoder.dtype) for each in x), **options))

    def do(self, name, *arguments):
        for decoder in (self.on_gpu, *self.on_cpu):
            getattr(decoder, name)(*arguments)
        assert self.on_gpu.tokens == self.on_cpu[0].tokens


def maps():
    q, k, v = np.random.default_rng(0).standard_normal((3, 64, D))
    return {
        "orf": nprf.orf(D, 16, seed=7),
        "hyperbolic": nprf.hyperbolic(D, 8),
        "taylor": nprf.taylor(D),
        "calibrated": nprf.calibrate(q, k, v, nprf.Alibi(0.1), num_features=D + 1, near=3).features,
        "one for each head": nprf.HeadFeatures([nprf.orf(D, 16, seed=s) for s in range(H)]),
    }


@pytest.mark.parametrize(
    "name, near, sinks",
    [("orf", 0, 0), ("hyperbolic", 0, 0), ("one for each head", 0, 1), ("taylor", 3, 2), ("calibrated", 3, 0)],
)
def test_steps_have_the_rows_of_the_cpu(name, near, sinks):
    x = tokens()
    for position in positions(np.random.default_rng(7), H).values():
        options = {"near": near, "sinks": sinks}
        if hasattr(position, "reach"):  # a curve
            for most in (0, position.reach + 2):
                with pytest.raises(ValueError, match=f"max_tokens: expected 1 to {position.reach + 1}, .* got {most}"):
                    Both(maps()[name], position, max_tokens=most, **options)
            if position.reach + 1 < N:
                continue
            options["max_tokens"] = N
        both = Both(maps()[name], position, **options)
        for first, last in ((0, 6), (6, 7), (7, 8), (8, 13), (13, N)):
            both.step(*part(x, first, last))
        assert both.on_gpu.tokens == [N] * B and both.on_gpu.nbytes > 0
        assert both.on_gpu.counts["failing_rows"] == 0


def test_grouped_queries_and_strides():
    x = tokens(kv_heads=2)
    both = Both(nprf.taylor(D), nprf.Alibi(0.1), kv_heads=2, near=4)
    y = both.step(*x)
    tokens_first = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in x]
    both.on_gpu.reset()
    assert torch.equal(both.on_gpu.step(*(each.to(both.device) for each in tokens_first)), y)
    both.on_gpu.reset()
    channels_apart = [torch.stack([each, each], -1)[..., 0] for each in x]
    assert torch.equal(both.on_gpu.step(*(each.to(both.device) for each in channels_apart)), y)


def test_appended_tokens_are_those_of_a_step():
    both = Both(nprf.orf(D, 16), nprf.T5(np.linspace(-1, 1, 32)), near=2)
    q, k, v = (each.to(both.device) for each in tokens())
    y = both.on_gpu.step(q, k, v)
    both.on_gpu.reset()
    assert both.on_gpu.tokens == [0, 0]
    both.on_gpu.append(k[:, :, :9], v[:, :, :9], lengths=[9, 9])
    assert torch.equal(both.on_gpu.step(*part((q, k, v), 9, N)), y[:, :, 9:])


def test_lengths():
    both = Both(nprf.orf(D, 16), nprf.Alibi(0.1))
    x = tokens()
    y = both.step(*part(x, 0, 9), lengths=[9, 4])
    assert not y[1, :, 4:].any() and both.on_gpu.tokens == [9, 4]
    both.step(*part(x, 9, 12), lengths=torch.tensor([0, 3]))
    assert both.on_gpu.tokens == [9, 7]


def test_sequences():
    both = Both(nprf.taylor(D), nprf.T5(np.linspace(-1, 1, 32)), rollback=6, near=3)
    x = tokens(24)
    both.step(*part(x, 0, 12))
    both.do("rollback", 1, 3)
    both.step(*part(x, 12, 14))
    both.do("reorder", [1, 0])
    both.step(*part(x, 14, 15))
    both.do("fork", 1, 0)
    both.step(*part(x, 15, 18))
    both.do("reset", 0)
    both.step(*part(x, 18, 24))
    both.on_gpu.rollback_each(torch.tensor([2, 0], device=both.device))
    for decoder in both.on_cpu:
        decoder.rollback(0, 2)
    both.on_gpu.reorder(torch.tensor([0, 0], device=both.device))
    for decoder in both.on_cpu:
        decoder.reorder([0, 0])
    both.step(*part(x, 0, 2))
    assert both.on_gpu.tokens == both.on_cpu[0].tokens
    both.on_gpu.rollback(1, 100)  # more than there are
    assert both.on_gpu.tokens == both.on_cpu[0].tokens and both.on_gpu.counts["rejected_rollbacks"] == 1
    both.do("reset")
    assert not any(both.on_gpu.counts.values())


def test_what_is_counted_instead_of_an_error():
    """Integers on a GPU, which are not checked; over the stand-in the module gets them without the check."""
    both = Both(nprf.orf(D, 16), rollback=2)
    q, k, v = (each.to(both.device) for each in tokens())
    decoder = both.on_gpu
    decoder.step(q, k, v)

    def each(*numbers):
        return torch.tensor(numbers, dtype=torch.int32, device=both.device)

    decoder._decoder.reorder(each(0, 7), decoder._stream())
    decoder._decoder.rollback_each(each(-1, 1), decoder._stream())
    assert decoder.counts["rejected_reorders"] == 1 and decoder.counts["rejected_rollbacks"] == 1
    assert decoder.tokens == [N, N - 1]
    decoder._decoder.append(k, v, each(-3, 100), decoder._stream())  # are clamped
    assert decoder.tokens == [N, 2 * N - 1]


def test_no_tokens():
    both = Both(nprf.orf(D, 16))
    assert both.step(*tokens(0)).shape == (B, H, 0, V)
    both.on_gpu.append(*(each.to(both.device) for each in tokens(0)[1:]))
    assert both.on_gpu.tokens == [0, 0]


def test_tensors_whose_numbers_are_negated_in_memory():
    both = Both(nprf.orf(D, 16))
    q, k, v = (each.to(both.device) for each in tokens())
    y = both.on_gpu.step(q, k, v)
    both.on_gpu.reset()
    assert torch.equal(both.on_gpu.step(torch._neg_view(-q), torch._neg_view(-k), torch._neg_view(-v)), y)


def test_max_tokens():
    both = Both(nprf.orf(D, 16))
    q, k, v = (each.to(both.device) for each in tokens())
    few = nprf.torch.GpuDecoder(
        nprf.orf(D, 16), heads=H, channels=V, batch=B, max_tokens=10, near=4, device=both.device
    )
    y = few.step(q, k, v)
    assert torch.isfinite(y[:, :, :10]).all() and torch.isnan(y[:, :, 10:]).all()
    assert few.tokens == [10, 10] and few.counts["rejected_tokens"] == 2 * H * (N - 10)


def test_types():
    device = gpu()
    options = {"heads": H, "channels": V, "batch": B, "device": device}
    decoder = nprf.torch.GpuDecoder(nprf.orf(D, 16), dtype="float32", **options)
    assert decoder.dtype == torch.float32
    for dtype in ("float64", torch.float64, 3):
        with pytest.raises(TypeError, match="dtype: expected float32, float16 or bfloat16 on a GPU"):
            nprf.torch.GpuDecoder(nprf.orf(D, 16), dtype=dtype, **options)
    with pytest.raises(TypeError, match="keys: expected a tensor, got ndarray"):
        decoder.append(np.zeros((B, H, 3, D), np.float32), torch.zeros(B, H, 3, V, device=device))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype):
    device = gpu()
    from nprf import _cuda

    if not _cuda.halves:
        pytest.skip("nprf was compiled for float32 alone: -D NPRF_PYTHON_CUDA_HALVES=OFF")
    x = [each.to(dtype) for each in tokens()]
    decoder = nprf.torch.GpuDecoder(
        nprf.orf(D, 16), nprf.Alibi(0.1), heads=H, channels=V, batch=B, dtype=dtype, device=device
    )
    y = decoder.step(*(each.to(device) for each in x))
    assert y.dtype == dtype
    exact = nprf.Decoder(nprf.orf(D, 16), nprf.Alibi(0.1), heads=H, batch=B, dtype=np.float64)
    expected = torch.from_numpy(exact.step(*(each.double().numpy() for each in x)))
    # the products are in float: what remains is the rounding of y
    assert (y.cpu().double() - expected).abs().max() <= torch.finfo(dtype).eps * x[2].double().abs().max()


@pytest.mark.parametrize("kind", [None, "t5", "table", "alibi"])
def test_a_layer_token_by_token(kind, monkeypatch):
    """Over the stand-in the layer stays on the CPU, where its attention is, and only the decoder is that of a GPU."""
    device = gpu()
    monkeypatch.setattr(_decoder, "_is_on_gpu", lambda layer: True)
    layer = nprf.torch.Attention(24, 3, position=kind, near=4, sinks=1, causal=True, device=device)
    if layer.position_bias is not None:
        torch.nn.init.normal_(layer.position_bias)
    x = torch.randn(2, 20, 24, device=device)
    with torch.no_grad():
        expected, _ = layer(x)
        decoder = layer.decoder(batch=2, rollback=4)
        assert isinstance(decoder.state, nprf.torch.GpuDecoder)
        calls = []
        monkeypatch.setattr(layer, "_attend", lambda *x: calls.append(x) or nprf.torch.Attention._attend(layer, *x))
        y = torch.cat([decoder(x[:, :9]), decoder(x[:, 9:10]), decoder(x[:, 10:])], 1)
        assert len(calls) == 1  # the prompt's
        torch.testing.assert_close(y, expected)
        for sequence in (0, 1):
            decoder.state.rollback(sequence, 3)
        torch.testing.assert_close(decoder(x[:, 17:]), expected[:, 17:])
        decoder.state.reset()
        y = decoder(x, lengths=[20, 12])
        torch.testing.assert_close(y[0], expected[0])
        torch.testing.assert_close(y[1, :12], expected[1, :12])
        assert torch.equal(y[1, 12:], layer.out_proj.bias.expand(8, 24)) and decoder.state.tokens == [20, 12]


def test_errors():
    device = gpu()

    def make(features=None, position=None, **options):
        return nprf.torch.GpuDecoder(
            features or nprf.orf(D, 16),
            position,
            **{"heads": H, "channels": V, "batch": B, "device": device, **options},
        )

    def rejects(error, text, function, *arguments, **options):
        with pytest.raises(error, match=text):
            function(*arguments, **options)

    rejects(TypeError, "dtype: expected float32, float16 or bfloat16 on a GPU", make, dtype=torch.float64)
    rejects(ValueError, "batch: expected at least 1, got 0", make, batch=0)
    rejects(ValueError, "heads_k: expected", make, kv_heads=3)
    rejects(ValueError, "device: expected a GPU, got meta", make, device="meta")
    rejects(ValueError, "rollback: expected 0 to", make, rollback=-1)
    rejects(ValueError, "max_tokens: expected 0", make, max_tokens=-1)
    grid = nprf.Grid(2, 2, np.zeros((3, 3)))
    rejects(ValueError, "position: expected one by the distance of tokens", make, position=grid)
    decoder = make()
    q, k, v = (each.to(device) for each in tokens())
    rejects(ValueError, r"keys: expected \[batch, heads, tokens, channels\]", decoder.step, q, k[0], v)
    of_dtype = r"values: expected torch.float32 \(the decoder's\), got torch.float64"
    rejects(TypeError, of_dtype, decoder.step, q, k, v.double())
    rejects(ValueError, "q: expected 2 x 4 x 17 x 8", decoder.step, q[:, :, 1:], k, v)
    rejects(ValueError, "v: expected", decoder.append, k, v[..., 1:])
    rejects(ValueError, "keys: expected a tensor on", decoder.step, q, k.to("meta"), v)
    of_range = r"lengths\[1\]: expected 0 to 17 \(the number of tokens\), got 18"
    rejects(ValueError, of_range, decoder.append, k, v, [0, 18])
    of_number = r"lengths: expected 2 numbers \(one a sequence\), got the shape \[3\]"
    rejects(ValueError, of_number, decoder.append, k, v, [0, 1, 2])
    rejects(TypeError, "lengths: expected integers, got torch.float32", decoder.append, k, v, [0.5, 1])
    rejects(ValueError, r"sequences\[0\]: expected 0 to 1 \(the last sequence\), got 2", decoder.reorder, [2, 0])
    rejects(ValueError, "tokens: expected 0 or more, got -1", decoder.rollback, 0, -1)
    rejects(ValueError, "sequence: expected 0 to 1", decoder.rollback, 2, 0)
    rejects(ValueError, "to: expected 0 to 1", decoder.fork, 0, 2)
    rejects(ValueError, "sequence: expected 0 to 1", decoder.reset, -1)
    assert decoder.tokens == [0, 0]


def test_integers_of_kernels_are_not_copied():
    """So that a step in a graph allocates nothing for them."""
    x = torch.tensor([3, 4], dtype=torch.int32)
    assert _integers.for_kernels(_integers.per_sequence("x", x, 2), x.device).data_ptr() == x.data_ptr()
    assert _integers.for_kernels(_integers.per_sequence("x", [3, 4], 2), x.device).dtype == torch.int32


def test_steps_in_a_captured_graph():
    device = gpu()
    if device == "cpu":
        pytest.skip("graphs are of a GPU")
    x = [each.to(device) for each in tokens()]
    decoder = nprf.torch.GpuDecoder(nprf.taylor(D), nprf.Alibi(0.1), heads=H, channels=V, batch=B, near=3)
    expected = decoder.step(*x)
    decoder.reset()
    token = [each[:, :, :1].clone() for each in x]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = decoder.step(*token)
    for i in range(N):
        for to, each in zip(token, x):
            to.copy_(each[:, :, i : i + 1])
        graph.replay()
        assert torch.equal(y[:, :, 0], expected[:, :, i])
