# SPDX-License-Identifier: MIT
"""Attention and its gradients by the formula, in long double and with n x n matrices, and the bounds of the rounding
errors that are guaranteed (tests/accuracy.md of the project, whose notation is used here). Of the package it uses only
the random vectors of feature maps, and the values that describe maps and positions."""

import nprf
import numpy as np

Exact = np.longdouble
worst_condition = 1e6  # rows of features of both signs whose terms cancel more than that are not checked


class Features:
    """Rows x' = scale x of queries or keys [n, d], and what they contribute to weights phi(q).phi(k) that estimate
    exp(q'.k'), with all factors."""

    def __init__(self, features, radius, x, dtype):
        x = x.astype(Exact)
        self.map, self.radius = features, radius
        self.w = None
        if isinstance(features, nprf.RandomFeatures):
            self.w = features.rows(dtype).astype(Exact)
        elif isinstance(features, nprf.ProjectedFeatures):
            self.w = features.rows.astype(dtype).astype(Exact)
        if radius > 0:
            norms = np.sqrt((x * x).sum(-1, keepdims=True))
            self.scale = np.where(norms > 0, radius / np.where(norms > 0, norms, 1), 0)
        else:
            self.scale = np.full((len(x), 1), 1 if self.is_elu else Exact(x.shape[-1]) ** Exact(-0.25))
        self.x = self.scale * x
        self.phi, self.sides = self._phi()
        longest = np.sqrt((self.w**2).sum(-1)).max() if self.w is not None else 0
        norm = np.sqrt((self.x**2).sum(-1))
        of_map = 1 if self.is_elu else 1.5 if self.is_series else longest + norm
        self.steepness = self.scale[:, 0] * of_map  # of log phi, with respect to the input row
        self.norms = norm

    @property
    def is_elu(self):
        return isinstance(self.map, nprf.EluFeatures)

    @property
    def is_series(self):
        return isinstance(self.map, nprf.TaylorFeatures)

    @property
    def is_signed(self):
        return self.is_series or getattr(self.map, "kind", "") == "trigonometric"

    def _phi(self):
        """phi [n, r], and its derivative dphi_r / dx'_c [n, r, d]."""
        x, d = self.x, self.x.shape[-1]
        if self.is_elu:
            slope = np.where(x > 0, 1, np.exp(np.minimum(x, 0)))
            return np.where(x > 0, x + 1, slope), slope[:, :, None] * np.eye(d)
        if self.is_series:
            s = self.map.directions
            pairs = [(a, b) for a in range(s) for b in range(a, s)]
            weight = [1 if a < b else Exact(0.5) ** Exact(0.5) for a, b in pairs]
            phi = [np.ones((len(x), 1), Exact), x, *(f * x[:, [a]] * x[:, [b]] for f, (a, b) in zip(weight, pairs))]
            derivative = np.zeros((len(x), 1 + d + len(pairs), d), Exact)
            derivative[:, range(1, 1 + d), range(d)] = 1
            for r, (f, (a, b)) in enumerate(zip(weight, pairs), 1 + d):
                derivative[:, r, a] += f * x[:, b]
                derivative[:, r, b] += f * x[:, a]
            return np.concatenate(phi, -1), derivative
        w, half, m = self.w, (x * x).sum(-1, keepdims=True) / 2, len(self.w)
        z = x @ w.T
        if self.map.kind == "trigonometric":
            sin, cos = (np.exp(half) / np.sqrt(Exact(m)) * f(z) for f in (np.sin, np.cos))
            phi = np.concatenate([sin, cos], -1)
            along_w = np.concatenate([cos, -sin], -1)
            return phi, along_w[:, :, None] * np.concatenate([w, w]) + phi[:, :, None] * x[:, None, :]
        if self.map.kind == "hyperbolic":
            z, w, m = np.concatenate([z, -z], -1), np.concatenate([w, -w]), 2 * m
        phi = np.exp(z - half) / np.sqrt(Exact(m))
        return phi, phi[:, :, None] * (w - x[:, None, :])

    def backward(self, dx):
        """dL/dx from dL/dx'."""
        if self.radius > 0:
            dx = dx - (self.x * dx).sum(-1, keepdims=True) * self.x / Exact(self.radius) ** 2
        return self.scale * dx


