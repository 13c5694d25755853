# SPDX-License-Identifier: MIT
"""The Transformers of all experiments: a language model (causal or masked), an encoder-decoder and an image model.

They differ from each other only in what is around the blocks, and their variants only in `Mechanism`.
"""

import dataclasses
import math
from typing import Union

import nprf
import nprf.torch
import torch
import torch.nn.functional as F
from torch import nn

from .rivals import GatedRandomFeatures, Linformer, Nystromformer, PlainFeatures

BUCKETS, MAX_DISTANCE = 32, 128  # of T5's biases
KNOTS = 16  # of a spline, from lag 0 to T5's largest distance
WINDOW, RANK = 64, 16  # of biases that depend on the query


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """How an attention layer computes the weights of keys.

    kernel: softmax, a name in FEATURES, or one of RIVALS. radius: the norm of queries and keys;
    0 does not normalise them, and divides q.k by sqrt(d). rpe: a learned relative position bias, which takes the place of
    absolute positions in texts; "spline" or "alibi": a spline of the distance, or ALiBi, in place of the layer's position;
    "query": biases that depend on the query (QueryBias), which need near = WINDOW.
    features: the number m of random vectors (for Linformer and Nystromformer, the rank). near: pairs less than `near`
    tokens apart have exact weights.
    """

    kernel: str = "softmax"
    radius: float = 0.0
    rpe: Union[bool, str] = False
    features: int = 64
    near: int = 0


FEATURES = {
    "prf": nprf.prf,
    "orf": nprf.orf,
    "sphere": nprf.sphere_prf,
    "simplex": lambda d, m, seed: nprf.RandomFeatures("positive", d, m, "simplex", seed),
    "sphere simplex": lambda d, m, seed: nprf.RandomFeatures("positive", d, m, "sphere_simplex", seed),
    "hyperbolic": nprf.hyperbolic,
    "trf": nprf.trf,
    "elu": lambda d, m, seed: nprf.elu(d),
    "taylor": lambda d, m, seed: nprf.taylor(d),
}

RIVALS = ("plain", "scaled", "logarithms", "gate", "linformer", "nystromformer", "nystromformer_no_convolution")

# Rows of the tables. PRF has orthogonal random vectors, as in the paper's baselines.
MECHANISMS = {
    "softmax": Mechanism(),
    "softmax + RPE": Mechanism(rpe=True),
    "normalised softmax": Mechanism(radius=1.0),
    "normalised softmax + RPE": Mechanism(radius=1.0, rpe=True),
    "elu": Mechanism("elu"),
    "TRF": Mechanism("trf", radius=1.0),
    "TRF, 256 features": Mechanism("trf", radius=1.0, features=256),
    "TRF gate (RFA)": Mechanism("gate"),
    "PRF": Mechanism("orf"),
    "PRF + RPE": Mechanism("orf", rpe=True),
    "NPRF": Mechanism("orf", radius=1.0),
    "NPRF + RPE": Mechanism("orf", radius=1.0, rpe=True),
    "NPRF + spline": Mechanism("orf", radius=1.0, rpe="spline"),
    "Taylor + near field + RPE": Mechanism("taylor", radius=1.0, rpe=True, near=32),
    "Linformer": Mechanism("linformer"),
    "Nystromformer": Mechanism("nystromformer"),
    "Nystromformer, no convolution": Mechanism("nystromformer_no_convolution"),
}


def t5_buckets(lags, causal):
    """The bucket of each lag (key - query position) in the code of Raffel et al. 2020."""
    buckets = BUCKETS if causal else BUCKETS // 2
    distance = (-lags).clamp_min(0) if causal else lags.abs()
    exact = buckets // 2
    scale = (buckets - exact) / math.log(MAX_DISTANCE / exact)
    far = exact + ((distance.clamp_min(1) / exact).log() * scale).long()
    offset = 0 if causal else (lags > 0).long() * buckets
    return offset + torch.where(distance < exact, distance, far.clamp_max(buckets - 1))


