# SPDX-License-Identifier: MIT
"""Errors of calibrated maps against softmax, in per cent, with salient keys: see accuracy.md.

    python3 bench/salient_keys.py TEXT... --sample TEXT...

Each TEXT is a folder that examples/data/make_data.py has written, all of one layer. Maps are calibrated on the sample.
"""

import argparse
from pathlib import Path

import nprf
import numpy as np


def load(folders):
    """Queries, keys and values [texts, heads, tokens, channels]."""
    return [
        np.stack([np.load(folder / f"{name}.npy").astype(np.float32) for folder in folders])
        for name in ("queries", "keys", "values")
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--sample", type=Path, nargs="+", required=True)
    parser.add_argument("--near", type=int, default=32)
    args = parser.parse_args()
    sample, texts = load(args.sample), load(args.texts)
    d = sample[0].shape[-1]
    options = {"near": args.near, "sinks": 1, "normalization": nprf.Normalization.none()}
    features = nprf.calibrate(*sample, num_features=d + 37, **options).features
    cells = []
    for salient in (0, 8, 16, 32, 64):
        errors, repaired = [], []
        for q, k, v in zip(*texts):
            y, report = nprf.attention(q, k, v, features=features, salient=salient, report=True, **options)
            exact = nprf.reference.softmax_attention(q, k, v, normalization=options["normalization"])
            errors.append(np.linalg.norm(y - exact) / np.linalg.norm(exact))
            repaired.append(report.repaired_rows / (q.shape[0] * q.shape[1]))
        cells.append(f"{100 * np.mean(errors):.1f} ({100 * np.mean(repaired):.0f})")
    print("|", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
