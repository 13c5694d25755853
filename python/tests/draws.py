# SPDX-License-Identifier: MIT
"""What random tests draw. NPRF_FUZZ is a number of calls of each test, then of another seed in each run."""

import os
from typing import NamedTuple

import nprf
import numpy as np
import pytest
from dense import Call

pytest.importorskip("hypothesis", reason="Hypothesis is not installed: pip install hypothesis")
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

settings.register_profile(
    "nprf",
    deadline=None,
    database=None,
    derandomize="NPRF_FUZZ" not in os.environ,
    max_examples=int(os.environ.get("NPRF_FUZZ", "150")),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("nprf")
fewer = settings(max_examples=-(-settings.default.max_examples // 5))  # of tests that compile each call


class Valid(NamedTuple):
    """A call whose arguments fit each other, with arrays [batch, heads, tokens, channels]."""

    attention: nprf.Attention
    arrays: list  # q, k, v and dy
    kept: object  # bool [batch, n_k], or None
    lengths: object
    cumulative: object
    key_cumulative: object
    offset: object

    def options(self):
        found = {
            "key_mask": self.kept if self.lengths is None else None,
            "lengths": self.lengths,
            "offset": self.offset,
        }
        if self.cumulative is not None:
            found.update(cumulative_lengths=self.cumulative, key_cumulative_lengths=self.key_cumulative)
        return {name: x for name, x in found.items() if x is not None}

    def exact(self):
        of_keys = self.cumulative if self.key_cumulative is None else self.key_cumulative
        sequences = None
        if self.cumulative is not None:
            ends = [list(zip(x, x[1:])) for x in (self.cumulative, of_keys)]
            sequences = list(zip(*ends))
        return Call(self.attention, *self.arrays[:3], self.kept, sequences, self.offset or 0)


def random_rows(rng, *shape):
    """Of all sizes, with zeros."""
    x = rng.standard_normal(shape) * rng.choice([0.1, 1, 1, 3], (*shape[:-1], 1))
    return x * (rng.random((*shape[:-1], 1)) < 0.97)


def random_position(draw, rng, kind, heads):
    """With biases of any size, of which some may be -infinity."""
    heads = draw(st.sampled_from([(), (heads,)]))
    scale, gaps = draw(st.sampled_from([0.0, 1.0, 1.0, 30.0, 1e4])), draw(st.sampled_from([0.0, 0.0, 0.2]))

    def parameters(*shape):
        x = scale * rng.standard_normal((*heads, *shape))
        return np.where(rng.random(x.shape) < gaps, -np.inf, x)

    if kind == "table":
        b = parameters(2 * draw(st.integers(0, 40)) + 1)
        return nprf.RelativePosition(b, layout="heads_first", smooth=draw(st.booleans()))
    if kind == "t5":
        return nprf.T5(parameters(8), draw(st.sampled_from([9, 20])), layout="heads_first")
    if kind == "alibi":
        return nprf.Alibi(scale * rng.standard_normal(heads) / 10)
    if kind == "grid":
        height, width, extra = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 2))
        of_extra = parameters(extra, extra + 2) if extra > 0 else None
        return nprf.Grid(height, width, parameters(2 * height - 1, 2 * width - 1), of_extra)
    return random_curve(draw, rng, heads) if kind == "curve" else None


def random_curve(draw, rng, heads):
    kind, reach = draw(st.sampled_from(["log", "power", "alibi_sum", "spline"])), draw(st.sampled_from([1, 5, 100]))
    if kind == "spline":
        knots = nprf.log_spaced_knots(draw(st.integers(2, 5)), 30)
        values = rng.standard_normal((*heads, draw(st.integers(1, 2)) * len(knots)))
        return nprf.Spline(values, knots, reach, draw(st.sampled_from(["constant", "linear"])))
    if kind == "alibi_sum":
        return nprf.AlibiSum(rng.uniform(0, 1, (*heads, 2, draw(st.integers(1, 3)))), reach)
    return nprf.Kerple(rng.uniform(0, 1, (*heads, 2)), reach, kind)


def random_map(draw, d, heads):
    kind = draw(st.sampled_from(["positive", "hyperbolic", "trigonometric", "taylor", "elu", "rows", "heads"]))
    seed, m = draw(st.integers(0, 2**64 - 1)), draw(st.integers(1, 9))
    if kind == "heads":
        return nprf.HeadFeatures(nprf.orf(d, 5, (seed + h) % 2**64) for h in range(heads))
    if kind == "taylor":
        return nprf.taylor(d, draw(st.integers(0, d)))
    if kind == "elu":
        return nprf.elu(d)
    if kind == "rows":
        rows = np.random.default_rng(seed).standard_normal((m, d))
        return nprf.ProjectedFeatures(draw(st.sampled_from(["positive", "hyperbolic", "trigonometric"])), rows)
    projections = ["orthogonal", "gaussian", "sphere", "simplex", "sphere_simplex"]
    return nprf.RandomFeatures(kind, d, m, draw(st.sampled_from(projections)), seed)


@st.composite
def valid_calls(draw, of_decoder=False, curves=True):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    few, tokens = st.integers(1, 3), st.integers(0, 9) | st.integers(10, 70)
    b, h, group, d, d_v = (
        draw(st.integers(0, 2)),
        draw(few),
        draw(few),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 6)),
    )
    kinds = ["none", "table", "t5", "alibi"] + ["grid"] * (not of_decoder) + ["curve"] * curves
    kind = draw(st.sampled_from(kinds))
    position, features = random_position(draw, rng, kind, h * group), random_map(draw, d, h * group)
    causal = of_decoder or draw(st.booleans())
    n_q = n_k = draw(tokens)
    lengths = kept = cumulative = key_cumulative = offset = None
    if kind == "grid":
        n_q = n_k = position.height * position.width + (0 if position.extra is None else position.extra.shape[-2])
    elif not of_decoder:
        if draw(st.booleans()):
            n_k = draw(tokens)
        if draw(st.integers(0, 3)) == 0:
            b = 1
            cumulative = [0, *sorted(rng.integers(0, n_q + 1, 2).tolist()), n_q]
            if n_k != n_q or draw(st.booleans()):
                key_cumulative = [0, *sorted(rng.integers(0, n_k + 1, 2).tolist()), n_k]
        if n_q != n_k or key_cumulative is not None or draw(st.booleans()):
            offset = draw(st.sampled_from([0, n_k - n_q, 3, -2]))
    if draw(st.booleans()) and not of_decoder:
        kept = rng.random((b, n_k)) < draw(st.sampled_from([0.9, 0.3, 0.0]))
        if draw(st.booleans()) and cumulative is None:
            lengths = rng.integers(0, n_k + 1, b).tolist()
            kept = np.arange(n_k) < np.array(lengths, int)[:, None]
    normalization = draw(
        st.sampled_from([nprf.Normalization.unit(), nprf.Normalization.unit(1.5), nprf.Normalization.none()])
    )
    has_exact = not isinstance(features, nprf.EluFeatures)
    near, sinks = draw(st.sampled_from([0, 0, 1, 5, 100])) * has_exact, draw(st.sampled_from([0, 0, 1, 3])) * has_exact
    others = ["grid"] if kind == "grid" else ["lanes", "banded", "recurrence", "smooth", "block_causal"]
    engine = "automatic" if of_decoder else draw(st.sampled_from(["automatic", "automatic", "direct", *others]))
    attention = nprf.Attention(features, position, causal, normalization, near, engine, sinks)
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    size = 10.0 ** draw(st.sampled_from([0, 0, 15, -15]))
    shapes = (b, h * group, n_q, d), (b, h, n_k, d), (b, h, n_k, d_v), (b, h * group, n_q, d_v)
    arrays = [(random_rows(rng, *s) * x).astype(dtype) for s, x in zip(shapes, (1, 1, size, 1))]
    return Valid(attention, arrays, kept, lengths, cumulative, key_cumulative, offset)