class Bias(nn.Module):
    """A bias for each head and position, which is learned: "t5", ("table", reach) for each lag, ("spline", reach), or
    ("grid", H, W), of pictures with a token CLS in front; or ALiBi's fixed one: "alibi"."""

    def __init__(self, heads, position, causal):
        super().__init__()
        self.kind, *self.sizes = (position,) if isinstance(position, str) else position
        self.causal, self.extra, self.module, self.of_sizes = causal, None, None, {}
        if self.kind == "spline":
            self.knots = nprf.log_spaced_knots(KNOTS, MAX_DISTANCE)
            self.module = nprf.torch.SplineBias(heads, self.knots, self.sizes[0], two_sides=not causal)
        if self.kind == "alibi":
            self.module = nprf.torch.AlibiBias(heads)
        if self.module is not None:
            return
        shape = (BUCKETS,)
        if self.kind == "table":
            shape = (2 * self.sizes[0] + 1,)
        if self.kind == "grid":
            shape = tuple(2 * each - 1 for each in self.sizes)
            self.extra = nn.Parameter(torch.zeros(heads, 1, 3))  # CLS to cells, cells to CLS, CLS to itself
        self.weight = nn.Parameter(torch.zeros(heads, *shape))

    def numbers(self):
        """The argument `bias` of nprf.torch.attention."""
        return self.weight if self.module is None else self.module()

    @property
    def of_nprf(self):
        """The argument `position` of nprf.torch.attention."""
        if self.module is not None:
            return self.module.position
        return {"t5": ("t5", MAX_DISTANCE), "table": "table", "grid": ("grid", *self.sizes)}[self.kind]

    def position(self):
        """The same as a position of nprf, for its decoder and its calibration."""
        if self.kind == "alibi":
            return nprf.Alibi(self.numbers().cpu().numpy())
        if self.kind == "spline":
            return nprf.Spline(self.module.values.detach().cpu().numpy(), self.knots, self.sizes[0])
        weight = self.weight.detach().cpu().numpy()
        return nprf.T5(weight, MAX_DISTANCE) if self.kind == "t5" else nprf.RelativePosition(weight)

    def _index(self, n_q, n_k):
        """Where in (weight, extra) the bias of query i and key j is [n_q, n_k]."""
        if self.kind != "grid":
            lags = torch.arange(n_k)[None, :] - torch.arange(n_q)[:, None]
            if self.kind == "t5":
                return t5_buckets(lags, self.causal)
            return lags.clamp(-self.sizes[0], self.sizes[0]) + self.sizes[0]
        height, width = self.sizes
        row, column = (
            each.flatten() for each in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        )
        down, right = row[None, :] - row[:, None] + height - 1, column[None, :] - column[:, None] + width - 1
        table = (2 * height - 1) * (2 * width - 1)
        index = torch.empty(n_q, n_k, dtype=torch.long)
        index[1:, 1:] = down * (2 * width - 1) + right
        index[0, 1:], index[1:, 0], index[0, 0] = table, table + 1, table + 2
        return index

    def matrix(self, n_q, n_k):
        """The bias of every pair [heads, n_q, n_k], which softmax attention needs."""
        if self.kind == "alibi":
            return self.module.matrix(n_q, n_k)
        table = self.numbers().flatten(1)
        key = (n_q, n_k, table.device)
        if key not in self.of_sizes:
            self.of_sizes[key] = self._index(n_q, n_k).to(table.device)
        if self.extra is not None:
            table = torch.cat([table, self.extra.flatten(1)], dim=1)
        return table[:, self.of_sizes[key]]


