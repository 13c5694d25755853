# SPDX-License-Identifier: MIT
import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(7)


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
    }
