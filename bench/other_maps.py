# SPDX-License-Identifier: MIT
"""other_maps.py [FOLDER]: feature maps that nprf does not have, beside its calibrated maps.

Data and error are those of head_errors.cpp: queries.npy, keys.npy and values.npy (heads, tokens, channels) of FOLDER,
or the demo's; maps are from the first half of the text, and y is compared with exact softmax attention over the second,
in per cent by the Frobenius norm over all heads. Needs numpy, PyTorch and nprf.

Queries and keys are centred and balanced (nprf.balance). A map estimates exp(q.k) of these by phi(q).psi(k); pairs in
the near field have their exact weights. As in nprf, with features of both signs a row whose terms cancel is that of
exact softmax; the number of these is in parentheses if it is more than one in a hundred. s: processor seconds of
fitting.
"""

import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nprf
import numpy as np
import torch

DATA = Path(__file__).resolve().parent.parent / "examples" / "data"
SLOPE, REACH = 0.08, 40  # the bias falls by SLOPE a token up to a distance of REACH
NEAR = (0, 32)


class Text:
    """Both halves of a text at one norm, or at the model's own norms, q.k / sqrt(d), if the norm is 0.

    A half has q and k, centred and balanced, and v, all (heads, n, d); f (heads, n, n), the factor of a pair's weight
    beside exp(q.k), from its bias and from the centring of queries; E = f exp(q.k); and y, exact softmax attention.
    """

    def __init__(self, folder, norm):
        self.arrays = [np.load(folder / f"{name}.npy").astype(np.float32) for name in ("queries", "keys", "values")]
        self.normalization = nprf.Normalization.unit(norm) if norm else nprf.Normalization.none()
        q, k, v = map(torch.tensor, self.arrays)
        self.heads, self.tokens, self.d = q.shape
        q, k = (norm * x / x.norm(dim=-1, keepdim=True) if norm else x / self.d**0.25 for x in (q, k))
        n = self.tokens // 2
        balances = [nprf.balance(q[h, :n].numpy(), k[h, :n].numpy(), normalization=None) for h in range(self.heads)]

        def constants(get):
            return torch.tensor(np.array([get(b) for b in balances]), dtype=torch.float32)

        nu, mu = (constants(lambda b: getattr(b.centring, name)[None]) for name in ("query_mean", "key_mean"))
        query_axes, key_axes = (constants(lambda b: getattr(b.centring, name)) for name in ("query_axes", "key_axes"))
        self.variances = constants(lambda b: b.variances)  # (heads, d)
        self.halves = []
        for start in (0, n):
            rows = slice(start, start + n)
            half = SimpleNamespace(v=v[:, rows], q=(q[:, rows] - nu) @ query_axes.mT, k=(k[:, rows] - mu) @ key_axes.mT)
            position = torch.arange(n)
            half.distance = (position[None] - position[:, None]).abs()
            half.log_key = ((k[:, rows] - mu) @ nu.mT).mT  # (heads, 1, n)
            log_factor = half.log_key - SLOPE * half.distance.clamp(max=REACH)
            largest = (half.q @ half.k.mT + log_factor).amax(-1, keepdim=True)
            half.f = (log_factor - largest).exp()
            half.E = (half.q @ half.k.mT + log_factor - largest).exp()
            half.y = half.E @ half.v / half.E.sum(-1, keepdim=True)
            self.halves.append(half)


def error(half, features, near):
    """The error in per cent, and how many rows are those of exact softmax."""
    phi, psi = features(half.q, half.k)
    is_near = half.distance < near
    W = torch.where(is_near, half.E, (phi @ psi.mT) * half.f)
    D = W.sum(-1, keepdim=True)
    y = W @ half.v / D
    cancels = D <= 0
    if (phi < 0).any() or (psi < 0).any():
        size = torch.where(is_near, half.E, phi.norm(dim=-1)[..., None] * psi.norm(dim=-1)[:, None] * half.f)
        cancels |= size.sum(-1, keepdim=True) > 16 * D
    y = torch.where(cancels, half.y, y)
    return 100 * float((y - half.y).norm() / half.y.norm()), int(cancels.sum())