class QueryBias(nn.Module):
    """A bias r_i . R[j - i] of keys less than WINDOW tokens away, none of others, as the Inkling models have: r_i is a
    linear function of token i for each head, R is learned and shared by the heads."""

    def __init__(self, dim, heads, causal):
        super().__init__()
        self.heads, self.causal, self.of_sizes = heads, causal, {}
        self.vectors = nn.Linear(dim, heads * RANK)
        self.lag_vectors = nn.Parameter(0.1 * torch.randn(RANK, WINDOW if causal else 2 * WINDOW - 1))

    def of_queries(self, x):
        """r of tokens x [batch, n, dim], [batch, n, heads, RANK]."""
        return self.vectors(x).unflatten(-1, (self.heads, RANK))

    def matrix(self, x):
        """The bias of every pair [batch, heads, n, n], which softmax attention needs."""
        n = x.shape[1]
        if n not in self.of_sizes:
            lags = torch.arange(n) - torch.arange(n)[:, None]
            at = (lags + WINDOW - 1).clamp(0, self.lag_vectors.shape[1] - 1)
            self.of_sizes[n] = at.to(x.device), (lags.abs() < WINDOW).to(x.device)
        at, is_near = self.of_sizes[n]
        biases = self.of_queries(x).transpose(1, 2) @ self.lag_vectors  # [batch, heads, n, lags]
        return biases.gather(-1, at.expand(*biases.shape[:3], n)) * is_near


