# SPDX-License-Identifier: MIT
"""Attentions that the paper compares with, in plain torch.

Queries, keys and values are [batch, heads, tokens, channels].
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def trigonometric_features(x, vectors):
    """[sin(w.x), cos(w.x)] / sqrt(m) of rows of norm 1 for m random vectors [m, d] (Peng et al. 2021, equation 4)."""
    angles = x @ vectors.T  # [..., m]
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / math.sqrt(len(vectors))


class PlainFeatures(nn.Module):
    """Causal attention with positive features (Choromanski et al. 2021): phi(x) = exp(w.x - |x|^2 / 2) / sqrt(m).

    radius: the norm of queries and keys; 0 divides q.k by sqrt(d). way: how the weights phi(q).phi(k) are computed.

    - "plain": as the formula stands.
    - "scaled": features are divided by the largest of their row, and weights by the largest factor of the keys up to the
      query, which cancels in the quotient and keeps floating-point numbers in range.
    - "logarithms": the softmax of log(phi(q).phi(k)), each a sum of exponentials relative to the largest; n^2 m numbers.
    """

    WAYS = ("plain", "scaled", "logarithms")

    def __init__(self, d, features, radius, seed, way="plain"):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("vectors", torch.randn(features, d, generator=generator))
        self.radius, self.way = radius, way

    def _exponents(self, x):
        x = self.radius * F.normalize(x, dim=-1) if self.radius > 0 else x * x.shape[-1] ** -0.25
        return x @ self.vectors.T - x.square().sum(-1, keepdim=True) / 2  # [b, h, n, m]

    def forward(self, q, k, v, x):
        q, k = self._exponents(q), self._exponents(k)
        if self.way == "logarithms":
            logits = (q[..., :, None, :] + k[..., None, :, :]).logsumexp(-1)  # [b, h, n, n]
            later = torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1)
            return logits.masked_fill(later, -math.inf).softmax(-1) @ v
        factors = 1 / len(self.vectors)
        if self.way == "scaled":
            of_keys = k.detach().amax(-1)
            q, k = q - q.detach().amax(-1, keepdim=True), k - of_keys[..., None]
            # of later keys it may be infinite
            factors = (of_keys[..., None, :] - of_keys.cummax(-1).values[..., None]).clamp_max(0).exp()
        weights = (q.exp() @ k.exp().transpose(-1, -2) * factors).tril()
        return weights @ v / weights.sum(-1, keepdim=True)


class GatedRandomFeatures(nn.Module):
    """RFA with a gate, causal (Peng et al. 2021, section 3.2): with g_t = sigmoid(w.x_t + b) of each head,

        S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T,   z_t = g_t z_{t-1} + (1 - g_t) phi(k_t),
        y_t = phi(q_t)^T S_t / phi(q_t).z_t

    for queries and keys of norm 1. Here all t at once: the weight of key j is (1 - g_j) g_{j+1} ... g_t.
    """

    smallest = 1e-3  # denominators nearer to zero are replaced by it: trigonometric features have both signs

    def __init__(self, dim, heads, features, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("vectors", torch.randn(features, dim // heads, generator=generator))
        self.gate = nn.Linear(dim, heads)
        nn.init.constant_(self.gate.bias, 3.0)  # a memory of some 20 tokens

    def forward(self, q, k, v, x):
        """x [batch, tokens, dim]: the layer's input, of which the gate is computed."""
        logits = self.gate(x).transpose(1, 2)  # [b, h, n]
        kept = F.logsigmoid(logits).cumsum(-1)
        decay = kept[..., :, None] - kept[..., None, :] + F.logsigmoid(-logits)[..., None, :]  # [b, h, n, n]
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        phi_q, phi_k = (trigonometric_features(F.normalize(each, dim=-1), self.vectors) for each in (q, k))
        weights = phi_q @ phi_k.transpose(-1, -2) * decay.masked_fill(~past, -math.inf).exp()
        denominators = weights.sum(-1, keepdim=True)
        sign = torch.where(denominators < 0, -1.0, 1.0)
        return weights @ v / (sign * denominators.abs().clamp_min(self.smallest))


class Linformer(nn.Module):
    """Wang et al. 2020: softmax(q (E k)^T / sqrt(d)) F v, with learned E and F [rank, tokens], shared by the heads."""

    def __init__(self, tokens, rank):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(rank, tokens) / math.sqrt(tokens))
        self.values = nn.Parameter(torch.randn(rank, tokens) / math.sqrt(tokens))

    def forward(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, self.keys @ k, self.values @ v)


def pseudoinverse(a, iterations=6):
    """The iteration of Xiong et al. 2021, equation 11: Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4."""
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    scale = a.abs().sum(-2).amax(-1) * a.abs().sum(-1).amax(-1)  # norms 1 and infinity of each matrix
    z = a.transpose(-1, -2) / scale[..., None, None]
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
    return z


class Nystromformer(nn.Module):
    """Xiong et al. 2021: softmax(q k~^T) softmax(q~ k~^T)^+ softmax(q~ k^T) v, logits divided by sqrt(d), plus a depthwise
    convolution of the values over `kernel` tokens (0: none); q~ and k~ are the means of equal segments of tokens."""

    def __init__(self, heads, landmarks, kernel=33, iterations=6):
        super().__init__()
        self.landmarks, self.iterations = landmarks, iterations
        self.convolution = None
        if kernel > 0:
            self.convolution = nn.Conv2d(heads, heads, (kernel, 1), padding=(kernel // 2, 0), groups=heads, bias=False)

    def forward(self, q, k, v, x):
        tokens, d = q.shape[-2:]
        if tokens % self.landmarks != 0:
            raise ValueError(f"tokens: expected a multiple of {self.landmarks} (landmarks), got {tokens}")
        q, k = q * d**-0.25, k * d**-0.25
        q_means, k_means = (each.unflatten(-2, (self.landmarks, -1)).mean(-2) for each in (q, k))
        of_landmarks = (q_means @ k_means.transpose(-1, -2)).softmax(-1)
        to_values = (q_means @ k.transpose(-1, -2)).softmax(-1) @ v
        from_queries = (q @ k_means.transpose(-1, -2)).softmax(-1)
        y = from_queries @ (pseudoinverse(of_landmarks, self.iterations) @ to_values)
        return y if self.convolution is None else y + self.convolution(v)