def rule(w, p):
    """exp(q.k) is the mean of exp(w.q - |q|^2/2) exp(w.k - |k|^2/2) over Gaussian w: the sum over nodes w (r, s), with
    weights p (r), for the s coordinates of largest variance. The others count as 0."""
    s = w.shape[1]

    def side(x, weights):
        x = x[..., :s]
        return (x @ w.T - (x**2).sum(-1, keepdim=True) / 2).exp() * weights

    return lambda q, k: (side(q, p.abs().sqrt()), side(k, p.abs().sqrt() * p.sign()))


def gauss_hermite(s):
    """Two nodes in each of s directions: 2^s."""
    return rule(torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * s), torch.full((2**s,), 2.0**-s))


def cross_polytope(s):
    """2 s nodes on the axes, exact for polynomials of degree 3."""
    return rule(s**0.5 * torch.cat([torch.eye(s), -torch.eye(s)]), torch.full((2 * s,), 1 / (2 * s)))


def sparse_grid(s):
    """Smolyak's rule of level 2 with 2 s + 1 nodes. The weight of the one at 0 is negative."""
    nodes = torch.cat([torch.zeros(1, s), torch.eye(s), -torch.eye(s)])
    return rule(nodes, torch.tensor([1.0 - s] + [0.5] * (2 * s)))


def sobol(s, r):
    """r points of a scrambled Sobol sequence, as Gaussian vectors."""
    u = torch.quasirandom.SobolEngine(s, scramble=True, seed=0).draw(r).clamp(1e-6, 1 - 1e-6)
    return rule(torch.special.ndtri(u), torch.full((r,), 1 / r))


def polynomials(x, second):
    """1, the coordinates, and the products of pairs of the first `second` ones."""
    i, j = torch.triu_indices(second, second)
    return torch.cat([torch.ones_like(x[..., :1]), x, x[..., i] * x[..., j]], -1)


def mehler(variances):
    """The scale sqrt(rho / lambda) of coordinates, rho and the constant of hermite_features()."""
    root = 1 + (1 + 4 * variances**2).sqrt()
    rho = 2 * variances / root
    return (2 / root).sqrt(), rho, (1 - rho**2).log().sum(-1) / 4


def low_rank(text, r, second=8, ridge=0.003):
    """Linear maps of polynomials, times the row factors of Mehler's formula.

    The r terms are the largest of the singular value decomposition of exp(q.k), in orthonormal polynomials of the first
    half (but for a ridge).
    """
    half, scale = text.halves[0], mehler(text.variances)[0][:, None]
    deviation = text.variances.sqrt()[:, None]

    def features(x):
        curved = (text.variances[:, None] * (scale * x) ** 2).sum(-1, keepdim=True) / 2
        return polynomials(x / deviation, second) * curved.exp()

    def axes(f):
        values, vectors = torch.linalg.eigh(f.mT @ f / f.shape[1])
        return vectors * (values.clamp(min=0) + ridge).rsqrt()[:, None]

    f, g = features(half.q), features(half.k)
    A, B = axes(f), axes(g)
    U, S, V = torch.linalg.svd((f @ A).mT @ (half.q @ half.k.mT).exp() @ (g @ B) / f.shape[1] ** 2)
    left, right = A @ U[..., :r] * S[:, None, :r], B @ V.mT[..., :r]
    return lambda q, k: (features(q) @ left, features(k) @ right)


def centres(x, c):
    """c means of the rows of x (n, d) by Lloyd's algorithm."""
    means = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:c]]
    for _ in range(20):
        nearest = torch.cdist(x, means).argmin(1)
        means = torch.stack([x[nearest == i].mean(0) if (nearest == i).any() else means[i] for i in range(c)])
    return means