class Attention(nn.Module):
    """Multi-head attention of x [batch, n, dim] to itself, or to `memory`, by a Mechanism."""

    def __init__(self, dim, heads, mechanism, tokens, *, causal=False, position="t5", seed=0):
        super().__init__()
        self.heads, self.d, self.mechanism, self.causal = heads, dim // heads, mechanism, causal
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        for each in (self.q, self.k, self.v, self.out):
            nn.init.xavier_uniform_(each.weight)
            nn.init.zeros_(each.bias)
        if mechanism.rpe == "spline":
            position = ("spline", tokens)
        if mechanism.rpe == "alibi":
            position = "alibi"
        self.query_bias = QueryBias(dim, heads, causal) if mechanism.rpe == "query" else None
        self.bias = Bias(heads, position, causal) if mechanism.rpe and self.query_bias is None else None
        self.features = self.rival = None
        self.sinks = 0
        kernel, m = mechanism.kernel, mechanism.features
        if kernel in FEATURES:
            self.features = FEATURES[kernel](self.d, m, seed)
        elif kernel in PlainFeatures.WAYS:
            self.rival = PlainFeatures(self.d, m, mechanism.radius, seed, kernel)
        elif kernel == "gate":
            self.rival = GatedRandomFeatures(dim, heads, m, seed)
        elif kernel == "linformer":
            self.rival = Linformer(tokens, m)
        elif kernel.startswith("nystromformer"):
            self.rival = Nystromformer(heads, m, kernel=33 if kernel == "nystromformer" else 0)
        elif kernel != "softmax":
            raise ValueError(f"kernel: expected softmax, {', '.join((*FEATURES, *RIVALS))}, got {kernel}")
        self.normalization = nprf.Normalization(mechanism.radius)
        self.logs_norms, self.largest_norm = False, 0.0
        self.reports, self.softmax_samples = None, 0  # a list gets the nprf.Report of each call

    def project(self, x, memory):
        """Queries, keys and values [batch, tokens, heads, d]."""
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        return tuple(each.unflatten(-1, (self.heads, self.d)) for each in (q, k, v))

    def of_decoder(self, x):
        """What decoder() gets of tokens x: queries, with the channels of their vectors, keys and values."""
        q, k, v = self.project(x, x)
        if self.query_bias is not None:
            q = torch.cat([q, self.query_bias.of_queries(x)], -1)
        return q, k, v

    def forward(self, x, memory=None, padding=None):
        """padding: bool [batch, n_k], True for keys that no query attends to."""
        q, k, v = self.project(x, x if memory is None else memory)
        if self.logs_norms:
            norms = [each.detach().norm(dim=-1).max().item() for each in (q, k)]
            self.largest_norm = max(self.largest_norm, norms[0] * norms[1] / math.sqrt(self.d))
        if self.features is not None:
            y = self._kernelized(q, k, v, padding, x)
        elif self.rival is not None:
            y = self.rival(*(each.transpose(1, 2) for each in (q, k, v)), x).transpose(1, 2)
        else:
            y = self._softmax(q, k, v, padding, x)
        return self.out(y.flatten(2))

    def _kernelized(self, q, k, v, padding, x):
        parameters = {}
        if self.query_bias is not None:
            parameters = {"query_bias": (self.query_bias.of_queries(x), self.query_bias.lag_vectors)}
        if self.bias is not None:
            parameters = {"bias": self.bias.numbers(), "position": self.bias.of_nprf, "extra": self.bias.extra}
        y = nprf.torch.attention(
            q, k, v, features=self.features, causal=self.causal, near=self.mechanism.near,
            sinks=self.sinks, normalization=self.normalization, key_padding_mask=padding, layout="tokens_first",
            report=self.reports is not None, softmax_samples=self.softmax_samples, **parameters,
        )  # fmt: skip
        if self.reports is not None:
            y, report = y
            self.reports.append(report)
        return y

    def _softmax(self, q, k, v, padding, x):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        radius, scale = self.mechanism.radius, None
        if radius > 0:
            q, k, scale = radius * F.normalize(q, dim=-1), radius * F.normalize(k, dim=-1), 1.0
        n_q, n_k = q.shape[2], k.shape[2]
        mask = None
        if self.bias is not None:
            mask = self.bias.matrix(n_q, n_k)[None]
        if self.query_bias is not None:
            mask = self.query_bias.matrix(x)
        if mask is not None and self.causal:
            later = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).triu(1)
            mask = mask.masked_fill(later, -math.inf)
        if padding is not None:
            keys = torch.zeros_like(padding, dtype=q.dtype).masked_fill(padding, -math.inf)[:, None, None, :]
            mask = keys if mask is None else mask + keys
        causal = self.causal and self.bias is None and self.query_bias is None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale).transpose(1, 2)

    def convert(self, features, near=0, sinks=0):
        """Serves the weights that were trained with softmax by a feature map, without training."""
        self.features, self.sinks = features, sinks
        self.mechanism = dataclasses.replace(self.mechanism, kernel="converted", near=near)

    def decoder(self, batch):
        """The nprf.Decoder of a causal kernelized layer."""
        position = None if self.bias is None else self.bias.position()
        if self.query_bias is not None:
            position = nprf.QueryBiased(self.query_bias.lag_vectors.detach().cpu().numpy())
        return nprf.Decoder(
            self.features, position, heads=self.heads, batch=batch, near=self.mechanism.near,
            normalization=self.normalization,
        )  # fmt: skip


class Block(nn.Module):
    """Layer normalisation before self-attention, cross attention (if any) and two linear layers."""

    def __init__(self, dim, attention, cross=None, dropout=0.0):
        super().__init__()
        self.attention, self.cross = attention, cross
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 if cross is None else 3))
        self.linear = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory=None, padding=None, memory_padding=None):
        x = x + self.dropout(self.attention(self.norms[0](x), padding=padding))
        if self.cross is not None:
            x = x + self.dropout(self.cross(self.norms[2](x), memory, memory_padding))
        return x + self.dropout(self.linear(self.norms[1](x)))


def sinusoids(tokens, dim):
    """The absolute positions of Vaswani et al. 2017 [tokens, dim]."""
    angles = torch.arange(tokens)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class Embedding(nn.Module):
    """Tokens [batch, n] -> [batch, n, dim], with absolute positions unless a relative bias takes their place."""

    def __init__(self, vocabulary, tokens, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, dim) * 0.02)
        self.register_buffer("positions", sinusoids(tokens, dim), persistent=False)

    def forward(self, x, absolute, first=0):
        rows = F.embedding(x, self.weight) * math.sqrt(self.weight.shape[1])
        return rows + self.positions[first : first + x.shape[1]] if absolute else rows

    def logits(self, x):
        return x @ self.weight.T


