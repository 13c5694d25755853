# SPDX-License-Identifier: MIT
"""What several test files use; above all the tolerances of comparisons: eps x magnitude x growth."""

import contextlib
import faulthandler
import importlib
import signal
import threading
import time

import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def seeded_on_one_thread():
    """PyTorch with a fixed seed, and one thread: for small arrays more threads only wait for each other."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    torch.manual_seed(5)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Producer:
    """An array of another library, by DLPack."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def heads(rng, *shape, dtype=np.float64):
    """Standard normal numbers."""
    return rng.standard_normal(shape).astype(dtype)


def positions(rng, h, d_bias=9):
    """A position of each kind, shared and for each head, with its name."""
    import nprf

    return {
        "none": None,
        "table": nprf.RelativePosition(rng.standard_normal(d_bias)),
        "table of heads": nprf.RelativePosition(rng.standard_normal((h, d_bias))),
        "t5": nprf.T5(rng.standard_normal(32)),
        "t5 of heads": nprf.T5(rng.standard_normal((h, 32)), max_distance=64),
        "alibi": nprf.Alibi(0.1),
        "alibi of heads": nprf.Alibi(nprf.alibi_slopes(h)),
        "smooth table": nprf.RelativePosition(rng.standard_normal(d_bias), smooth=True),
        "kerple": nprf.Kerple((0.5, 0.3), 40),
        "kerple of heads": nprf.Kerple(rng.uniform(0.1, 1, (h, 2)), 20, "power"),
        "alibi sum": nprf.AlibiSum([[-1, -2], [1, 0.02]], 40),
        "alibi sum of heads": nprf.AlibiSum(rng.uniform(0, 0.5, (h, 2, 2)), 20),
        "spline": nprf.Spline(rng.standard_normal(4), [0, 1, 4, 12], 40),
        "spline of heads": nprf.Spline(rng.standard_normal((h, 8)), [0, 1, 4, 12], 10, "linear"),
    }


def rounding(v, *, terms, exponent, channels):
    """How far two computations of y = sum_j w_j v_j / sum_j w_j, with w_j > 0, may differ, in v's type.

    The magnitude is the largest |v|, since y is a mean of values. The growth is, for each of the two and in halves of
    eps, twice what the numerator and the denominator each lose: `terms`, the numbers that are added (the keys, and the
    features if a weight is a sum over them), and what a weight loses as the exponential of a number up to `exponent`
    that is a sum of `channels` products of rows that were scaled to a norm, (2 channels + 6) |exponent|, and 2 for exp.
    """
    growth = 2 * (terms + (2 * channels + 6) * exponent + 2)
    return np.finfo(v.dtype).eps * np.abs(v).max() * growth


def largest_exponent(features):
    """The largest |w.(q + k)| of random features for queries and keys of norm 1."""
    return 2 * np.linalg.norm(features.rows(np.float64), axis=1).max()


# of a call: half of it for the engine's rounding errors, above which rows are recomputed, and half for those of any
# engine
default_tolerance = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-10}


def assert_within_bounds(y, other, v, *reports):
    """|y - other| is within the sum of the bounds that the calls report (Report.error_bound), relative to the largest
    |v|; an array without a report is exact, but for one rounding of its numbers."""
    bound = sum(report.error_bound for report in reports)
    assert 0 < bound <= len(reports) * default_tolerance[v.dtype]
    assert np.abs(y - other).max() <= (bound + np.finfo(v.dtype).eps) * np.abs(v).max()


def assert_slope(f, expected, error):
    """df/dt at t = 0 is `expected`, for a function f that has rounding errors of at most `error`.

    The slope over the step h, (8 f(h) - 8 f(-h) - f(2h) + f(-2h)) / 12h, is exact up to the order h^4, and has 18/12 of
    the rounding error over h. That over 2h is 16 times less exact, so that their difference is 15 times the error.
    """

    def slope(h):
        return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)

    h = np.finfo(np.float64).eps ** 0.2  # where both errors are about as large
    fine = slope(h)
    bound = abs(slope(2 * h) - fine) + 1.5 * error / h
    assert bound <= 1e-5 * (1 + abs(expected))  # else it would say nothing
    assert abs(fine - expected) <= bound


@contextlib.contextmanager
def interrupted(after=0.3, within=5.0):
    """Ctrl-C after so many seconds in the body, which would take longer than `within` from then on, and ends with
    KeyboardInterrupt earlier; the whole process ends after two minutes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    sent = []

    def interrupt():
        sent.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    timer = threading.Timer(after, interrupt)
    faulthandler.dump_traceback_later(120, exit=True)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
        took = time.monotonic() - sent[0]
    finally:
        timer.join()
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGINT, before)
    assert took < within


def seconds(function):
    """What it returns, and how long it took."""
    start = time.monotonic()
    return function(), time.monotonic() - start


def gpu():
    """The device of PyTorch for the module for GPUs, or a skip with what is missing."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    try:
        _cuda = importlib.import_module("nprf._cuda")
    except ModuleNotFoundError:
        pytest.skip("nprf was not compiled for GPUs: -D NPRF_PYTHON_CUDA=ON, or NPRF_PYTHON_CUDA_ON_HOST=ON")
    if _cuda.on_host:
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    return "cuda"


def assert_as_exact(found, in_float, exact):
    """As exact as the CPU is in float32, up to a factor of ten for other orders of sums, relative to float64."""
    import torch

    for g, f, e in zip(found, in_float, exact):
        assert g.shape == e.shape
        if e.numel() > 0:
            eps = torch.finfo(torch.float32).eps * e.abs().max()
            assert (g.cpu() - e).abs().max() <= 10 * max((f - e).abs().max(), eps)