def clusters(text, c, s):
    """For each of c clusters of queries exp(centre.k) (1 + (q - centre).(k - mean)), in the s directions in which the
    product varies most, with means and covariances of keys that have the weights exp(centre.k)."""
    half, (h, d) = text.halves[0], (text.heads, text.d)
    centre = torch.stack([centres(x, c) for x in half.q])
    mean, P, R = torch.zeros(h, c, d), torch.zeros(h, c, d, s), torch.zeros(h, c, d, s)

    def root(x, weights, shrinkage):
        S = x.mT @ (x * weights[:, None])
        return torch.linalg.cholesky((1 - shrinkage) * S + (shrinkage * S.trace() / d + 1e-6) * torch.eye(d))

    for i in range(h):
        nearest = torch.cdist(half.q[i], centre[i]).argmin(1)
        for j in range(c):
            weights = torch.softmax(half.k[i] @ centre[i, j] + half.log_key[i, 0], 0)
            mean[i, j] = weights @ half.k[i]
            x = half.q[i][nearest == j] - centre[i, j]
            A = root(x, torch.full((len(x),), 1 / max(len(x), 1)), 0.2)
            B = root(half.k[i] - mean[i, j], weights, 0.05)
            U, S, V = torch.linalg.svd(A.mT @ B)
            P[i, j] = torch.linalg.solve(A.mT, U[:, :s])
            R[i, j] = torch.linalg.solve(B.mT, V.mT[:, :s] * S[:s])

    def features(q, k):
        chosen = torch.nn.functional.one_hot(torch.cdist(q, centre).argmin(-1), c)  # (h, n, c)
        x, z = q[:, :, None] - centre[:, None], k[:, :, None] - mean[:, None]  # (h, n, c, d)
        of_q = chosen * torch.einsum("hncd,hcd->hnc", x, mean).clamp(max=50).exp()
        of_k = (k @ centre.mT).exp()
        phi = of_q[..., None] * torch.cat([torch.ones_like(x[..., :1]), torch.einsum("hncd,hcds->hncs", x, P)], -1)
        psi = of_k[..., None] * torch.cat([torch.ones_like(z[..., :1]), torch.einsum("hncd,hcds->hncs", z, R)], -1)
        return phi.flatten(2), psi.flatten(2)

    return features


def learned(text, near, make, parameters, steps, rate=0.005):
    """make(parameters), after `steps` steps of Adam for the error of the first half."""
    half = text.halves[0]
    parameters = [p.clone().requires_grad_(True) for p in parameters]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    far = torch.where(half.distance < near, 0, half.f)
    values = torch.cat([half.v, torch.ones_like(half.v[..., :1])], -1)  # with a column of ones, for the denominators
    near_sums = torch.where(half.distance < near, half.E, 0) @ values
    for _ in range(steps):
        optimizer.zero_grad()
        phi, psi = make(*parameters)(half.q, half.k)
        sums = near_sums + (phi @ psi.mT * far) @ values
        ((sums[..., :-1] / sums[..., -1:] - half.y).norm() / half.y.norm()).square().backward()
        optimizer.step()
        schedule.step()
    return make(*[p.detach() for p in parameters])


def positive(text, near, r):
    """phi_r = exp(w_r.q + a_r), psi_r = exp(u_r.k + c_r), from random w = u."""
    w = torch.randn(text.heads, r, text.d, generator=torch.Generator().manual_seed(0)) / 2
    a = torch.full((text.heads, 1, r), -math.log(r) / 2)

    def make(w, u, a, c):
        return lambda q, k: ((q @ w.mT + a).exp(), (k @ u.mT + c).exp())

    return learned(text, near, make, [w, w, a, a], steps=200, rate=0.02)