class LanguageModel(nn.Module):
    """Tokens [batch, n] -> logits [batch, n, vocabulary]; causal, or not for masked tokens."""

    def __init__(self, vocabulary, tokens, dim, layers, heads, mechanism, *, causal=True, position="t5", seed=0):
        super().__init__()
        self.embedding, self.absolute = Embedding(vocabulary, tokens, dim), not mechanism.rpe
        self.blocks = nn.ModuleList(
            Block(
                dim, Attention(dim, heads, mechanism, tokens, causal=causal, position=position, seed=100 * seed + layer)
            )
            for layer in range(layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = self.embedding(x, self.absolute)
        for block in self.blocks:
            x = block(x)
        return self.embedding.logits(self.norm(x))

    @torch.no_grad()
    def generate(self, tokens, batch, first, generator):
        """[batch, tokens]: samples after the token `first`, one by one by nprf.Decoder."""
        decoders = [block.attention.decoder(batch) for block in self.blocks]
        rows = [torch.full((batch, 1), first)]
        for t in range(tokens):
            x = self.embedding(rows[-1], self.absolute, t)
            for block, decoder in zip(self.blocks, decoders):
                y = block.norms[0](x)
                qkv = (each.numpy() for each in block.attention.of_decoder(y))
                y = torch.from_numpy(decoder.step(*qkv, layout="tokens_first"))
                x = x + block.attention.out(y.flatten(2))
                x = x + block.linear(block.norms[1](x))
            probabilities = self.embedding.logits(self.norm(x))[:, 0, :first].softmax(-1)
            rows.append(torch.multinomial(probabilities, 1, generator=generator))
        return torch.cat(rows[1:], dim=1)


class Translator(nn.Module):
    """An encoder and a decoder; cross attention is softmax in all variants."""

    def __init__(self, vocabulary, tokens, dim, layers, heads, encoder, decoder, *, dropout=0.1, seed=0):
        super().__init__()
        self.embedding = Embedding(vocabulary, tokens, dim)
        self.absolute = not encoder.rpe, not decoder.rpe

        def attention(mechanism, causal, layer):
            return Attention(dim, heads, mechanism, tokens, causal=causal, seed=100 * seed + layer)

        self.encoder = nn.ModuleList(
            Block(dim, attention(encoder, False, layer), dropout=dropout) for layer in range(layers)
        )
        self.decoder = nn.ModuleList(
            Block(dim, attention(decoder, True, 50 + layer), attention(Mechanism(), False, 0), dropout)
            for layer in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))

    def encode(self, x, padding):
        x = self.embedding(x, self.absolute[0])
        for block in self.encoder:
            x = block(x, padding=padding)
        return self.norms[0](x)

    def decode(self, y, memory, memory_padding):
        y = self.embedding(y, self.absolute[1])
        for block in self.decoder:
            y = block(y, memory, None, memory_padding)
        return self.embedding.logits(self.norms[1](y))


class ImageModel(nn.Module):
    """DeiT-like: patches and CLS with learned absolute positions, and a 2-D relative bias if the mechanism has one."""

    def __init__(self, side, channels, patch, dim, layers, heads, mechanism, classes, *, seed=0):
        super().__init__()
        cells = side // patch
        tokens = cells * cells + 1
        self.patches = nn.Conv2d(channels, dim, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(tokens, dim) * 0.02)
        grid = ("grid", cells, cells)
        self.blocks = nn.ModuleList(
            Block(dim, Attention(dim, heads, mechanism, tokens, position=grid, seed=100 * seed + layer))
            for layer in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        """Pictures [batch, channels, side, side] -> logits [batch, classes]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))
