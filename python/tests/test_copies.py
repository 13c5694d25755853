# SPDX-License-Identifier: MIT
"""Which arrays are read in place, which are copied for reading, and that what is written is never copied.

A copy is found by the peak of the process' memory. Arrays are larger than 32 MiB, which malloc returns to the system as
soon as they are freed, unless they fit into what it has kept of smaller ones.
"""

import ctypes
import gc
import pathlib

import nprf
import numpy as np
import pytest
from conftest import Producer, heads

H, N, D = 66, 2048, 64
size = H * N * D * 4  # of an array, in bytes: 33 MiB
clear_refs = pathlib.Path("/proc/self/clear_refs")
status = pathlib.Path("/proc/self/status")


def memory(name):
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(name))


def growth(call):
    """By how many bytes the memory of the process grows at most during a call, the second of its kind: the first makes
    the scratch memory."""
    call()
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # of glibc: what malloc has kept is returned to the system
    try:
        clear_refs.write_text("5")  # the peak is now what is in use
    except OSError as error:
        pytest.skip(f"this system does not measure the peak of memory: {error}")
    before = memory("VmRSS")
    call()
    return memory("VmHWM") - before


def read_only(x):
    x = x.view()
    x.flags.writeable = False
    return x


views = {
    "contiguous": lambda x: x,
    "read-only": read_only,
    "tokens before heads": lambda x: np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2),
    "one of queries, keys and values": lambda x: np.repeat(x[:, :, None], 3, axis=2)[:, :, 1],
    "part of the channels": lambda x: np.concatenate([x, x[..., :7]], axis=-1)[..., :D],
    "every second token": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "heads that share memory": lambda x: np.broadcast_to(x[:1], x.shape),
    "DLPack": Producer,
}
copies = {
    "every second channel": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "tokens backwards": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "Fortran's order": np.asfortranarray,
    "not aligned": lambda x: np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
}


@pytest.fixture(scope="module")
def x():
    return heads(np.random.default_rng(7), H, N, D, dtype=np.float32)


@pytest.fixture(scope="module")
def attention():
    return nprf.Attention(nprf.orf(D, 8))


@pytest.mark.parametrize("name", views)
def test_views_are_read_in_place(attention, x, name):
    view = views[name](x)
    for arguments in ((view, x, x), (x, view, x), (x, x, view)):
        assert growth(lambda: attention(*arguments)) < 1.5 * size  # y is as large as one


@pytest.mark.parametrize("name", copies)
def test_other_strides_are_copied_for_reading(attention, x, name):
    other = read_only(copies[name](x))
    for arguments in ((other, x, x), (x, other, x), (x, x, other)):
        assert 1.5 * size < growth(lambda: attention(*arguments)) < 2.5 * size  # one copy, and y
    assert np.array_equal(attention(other, other, other), attention(x, x, x))


def test_tokens_first(attention, x):
    first = np.ascontiguousarray(x.transpose(1, 0, 2))
    assert growth(lambda: attention(first, first, first, layout="tokens_first")) < 1.5 * size


def test_gradients(attention, x):
    _, saved = attention.forward(x, x, x)

    def growth_of(dy):
        return growth(lambda: attention.backward(saved, dy))

    in_place = growth_of(x)
    assert in_place < 3.5 * size  # those of queries, keys and values
    assert abs(growth_of(views["tokens before heads"](x)) - in_place) < 0.5 * size
    assert abs(growth_of(read_only(copies["every second channel"](x))) - in_place - size) < 0.5 * size


def test_steps(x):
    decoder = nprf.Decoder(nprf.orf(D, 8))

    def call(x):
        decoder.reset()
        decoder.step(x, x, x)

    few = x[:, :64]  # whose channels are contiguous
    expected = decoder.step(few, few, few)
    decoder.reset()
    strided = read_only(copies["every second channel"](few))
    assert np.array_equal(decoder.step(strided, strided, strided), expected)
    assert growth(lambda: call(views["tokens before heads"](x[:, :1024]))) < 2 * size


def test_what_is_written_is_never_copied():
    """The extension's own functions, whose outputs are arguments."""
    rng = np.random.default_rng(7)
    attention, decoder = nprf.Attention(nprf.orf(D, 8)), nprf.Decoder(nprf.orf(D, 8))
    core = nprf._native.core
    call, native = nprf._attention._default_call, attention._native(nprf._native.float32)
    q, k, v = (heads(rng, 3, 20, D, dtype=np.float32) for _ in range(3))
    expected, saved = attention.forward(q, k, v)
    gradients = attention.backward(saved, q)

    def backward(position, out):
        all_out = [np.empty_like(q) for _ in range(3)]
        all_out[position] = out
        saved._native.backward(q, *all_out, call)

    def step(out):
        decoder.reset()
        decoder._state.append(q, k, v, out, call, False)

    steps = decoder.step(q, k, v)
    functions = {
        "y": (lambda out: native(q, k, v, out, call), expected),
        "y of forward": (lambda out: native.forward(q, k, v, out, call), expected),
        "y of a step": (step, steps),
        "dq": (lambda out: backward(0, out), gradients.queries),
        "dk": (lambda out: backward(1, out), gradients.keys),
        "dv": (lambda out: backward(2, out), gradients.values),
    }
    assert core.num_threads() >= 1
    for name, (function, result) in functions.items():
        for inside in (
            lambda: np.full((3, 20, D + 5), 7, np.float32)[..., 2 : D + 2],
            lambda: np.full((20, 3, D), 7, np.float32).transpose(1, 0, 2),
            lambda: np.full((3, 40, D), 7, np.float32)[:, ::2],
        ):
            out = inside()
            around = out.base.copy()
            function(out)
            assert np.array_equal(out, result), name
            out[...] = 7
            assert np.array_equal(out.base, around), name  # nothing else was written
        for wrong, error in (
            (np.full((3, 20, 2 * D), 7, np.float32)[..., ::2], ValueError),
            (np.full((3, 20, D), 7, np.float32)[:, ::-1], ValueError),
            (np.full((3, 20, D), 7, np.float32, order="F"), ValueError),
            (np.full((3, 20, D), 7, np.float64), ValueError),
            (np.full((3, 20, D), 7, ">f4"), TypeError),
            (np.full((3, 21, D), 7, np.float32), ValueError),
            (read_only(np.full((3, 20, D), 7, np.float32)), TypeError),
            ([[7.0]], TypeError),
        ):
            with pytest.raises(error):
                function(wrong)
            assert np.all(np.asarray(wrong) == 7), name


@pytest.mark.usefixtures("seeded_on_one_thread")
def test_tensors(x):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    import nprf.torch

    features = nprf.orf(D, 8)
    x = torch.from_numpy(x)[None]
    tokens_first = x.transpose(1, 2).contiguous()
    of_heads_first, strided = tokens_first.transpose(1, 2), x.mT.contiguous().mT

    def function(x, **options):
        return nprf.torch.attention(x, x, x, features=features, **options)

    assert growth(lambda: function(of_heads_first)) < 1.5 * size
    assert growth(lambda: function(tokens_first, layout="tokens_first")) < 1.5 * size
    assert 3.5 * size < growth(lambda: function(strided)) < 4.5 * size
    q = x.clone().requires_grad_()
    y = nprf.torch.attention(q, x, x, features=features)

    def growth_of(dy):
        return growth(lambda: torch.autograd.grad(y, q, dy, retain_graph=True))

    in_place = growth_of(x)
    assert in_place < 3.5 * size
    assert abs(growth_of(of_heads_first) - in_place) < 0.5 * size
    assert abs(growth_of(strided) - in_place - size) < 0.5 * size
