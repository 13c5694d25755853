# SPDX-License-Identifier: MIT
"""Relative position biases: b[j - i] is added to the logit of query i and key j. -infinity means weight 0.

The parameters of each class may have a leading axis of heads, which gives each head a bias of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._native import Native, core, native_of
from ._value import Value, bool_of, frozen_array, index_of, name_of


def has_heads_last(
    shape: Sequence[int],
    dims: int,
    layout: str | None,
    heads: int | None,
    of: tuple[str, str] = ("bias", "bias_layout"),
) -> bool:
    """Whether the axis of heads of parameters is the last one instead of the first; without heads they have `dims`
    axes. layout: "heads_first", "heads_last", or None if only the sizes tell; heads: their number, None if it is not
    known. ValueError if parameters that should have heads first may have them last. of: the names of parameters and
    layout in errors."""
    name, option = of
    if layout not in (None, "heads_first", "heads_last"):
        raise ValueError(f"{option}: expected 'heads_first' or 'heads_last', got {layout!r}")
    if dims == 0 or len(shape) != dims + 1:
        return False
    if layout is not None:
        return layout == "heads_last"
    first, last = shape[0], shape[-1]
    if first > 1 and all(each == (first if heads is None else heads) for each in shape):
        raise ValueError(
            f"{option}: expected 'heads_first', or 'heads_last' as nn.Embedding has them, for {name} of the shape "
            f"{list(shape)}, got None"
        )
    if heads is not None and first not in (1, heads) and last == heads:
        raise ValueError(
            f"{name}: expected [{heads}, ..] (heads first), got the shape {list(shape)}, which has them last as an "
            f"nn.Embedding does: pass {option}='heads_last'"
        )
    return False


class Position(Value):
    """A relative position bias; immutable."""

    _parameters: str  # the attribute that gradients are of
    _dims: int  # its dimensions without heads
    _made: dict[tuple[str, bool], Any]  # the extension's positions

    def __init__(self) -> None:
        self._set(_made={})

    def _make(self, native: Native, causal: bool) -> Any:
        raise NotImplementedError

    def _native(self, native: Native, causal: bool) -> Any:
        made = self._made.get((native.name, causal))
        if made is None:
            made = self._made[native.name, causal] = self._make(native, causal)
        return made

    def _set_parameters(self, x: Any, dims: tuple[int, ...], layout: str | None) -> None:
        name = self._parameters
        array = frozen_array(x, name, dims)
        if has_heads_last(array.shape, self._dims, layout, None, (name, "layout")):
            array = frozen_array(np.moveaxis(array, -1, 0), name, dims)
        self._set(**{name: array, "layout": "heads_first" if array.ndim > self._dims else None})

    def check_heads(self, heads: int) -> None:
        """ValueError for parameters of another number of heads that have this one last."""
        shape = self.parameters.shape
        if "layout" in self._arguments and len(shape) == 2 and shape[0] not in (1, heads):
            has_heads_last(shape, self._dims, None, heads, (self._parameters, "layout"))

    @property
    def parameters(self) -> NDArray[Any]:
        """What `Gradients.bias` is the gradient of."""
        parameters: NDArray[Any] = getattr(self, self._parameters)
        return parameters

    def _rows(self, native: Native) -> NDArray[Any]:
        """The parameters [heads, p]."""
        x = self.parameters
        if x.size == 0:
            raise ValueError(f"{self._parameters}: expected at least one number, got the shape {list(x.shape)}")
        heads = x.shape[0] if x.ndim > self._dims else 1
        return np.ascontiguousarray(x.reshape(heads, -1), dtype=native.dtype)


class RelativePosition(Position):
    """A learned bias for each lag: b [2R + 1] or [heads, 2R + 1]; b[R + lag] is that of a lag = key - query position.

    Lags beyond R have the bias of that end. layout="heads_last": b is [2R + 1, heads]. smooth: b is a smooth function
    of the lag far from 0, of a few parameters to which the gradient of b is handed on, as in FIRE (Li et al. 2024);
    that gradient may be the one of a smooth table near b, and engine="automatic" may take "smooth" in training, too.
    ValueError for an even length, NaN and +infinity, and for as many heads as lags without a layout.
    """

    _arguments, _parameters, _dims = ("b", "layout", "smooth"), "b", 1
    b: NDArray[Any]
    layout: str | None  # "heads_first" with an axis of heads
    smooth: bool

    def __init__(self, b: Any, layout: str | None = None, smooth: bool = False) -> None:
        super().__init__()
        self._set_parameters(b, (1, 2), layout)
        self._set(smooth=bool_of(smooth, "smooth"))
        self._native(native_of(self.b.dtype, "position"), False)

    @classmethod
    def of_matrix(cls, matrix: Any) -> RelativePosition:
        """The position of biases as an array [n, n] of queries and keys, [heads, n, n] or [1, heads, n, n], which must
        be the same along diagonals. ValueError, which names the first entry that differs from that before it on its
        diagonal, for another array. O(heads n^2)."""
        x = frozen_array(matrix, "matrix", (2, 3, 4))
        x = x[0] if x.ndim == 4 and x.shape[0] == 1 else x
        n = x.shape[-1]
        if x.ndim == 4 or x.shape[-2] != n or n == 0:
            raise ValueError(f"matrix: expected [n, n], [heads, n, n] or [1, heads, n, n], got the shape {[*x.shape]}")
        differs = x[..., 1:, 1:] != x[..., :-1, :-1]
        if differs.any():
            *head, i, j = (int(each) for each in np.argwhere(differs)[0])
            before, at = (*head, i, j), (*head, i + 1, j + 1)
            raise ValueError(
                f"matrix{[*at]}: expected {x[before]}, that of matrix{[*before]}, since biases are the same along "
                f"diagonals, got {x[at]}"
            )
        return cls(np.concatenate([x[..., :0:-1, 0], x[..., 0, :]], axis=-1))

    def _make(self, native: Native, causal: bool) -> Any:
        return native.Positions.relative(self._rows(native), self.smooth)


class T5(Position):
    """T5's learned bias for each bucket of lags: weights [buckets] or [heads, buckets].

    Half of the buckets are for later keys, unless the attention is causal. layout="heads_last": weights are
    [buckets, heads], as those of an nn.Embedding. ValueError for too few buckets, and for as many heads as buckets
    without a layout.
    """

    _arguments, _parameters, _dims = ("weights", "max_distance", "layout"), "weights", 1
    weights: NDArray[Any]
    max_distance: int
    layout: str | None  # "heads_first" with an axis of heads

    def __init__(self, weights: Any, max_distance: int = 128, layout: str | None = None) -> None:
        super().__init__()
        self._set_parameters(weights, (1, 2), layout)
        self._set(max_distance=index_of(max_distance, "max_distance"))
        # checked for a direction that allows the distance: a causal one needs more than half of the buckets
        causal = 2 * self.max_distance > self.weights.shape[-1]
        self._native(native_of(self.weights.dtype, "position"), causal)

    def _make(self, native: Native, causal: bool) -> Any:
        return native.Positions.t5(self._rows(native), causal, self.max_distance)


class Alibi(Position):
    """ALiBi: b = -slope |lag|, for a slope, or slopes [heads]. ValueError unless |slope| <= 1e30."""

    _arguments, _parameters, _dims = ("slope",), "slope", 0
    slope: NDArray[Any]

    def __init__(self, slope: Any) -> None:
        super().__init__()
        self._set(slope=frozen_array(slope, "slope", (0, 1)))
        self._native(native_of(self.slope.dtype, "position"), False)

    def _make(self, native: Native, causal: bool) -> Any:
        return native.Positions.alibi(self._rows(native))


def alibi_slopes(heads: int, bias_max: float = 8) -> NDArray[Any]:
    """The slopes [heads] of Press et al. 2022: 2^(-bias_max h / heads) for a power of two, else interleaved. bias_max
    is 8 there, and `alibi_bias_max` of MPT's models. ValueError unless it is positive and finite."""
    heads = index_of(heads, "heads")
    if heads < 1:
        raise ValueError(f"heads: expected at least 1, got {heads}")
    if not 0 < bias_max < np.inf:
        raise ValueError(f"bias_max: expected a positive finite number, got {bias_max}")
    power = 1 << (heads.bit_length() - 1)
    slopes = 2.0 ** (-bias_max / power * np.arange(1, power + 1))
    more = 2.0 ** (-bias_max / 2 / power * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([slopes, more[: heads - power]])


class Kerple(Position):
    """KERPLE (Chi et al. 2022): r = (r1, r2), or [heads, 2]; b = -r1 log(1 + r2 |lag|), or with kind="power"
    b = -r1 |lag|^r2.

    Lags beyond `reach`, which should be at least the number of tokens, are on straight lines. ValueError for a reach
    below 1, r2 < 0 or of "power" r2 > 2, and numbers that are not finite.
    """

    _arguments, _parameters, _dims = ("r", "reach", "kind"), "r", 1
    r: NDArray[Any]
    reach: int
    kind: str

    def __init__(self, r: Any, reach: int, kind: str = "log") -> None:
        super().__init__()
        if kind not in ("log", "power"):
            raise ValueError(f"kind: expected 'log' or 'power', got {kind!r}")
        self._set(r=frozen_array(r, "r", (1, 2)), reach=index_of(reach, "reach"), kind=kind)
        self._native(native_of(self.r.dtype, "position"), False)

    def _make(self, native: Native, causal: bool) -> Any:
        return native.Positions.curve(self.kind, self._rows(native), self.reach, [], "")


class AlibiSum(Position):
    """A sum of weights of ALiBi: terms [2, k] or [heads, 2, k], log-weights a in row 0 and slopes s in row 1;
    b = log sum_k exp(a_k - s_k |lag|). With slopes of different sizes it falls fast at short lags and slowly at long
    ones.

    Lags beyond `reach`, which should be at least the number of tokens, are on straight lines. ValueError for a reach
    below 1, and numbers that are not finite.
    """

    _arguments, _parameters, _dims = ("terms", "reach"), "terms", 2
    terms: NDArray[Any]
    reach: int

    def __init__(self, terms: Any, reach: int) -> None:
        super().__init__()
        self._set(terms=frozen_array(terms, "terms", (2, 3)), reach=index_of(reach, "reach"))
        if self.terms.shape[-2] != 2:
            raise ValueError(f"terms: expected [2, k] or [heads, 2, k], got the shape {[*self.terms.shape]}")
        self._native(native_of(self.terms.dtype, "position"), False)

    def _make(self, native: Native, causal: bool) -> Any:
        return native.Positions.curve("alibi_sum", self._rows(native), self.reach, [], "")


class Spline(Position):
    """Values at a few distances |lag|, the knots, and a cubic spline in log(1 + |lag|) through them: values [k] or
    [heads, k], or with 2 k numbers first those of lags <= 0, then those of lags > 0.

    knots: integers 0 = d_0 < d_1 < ..., such as log_spaced_knots(). end: beyond the last knot b is "constant", or
    "linear" in the distance. Lags beyond `reach`, which should be at least the number of tokens, are on straight lines.
    ValueError for a reach below 1, other knots, and values that are not finite.
    """

    _arguments, _parameters, _dims = ("values", "knots", "reach", "end"), "values", 1
    values: NDArray[Any]
    knots: tuple[int, ...]
    reach: int
    end: str

    def __init__(self, values: Any, knots: Sequence[int], reach: int, end: str = "constant") -> None:
        super().__init__()
        self._set(
            values=frozen_array(values, "values", (1, 2)),
            knots=tuple(index_of(each, "knots") for each in knots),
            reach=index_of(reach, "reach"),
            end=name_of(end, "end"),
        )
        self._native(native_of(self.values.dtype, "position"), False)

    def _make(self, native: Native, causal: bool) -> Any:
        return native.Positions.curve("spline", self._rows(native), self.reach, self.knots, self.end)


def log_spaced_knots(count: int, reach: int) -> list[int]:
    """`count` distances from 0 to `reach` at about equal steps of log(1 + distance), all different. ValueError for
    fewer than 2, or more than reach + 1."""
    return core.log_spaced_knots(index_of(count, "count"), index_of(reach, "reach"))


class SplineFit(NamedTuple):
    """The arguments of a Spline, but for its reach, and how far it is from the table: |difference| of the lags of the
    table, a number, or [heads]."""

    values: NDArray[Any]
    knots: list[int]
    end: str
    largest_error: Any
    mean_error: Any


def fit_spline(table: Any, knots: Sequence[int], end: str = "constant", two_sides: bool = True) -> SplineFit:
    """The spline of least squared error from a table [2R + 1] or [heads, 2R + 1] of learned biases; two_sides: with
    values of their own for later keys. ValueError for an even length, numbers that are not finite, and knots that do
    not begin with 0, increase, and end with at most R."""
    tables, at = frozen_array(table, "table", (1, 2)), [index_of(each, "knots") for each in knots]
    rows = np.atleast_2d(tables).astype(np.float64)
    values, *errors = core.fit_spline(rows, at, name_of(end, "end"), bool_of(two_sides, "two_sides"))
    if tables.ndim == 1:
        return SplineFit(values[0], at, end, *(each[0] for each in errors))
    return SplineFit(values, at, end, *map(np.array, errors))


class Grid(Position):
    """A learned bias for each displacement of two cells of a height x width picture.

    b [2H - 1, 2W - 1] or [heads, 2H - 1, 2W - 1], indexed by key minus query. Tokens are E extra ones, such as CLS,
    then the cells row by row; extra [E, E + 2] or [heads, E, E + 2] has their biases: from extra query e to cells, from
    cells to extra key e, and to each extra key.
    """

    _arguments, _parameters, _dims = ("height", "width", "b", "extra"), "b", 2
    height: int
    width: int
    b: NDArray[Any]
    extra: NDArray[Any] | None

    def __init__(self, height: int, width: int, b: Any, extra: Any = None) -> None:
        super().__init__()
        self._set(
            height=index_of(height, "height"),
            width=index_of(width, "width"),
            b=frozen_array(b, "b", (2, 3)),
            extra=None if extra is None else frozen_array(extra, "extra", (2, 3)),
        )
        self._native(native_of(self.b.dtype, "position"), False)

    def _make(self, native: Native, causal: bool) -> Any:
        rows = self._rows(native)
        if self.b.shape[-2:] != (2 * self.height - 1, 2 * self.width - 1):
            raise ValueError(
                f"b: expected {2 * self.height - 1} x {2 * self.width - 1} (2H-1 x 2W-1 for a grid of {self.height} x "
                f"{self.width}), got {self.b.shape[-2]} x {self.b.shape[-1]}"
            )
        if self.extra is None:
            return native.Positions.grid(self.height, self.width, rows, np.zeros((1, 1), native.dtype), 0)
        tokens, columns = self.extra.shape[-2:]
        if columns != tokens + 2:
            raise ValueError(f"extra: expected E x E+2 for E extra tokens, got {tokens} x {columns}")
        of_extra = self.extra.shape[0] if self.extra.ndim == 3 else 1
        heads = max(rows.shape[0], of_extra)
        if rows.shape[0] > 1 and of_extra not in (1, heads):
            raise ValueError(f"extra: expected {heads} heads, as b, got {of_extra}")
        rows = np.ascontiguousarray(np.broadcast_to(rows, (heads, rows.shape[1])))
        extra = np.broadcast_to(self.extra, (heads, tokens, columns)).reshape(heads, -1)
        return native.Positions.grid(
            self.height, self.width, rows, np.ascontiguousarray(extra, dtype=native.dtype), tokens
        )


class QueryBiased(Position):
    """A position, and in the near field biases that also depend on the query: r_i . R[j - i] for |j - i| < near.

    R is lag_vectors [rank, lags] or [heads, rank, lags], a column for each near lag: lags 1 - near to 0 for causal
    attention, near columns; or to near - 1, 2 near - 1 columns. Queries have rank more channels, those of r_i, after
    the d of the feature map: q [heads, n_q, d + rank], k [heads, n_k, d]. r_i is not normalised. position: None is b = 0.
    Gradients.extra is that of R. ValueError for a grid, and for NaN and infinity.
    """

    _arguments = ("lag_vectors", "position")
    lag_vectors: NDArray[Any]
    position: Position | None
    _base: Position

    def __init__(self, lag_vectors: Any, position: Position | None = None) -> None:
        super().__init__()
        base = position_of(position)
        self._set(lag_vectors=frozen_array(lag_vectors, "lag_vectors", (2, 3)), position=position, _base=base)
        self._set(_parameters=base._parameters, _dims=base._dims)
        self._native(native_of(self.lag_vectors.dtype, "lag_vectors"), False)

    @property
    def parameters(self) -> NDArray[Any]:
        return self._base.parameters

    @property
    def extra(self) -> NDArray[Any]:
        """What `Gradients.extra` is the gradient of."""
        return self.lag_vectors

    def check_heads(self, heads: int) -> None:
        self._base.check_heads(heads)

    def _make(self, native: Native, causal: bool) -> Any:
        rank, lags = self.lag_vectors.shape[-2:]
        rows = np.ascontiguousarray(self.lag_vectors.reshape(-1, rank * lags), dtype=native.dtype)
        return self._base._native(native, causal).with_lag_vectors(rows, rank)


class NoPosition(Position):
    """b = 0."""

    _parameters, _dims = "_none", 1
    _none: NDArray[Any]

    def __init__(self) -> None:
        super().__init__()
        self._set(_none=frozen_array(np.zeros(0), "none", (1,)))

    def _make(self, native: Native, causal: bool) -> Any:
        return native.Positions.none()


_no_position = NoPosition()


def position_of(position: Any) -> Position:
    """The position, or NoPosition for None. TypeError for another class."""
    if position is None:
        return _no_position
    if not isinstance(position, Position):
        raise TypeError(f"position: expected a Position, got {type(position).__name__}")
    return position


def resize_bias(b: Any, *size: int) -> NDArray[Any]:
    """A table [2R + 1] for another length, resize_bias(b, 2 R' + 1), or [2H - 1, 2W - 1] for another grid,
    resize_bias(b, height, width), each with or without a leading axis of heads, by linear or bicubic interpolation, in
    float64. ValueError for -infinity."""
    if len(size) not in (1, 2):
        raise ValueError(f"size: expected a length, or a height and a width, got {len(size)} numbers")
    new = [index_of(each, "size") for each in size]
    tables = frozen_array(b, "b", (len(size), len(size) + 1)).astype(np.float64)
    if tables.ndim > len(size):
        return np.stack([resize_bias(each, *new) for each in tables])
    return core.resize_bias(tables[None, :], *new) if len(new) == 1 else core.resize_grid(tables, *new)