def refined(text, near, second):
    """The Hermite features of nprf's calibrated maps, all of whose constants are then learned."""
    scale, rho, constant = mehler(text.variances)
    i, j = torch.triu_indices(second, second)

    def side(x, axes, shift, slope, curvature, constant):
        z = x @ axes.mT + shift
        products = z[..., i] * z[..., j]
        products = torch.where(i == j, (products - rho[:, None, i]) / math.sqrt(2), products)
        log_factor = (curvature * x**2 + slope * x).sum(-1, keepdim=True) + constant
        return torch.cat([torch.ones_like(z[..., :1]), z, products], -1) * log_factor.exp()

    def make(*p):
        return lambda q, k: (side(q, *p[:5]), side(k, *p[5:]))

    zero = torch.zeros(text.heads, 1, text.d)
    curvature = (text.variances * scale**2 / 2)[:, None]
    one_side = [torch.diag_embed(scale), zero, zero, curvature, constant[:, None, None]]
    return learned(text, near, make, one_side + one_side, steps=100)


def calibrated(text, near, r):
    """The error of nprf's own map."""
    b = -SLOPE * np.abs(np.arange(-REACH, REACH + 1, dtype=np.float32))
    options = dict(near=near, normalization=text.normalization)
    position = nprf.RelativePosition(b)
    features = nprf.calibrate(*text.arrays, position, num_features=r, **options).features
    n = text.tokens // 2
    second_half = [np.ascontiguousarray(x[:, n:]) for x in text.arrays]
    report = nprf.Attention(features, position, **options)(*second_half, report=True, softmax_samples=n)[1]
    return 100 * report.softmax_error, report.repaired_rows


def rows(d):
    """Name, number of features, and the map of a text and a near field, or its error."""
    s = d.bit_length() - 1  # 2^s = d
    less, more = d + 1, d + 37
    yield from (("nprf: calibrated", r, lambda t, near, r=r: calibrated(t, near, r)) for r in (less, more))
    yield "positive: Gauss-Hermite", 2**s, lambda t, near: gauss_hermite(s)
    yield "positive: Gauss-Hermite", 2 ** (s + 1), lambda t, near: gauss_hermite(s + 1)
    yield "positive: points on d / 2 axes", d, lambda t, near: cross_polytope(d // 2)
    yield "positive: points on d axes", 2 * d, lambda t, near: cross_polytope(d)
    yield from (("positive: Sobol, 8 directions", r, lambda t, near, r=r: sobol(8, r)) for r in (less, more))
    yield from (("positive: learned", r, lambda t, near, r=r: positive(t, near, r)) for r in (less, more))
    yield "sparse grid, d / 2 directions", d + 1, lambda t, near: sparse_grid(d // 2)
    yield "sparse grid", 2 * d + 1, lambda t, near: sparse_grid(d)
    yield "clusters of queries: 3", 3 * (1 + d // 3), lambda t, near: clusters(t, 3, d // 3)
    yield "clusters of queries: 2", 2 * (1 + d), lambda t, near: clusters(t, 2, d)
    yield from (("polynomials, SVD", r, lambda t, near, r=r: low_rank(t, r)) for r in (less, more))
    yield "calibrated, then learned", less, lambda t, near: refined(t, near, 0)
    yield "calibrated, then learned", more, lambda t, near: refined(t, near, 8)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    texts = [Text(folder, norm) for norm in (1, 2, 0)]
    total = texts[0].heads * (texts[0].tokens // 2)
    columns = [x for case in ("norm 1", "norm 2", "own norms") for x in (case, f"{case}, near 32")]
    print("| " + " | ".join(["map", "features", *columns, "s"]) + " |\n" + "|---" * 9 + "|")
    for name, r, make in rows(texts[0].d):
        cells, seconds = [], 0.0
        for text in texts:
            for near in NEAR:
                start = time.process_time()
                result = make(text, near)
                seconds += time.process_time() - start
                value, recomputed = result if isinstance(result, tuple) else error(text.halves[1], result, near)
                cells.append(f"{value:.3g}" + (f" ({recomputed})" if 100 * recomputed > total else ""))
        print(f"| {name} | {r} | " + " | ".join(cells) + f" | {seconds / len(cells):.2g} |", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