def of_type(attention, dtype):
    """The same attention with the parameters of its position rounded to the type in which the call is computed."""
    position = attention.position
    if position is None:
        return attention
    arguments = [x.astype(dtype) if isinstance(x, np.ndarray) else x for x in position._values()]
    others = (attention.causal, attention.normalization, attention.near, attention.engine, attention.sinks)
    return nprf.Attention(attention.features, type(position)(*arguments), *others)


def with_parameters(position, parameters):
    """A position of the same kind with parameters [heads, ...]."""
    if isinstance(position, nprf.Alibi):
        return nprf.Alibi(parameters)
    if isinstance(position, nprf.T5):
        return nprf.T5(parameters, position.max_distance, layout="heads_first")
    return nprf.RelativePosition(parameters, "heads_first", position.smooth)


def parameters_of_heads(position, bias, extra, heads):
    """The gradients of all parameters [heads, p] from those in their own shape; None if heads share them."""
    if position is None or position.parameters.ndim == position._dims or len(position.parameters) == 1 < heads:
        return None
    rows = [x.reshape(heads, -1) for x in (bias, extra) if x is not None]
    return np.concatenate(rows, 1) if len({len(x) for x in rows}) == 1 else None


def in_layout(x, tokens_first):
    return np.ascontiguousarray(np.swapaxes(x, 1, 2)) if tokens_first else x