def bucket_of(lag, buckets, causal, max_distance):
    """Raffel et al. 2020, in single precision, as published."""
    first = 0
    distance = max(-lag, 0) if causal else abs(lag)
    if not causal:
        buckets //= 2
        first = buckets if lag > 0 else 0
    near = buckets // 2
    if distance < near:
        return first + distance
    beyond = np.float32(np.log(distance / near)) / np.float32(np.log(max_distance / near)) * np.float32(buckets - near)
    return first + min(buckets - 1, near + int(beyond))


def spline_of_values(distances, knots, end):
    """The spline [.., k] for each value 1 and others 0: with the steps h and second derivatives M of the values v
    h_{i-1} M_{i-1} + 2 (h_{i-1} + h_i) M_i + h_i M_{i+1} = 6 ((v_{i+1} - v_i) / h_i - (v_i - v_{i-1}) / h_{i-1})."""
    x, last = np.log1p(np.array(knots, np.float64)), len(knots) - 1
    h, v, left, right = np.diff(x), np.eye(last + 1), np.eye(last + 1), np.zeros((last + 1, last + 1))
    for i in range(1, last + (end == "constant")):  # M is 0 at distance 0, and at the last knot of a linear end
        left[i, i - 1 : i + 1] = h[i - 1], 2 * h[i - 1]
        right[i] = -6 * (v[i] - v[i - 1]) / h[i - 1]
        if i < last:
            left[i, i : i + 2] += 2 * h[i], h[i]
            right[i] += 6 * (v[i + 1] - v[i]) / h[i]
    M = np.linalg.solve(left, right)
    j = np.clip(np.searchsorted(knots, distances, "right") - 1, 0, last - 1)
    step = h[j][..., None]
    b = (np.log1p(np.minimum(distances, knots[-1])) - x[j])[..., None] / step
    a = 1 - b
    found = a * v[j] + b * v[j + 1] + ((a**3 - a) * M[j] + (b**3 - b) * M[j + 1]) * step**2 / 6
    slope = (v[-1] - v[-2]) / h[-1] + h[-1] * (M[-2] + 2 * M[-1]) / 6
    beyond = np.maximum(distances - knots[-1], 0)[..., None] / (1 + knots[-1])
    return found + (beyond * slope if end == "linear" else 0)


def curve_of(position, p, lags):
    """The biases of a curve with the parameters p at lags up to its reach, and their derivatives [.., p]."""
    s = np.abs(lags).astype(np.float64)
    if isinstance(position, nprf.Kerple) and position.kind == "log":
        return -p[0] * np.log1p(p[1] * s), np.stack([-np.log1p(p[1] * s), -p[0] * s / (1 + p[1] * s)], -1)
    if isinstance(position, nprf.Kerple):
        power = np.where(s > 0, s ** p[1], 0)
        return -p[0] * power, np.stack([-power, -p[0] * power * np.log(np.maximum(s, 1))], -1)
    if isinstance(position, nprf.AlibiSum):
        a, slopes = p.reshape(2, -1)
        x = a - slopes * s[..., None]
        b = np.logaddexp.reduce(x, -1)
        share = np.exp(x - b[..., None])
        return b, np.concatenate([share, -share * s[..., None]], -1)
    basis = spline_of_values(s, position.knots, position.end)
    if len(p) > len(position.knots):
        later = (lags > 0)[..., None]
        basis = np.concatenate([np.where(later, 0, basis), np.where(later, basis, 0)], -1)
    return basis @ p, basis


class Biases:
    """b [n_q, n_k] of one head, up to a constant of each row, and `terms`: parameters on which each depends (-1: none),
    and its derivatives. parameters: those of the position, then those of extra tokens."""

    def __init__(self, position, head, n_q, n_k, offset, causal):
        self.near_distance = np.abs(np.arange(n_k)[None, :] - np.arange(n_q)[:, None] - offset)
        self.at = np.full((n_q, n_k), -1)
        self.b = np.zeros((n_q, n_k), Exact)
        if position is None:
            return
        own = position.parameters
        own = own[min(head, len(own) - 1)] if own.ndim > position._dims else own
        self.parameters = own.astype(Exact).ravel()
        if isinstance(position, nprf.Grid):
            self._set_grid(position, head, n_q)
        lags = np.arange(n_k)[None, :] - np.arange(n_q)[:, None] - offset
        if isinstance(position, nprf.RelativePosition):
            reach = len(self.parameters) // 2
            self.at = np.clip(lags, -reach, reach) + reach
        elif isinstance(position, nprf.T5):
            each, where = np.unique(lags, return_inverse=True)
            buckets = [bucket_of(int(lag), len(self.parameters), causal, position.max_distance) for lag in each]
            self.at = np.array(buckets, int)[where].reshape(lags.shape)
        elif hasattr(position, "reach"):
            return self._set_curve(position, own.dtype, lags)
        if not isinstance(position, nprf.Alibi):
            self.b, self.terms = self.parameters[self.at], [(self.at, np.ones((n_q, n_k), Exact))]
            return
        self.terms = [(np.zeros(lags.shape, int), -np.abs(lags).astype(Exact))]
        self.b = -self.parameters[0] * (np.abs(lags) - np.abs(lags).min(-1, initial=2**62, keepdims=True))

    def _set_curve(self, position, dtype, lags):
        """A table in the type of the call, and straight lines through its last two lags."""
        reach = position.reach
        b, derivatives = curve_of(position, self.parameters.astype(np.float64), np.arange(-reach, reach + 1))
        end, beyond = np.clip(lags, -reach, reach) + reach, np.maximum(np.abs(lags) - reach, 0)
        inner = end - np.sign(lags)
        slope = (b[end] - b[inner]).astype(dtype).astype(Exact)
        self.b = b.astype(dtype).astype(Exact)[end] + np.where(beyond > 0, beyond * slope, 0)
        steps = beyond[..., None]
        derivatives = derivatives[end] + np.where(steps > 0, steps * (derivatives[end] - derivatives[inner]), 0)
        self.terms = [(np.full(lags.shape, p), derivatives[..., p].astype(Exact)) for p in range(len(self.parameters))]

    def _set_grid(self, position, head, n):
        height, width, extra = position.height, position.width, position.extra
        E = 0 if extra is None else extra.shape[-2]
        if E > 0:
            extra = extra[min(head, len(extra) - 1)] if extra.ndim > 2 else extra
            self.parameters = np.concatenate([self.parameters, extra.astype(Exact).ravel()])
        first = (2 * height - 1) * (2 * width - 1)
        for i in range(n):
            for j in range(n):
                down, right = ((j - E) // width - (i - E) // width), ((j - E) % width - (i - E) % width)
                if i < E:
                    self.at[i, j] = first + i * (E + 2) + (2 + j if j < E else 0)
                elif j < E:
                    self.at[i, j] = first + j * (E + 2) + 1
                else:
                    self.at[i, j] = (down + height - 1) * (2 * width - 1) + right + width - 1
                self.near_distance[i, j] = 2**62 if i < E or j < E else max(abs(down), abs(right))


class Call:
    """One call of attention, with arrays [batch, heads, tokens, channels] of float32 or float64, and its exact results:
    y, and with dy the gradients dq, dk, dv and db [heads, parameters]."""

    def __init__(self, attention, q, k, v, kept=None, sequences=None, offset=0):
        """kept: bool [batch, n_k]. sequences: ((first query, end), (first key, end)) of those that are packed."""
        self.attention, self.q, self.k, self.v, self.offset = attention, q, k, v, offset
        self.kept = np.ones((q.shape[0], k.shape[2]), bool) if kept is None else kept
        self.sequences = [((0, q.shape[2]), (0, k.shape[2]))] if sequences is None else sequences
        features = attention.features
        self.maps = features.maps if isinstance(features, nprf.HeadFeatures) else (features,)
        self.eta = Exact(np.finfo(q.dtype).tiny)
        self._biases = {}

    def biases(self, head, n_q, n_k):
        position = self.attention.position
        key = head if position is not None and position.parameters.ndim > position._dims else 0, n_q, n_k
        if key not in self._biases or getattr(position, "extra", None) is not None:
            self._biases[key] = Biases(position, head, n_q, n_k, self.offset, self.attention.causal)
        return self._biases[key]

    def parts(self):
        """One sequence of one head after the other, with where it is."""
        group = self.q.shape[1] // max(self.k.shape[1], 1)
        for b in range(self.q.shape[0]):
            for h in range(self.q.shape[1]):
                for (q0, q1), (k0, k1) in self.sequences:
                    yield b, h, h // group, slice(q0, q1), slice(k0, k1)

    def check_rows(self, y, report):
        """Each row is that of the formula, or where this may be, of exact softmax, within the bound. Returns which are
        of exact softmax, [batch, heads, n_q]; None where both are, or the row is not checked."""
        found = np.full(y.shape[:3], None, dtype=object)
        empty = softmax_rows = 0
        for b, h, g, rows, keys in self.parts():
            part = Part(self, b, h, g, rows, keys)
            attends = part.attends.any(-1)
            empty += np.count_nonzero(~attends)
            got = y[b, h, rows].astype(Exact)
            assert not got[~attends].any()
            bound = Exact(report.error_bound) * part.v_max[:, None] + self.eta
            near = {}
            for is_softmax in (False, True) if part.may_be_softmax else (False,):
                part.weigh(np.full(len(got), is_softmax))
                near[is_softmax] = (np.abs(got - part.y) <= bound).all(-1) | ~part.is_checked
                found[b, h, rows][attends & part.is_checked & near[is_softmax]] = is_softmax
            ok = near[False] | near.get(True, False)
            assert (ok | ~attends).all(), self._worst(got, part, bound, ok)
            if part.may_be_softmax:
                found[b, h, rows][near[False] & near[True]] = None
                softmax_rows += np.count_nonzero(attends & near[True] & ~near[False])
        assert report.empty_rows == empty and report.repaired_rows >= softmax_rows
        return found

    def _worst(self, got, part, bound, ok):
        row = int(np.argmin(ok))
        return f"row {row}: got {got[row]}, expected {part.y[row]}, bound {bound[row]}"

    def check_gradients(self, dy, gradients, report, is_softmax):
        """dq, dk, dv and db [heads, parameters] (or None) are exact within the bounds. is_softmax: of check_rows(), and
        without None."""
        G, eta = Exact(report.error_bound), self.eta
        root = np.sqrt(eta)
        exact = [np.zeros(x.shape, Exact) for x in (self.q, self.k, self.v)]
        allowed = [np.zeros(x.shape[:3], Exact) for x in (self.q, self.k, self.v)]
        parameters = None if gradients[3] is None else gradients[3].shape
        db, db_allowed = (
            (None, None) if parameters is None else (np.zeros(parameters, Exact), np.zeros(parameters, Exact))
        )
        for b, h, g, rows, keys in self.parts():
            part = Part(self, b, h, g, rows, keys)
            part.weigh(is_softmax[b, h, rows].astype(bool))
            part.differentiate(dy[b, h, rows].astype(Exact))
            p, s, size = part.p, part.s, part.dy_size
            dq, dk = part.dq, part.dk
            exact[0][b, h, rows] += dq
            exact[1][b, g, keys] += dk
            exact[2][b, g, keys] += part.dv
            L, L_k = part.L_q, part.L_k
            all_s = s.sum() + root * len(s) * size.max(initial=0) * part.v_max.max(initial=0)
            count = part.attends.sum(-1)
            allowed[0][b, h, rows] += (G * p.sum(-1) + root * count) * s * L + eta * np.maximum(L, 1)
            attended = part.attends.any(0)
            of_key = (G * (p * s[:, None]).sum(0) + root * all_s) * L_k + eta * np.maximum(L_k, 1)
            allowed[1][b, g, keys] += np.where(attended, of_key, 0)
            allowed[2][b, g, keys] += np.where(attended, G * (p * size[:, None]).sum(0) + root * size.sum() + eta, 0)
            if db is not None:
                attends, sums = part.attends, np.zeros((3, db.shape[1]), Exact)
                for at, slope in part.biases.terms:
                    size_of = np.abs(slope)
                    for sum_of, each in zip(sums, (part.dlogit * slope, p * s[:, None] * size_of, size_of)):
                        np.add.at(sum_of, at[attends], each[attends])
                db[h] += sums[0]
                db_allowed[h] += G * sums[1] + root * all_s * sums[2] + eta * np.maximum(sums[2], 1)
        for name, got, e, bound in zip(("dq", "dk", "dv"), gradients, exact, allowed):
            error = np.abs(got - e).max(-1, initial=0) if name == "dv" else np.sqrt(((got - e) ** 2).sum(-1))
            assert (error <= bound).all(), (name, float((error / np.maximum(bound, eta)).max()))
        if db is not None:
            error = np.abs(gradients[3] - db)
            assert (error <= db_allowed).all(), ("db", float((error / np.maximum(db_allowed, eta)).max()))


class Part:
    """One sequence of one head."""

    def __init__(self, call, b, h, g, rows, keys):
        attention, self.eta = call.attention, call.eta
        features, radius = call.maps[min(h, len(call.maps) - 1)], attention.normalization.radius
        self.v = call.v[b, g, keys].astype(Exact)
        self.queries = Features(features, radius, call.q[b, h, rows], call.q.dtype)
        self.keys = Features(features, radius, call.k[b, g, keys], call.q.dtype)
        n_q, n_k = len(self.queries.x), len(self.keys.x)
        self.biases = call.biases(h, n_q, n_k)
        b_ij, kept = self.biases.b, call.kept[b, keys]
        lags = np.arange(n_k)[None, :] - np.arange(n_q)[:, None] - call.offset
        self.attends = kept[None, :] & (b_ij > -np.inf) & ((lags <= 0) | (not attention.causal))
        self.is_exact = self.biases.near_distance < attention.near
        self.is_exact |= (kept & (np.cumsum(kept) <= attention.sinks))[None, :]
        self.may_be_softmax = attention.near > 0 or attention.sinks > 0 or self.queries.is_series
        most = np.where(self.attends, b_ij, -np.inf).max(-1, initial=-np.inf, keepdims=True)
        self.factor = np.where(
            self.attends, np.exp(np.where(self.attends, b_ij - np.where(most > -np.inf, most, 0), 0)), 0
        )
        self.v_max = np.where(self.attends, np.abs(self.v).max(-1, initial=0)[None, :], 0).max(-1, initial=0)

    def weigh(self, is_softmax):
        """Sets y, with rows of exact softmax where is_softmax [n_q]."""
        q, k = self.queries, self.keys
        self.exact = self.is_exact | is_softmax[:, None]
        estimate = q.phi @ k.phi.T
        size = estimate
        if q.is_signed:
            size = np.sqrt((q.phi**2).sum(-1))[:, None] * np.sqrt((k.phi**2).sum(-1))[None, :]
        softmax = np.exp(q.x @ k.x.T)
        self.w = self.factor * np.where(self.exact, softmax, estimate)
        size = (self.factor * np.where(self.exact, softmax, size)).sum(-1)
        self.D = self.w.sum(-1)
        self.is_checked = (self.D > 0) & (size <= worst_condition * self.D) if q.is_signed else np.full(len(size), True)
        D = np.where(self.D > 0, self.D, 1)[:, None]
        self.p = np.where(self.exact | (not q.is_signed), self.w, self.factor * np.abs(self._sizes())) / D
        self.y = self.w @ self.v / D

    def _sizes(self):
        return np.sqrt((self.queries.phi**2).sum(-1))[:, None] * np.sqrt((self.keys.phi**2).sum(-1))[None, :]

    def differentiate(self, dy):
        q, k = self.queries, self.keys
        D = np.where(self.D > 0, self.D, 1)[:, None]
        attends = self.attends.any(-1)
        dy = np.where(attends[:, None], dy, 0)
        self.dy_size = np.abs(dy).sum(-1)
        self.s = self.dy_size * np.maximum(self.v_max, self.eta * self.v_max.max(initial=0))
        dw = (dy @ self.v.T - (dy * self.y).sum(-1, keepdims=True)) / D
        self.dlogit = dw * self.w  # dL/db_ij
        self.dv = (self.w / D).T @ dy
        dscore = np.where(self.exact, self.dlogit, 0)
        dphi = np.where(self.exact, 0, dw * self.factor)
        self.dq = q.backward(dscore @ k.x + np.einsum("irc,ir->ic", q.sides, dphi @ k.phi))
        self.dk = k.backward(dscore.T @ q.x + np.einsum("jrc,jr->jc", k.sides, dphi.T @ q.phi))
        self.L_q, self.L_k = q.steepness, k.steepness
        if self.may_be_softmax:
            taking_part = self.attends.any(0)
            self.L_q = self.L_q + q.scale[:, 0] * np.where(taking_part, k.norms, 0).max(initial=0)
            self.L_k = self.L_k + k.scale[:, 0] * q.norms.max(initial=0)
