# SPDX-License-Identifier: MIT
"""Texts, parallel texts and pictures.

They come from one of three SOURCES: "whole", what the usual loaders of torchvision and datasets download, where there is a
network and they are installed; "folder", the files in $NPRF_PAPER_DATA, by default ../shared/data beside the repository;
"sample", the small files shipped in data/. It is a part of a run's settings, since results depend on it. Files of the last
two are checked by SHA-256, downloads by their loaders.
"""

import functools
import hashlib
import io
import lzma
import os
import pathlib
from typing import NamedTuple

import numpy as np
import torch

SOURCES = ("whole", "folder", "sample")
SAMPLES = pathlib.Path(__file__).parent / "data"
FOLDER = pathlib.Path(
    os.environ.get("NPRF_PAPER_DATA", pathlib.Path(__file__).resolve().parents[3] / "shared" / "data")
)

BOOKS = {
    "Anna-Karenina_1399": "2c3a77938d229b2fea0f6b94bb32d3c5fb0108be18e65dbde64e6a15a460d5a9",
    "Bleak-House_1023": "f6b2b84dc7ae50ecdfdce7a5a925629b07822d5cf25b5405f3f728981e00127c",
    "David-Copperfield_766": "5a942b7b8b350e38cbb66402e17581afe6bafc7d61410173c540428ad1b66e67",
    "Don-Quixote_996": "922232e23a93e1a251c5ccee8df2f4778ef16458527b807cc10c153b64685927",
    "Les-Mis-rables_135": "f3e90f52906b3399feee2ec2aeff5433ca726fa775ae806bab3e941edbba3448",
    "Moby-Dick--Or-The-Whale_2701": "481819aef45b775fe17c044c45d3ee4df00b1e23b537339981b3afa16f35100e",
    "The-Brothers-Karamazov_28054": "3719b2a7831e2ebed5f401c5fe634e85f0d872c5850f4ff3c7ba7deebd001621",
    "Vanity-Fair_599": "25536221082e246ea5e6b98027b713e14e1d69157fcd031b5d7c2bf2cfba57f4",
    "War-and-Peace_2600": "b93dd32d27a4171f5926d74eecc0b6373358eca10166bb96036a35754b2070e2",
}
HELD_OUT = {"Middlemarch_145": "bcf8dcd9a7b58e12cda765abdfed8d1ae3a515cce2cddfee113e9bf2bed1445f"}
MULTI30K = {
    "train.de": "ee032c015436b738db1e16a494eb6fd17f159a8f63e26f162ed7b95965f9cb1d",
    "train.en": "ae0f9a6fd181a66eac7a428ec3a97756073e98cc267838a77599b592f9216687",
    "val.de": "ca900afa6f46c3ac91957fd206092706f0fb2e28c7b2e7a445589b28fb7d037c",
    "val.en": "b5461fa951cbe89c7425d54cfafbb3a3c80e4331b5033fa716fc627273e7dabd",
    "test_2016_flickr.de": "a7a38fb930495f04c0c55716b26c5d762b5ec36ee3fedb4f54eb5291fb3d10f1",
    "test_2016_flickr.en": "97c253e45e73a2960cb86ef3043b04c6c745962ba642882e8f59f6d0a54c2eea",
}
OTHERS = {
    "cifar10_subset.npz": "71ce8fb04891e16693bde052a3ad89447404a3c048188f1c6a13e713d1e4e977",
    "fashion_mnist.npz": "ec4f84e7b5f7553198202471f85f634ac64113ce353f25b22e06f313b651d622",
    "sample/moby_dick.txt.xz": "481819aef45b775fe17c044c45d3ee4df00b1e23b537339981b3afa16f35100e",
    "sample/fashion_mnist.npz": "b3beb1cb508dd6a783406ef040f86be6600c7afb36e6e77f07eb6da94371355e",
    "sample/new_testament.es-en.txt.xz": "7fb8fc387f4c7895a526188febf3151f5819ab089988fa119d6400f09fec70ab",
}


def best_source():
    """The source that this machine has without downloads."""
    return "folder" if FOLDER.is_dir() else "sample"


def checked(path, sha256):
    """The bytes of a file. ValueError if they are not those that the experiments were made with."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{path.name}: expected the SHA-256 {sha256}, got {found}")
    return content


def _unpacked(path, sha256):
    return lzma.decompress(checked(path, sha256)).decode("utf-8")


class Text(NamedTuple):
    """A text as a sequence of bytes (Latin-1; other characters are ?), and one that is held out."""

    train: torch.Tensor
    valid: torch.Tensor
    name: str


def _bytes(text):
    return torch.from_numpy(np.frombuffer(text.encode("latin-1", "replace"), np.uint8).copy())


@functools.lru_cache(maxsize=1)
def text(source):
    if source == "whole":
        import datasets

        parts = datasets.load_dataset("Salesforce/wikitext", "wikitext-103-raw-v1")
        train, valid = ("".join(parts[each]["text"]) for each in ("train", "validation"))
        return Text(_bytes(train), _bytes(valid), "WikiText-103, its bytes")
    if source == "folder":
        train, valid = (
            "\n\n".join(_unpacked(FOLDER / "gutenberg" / f"{name}.txt.xz", sha256) for name, sha256 in books.items())
            for books in (BOOKS, HELD_OUT)
        )
        return Text(_bytes(train), _bytes(valid), "nine novels, the tenth held out; bytes")
    novel = _bytes(_unpacked(SAMPLES / "moby_dick.txt.xz", OTHERS["sample/moby_dick.txt.xz"]))
    cut = len(novel) * 9 // 10
    return Text(novel[:cut], novel[cut:], "Moby-Dick, its last tenth held out; bytes")


def windows(text, tokens, batch, generator):
    """Random parts of a text [batch, tokens], of type int64."""
    first = torch.randint(len(text) - tokens, (batch,), generator=generator)
    return torch.stack([text[i : i + tokens] for i in first.tolist()]).long()


def spread(text, tokens, count):
    """`count` parts of a text at equal distances, without overlap unless the text is too short for it [count, tokens]."""
    first = torch.linspace(0, len(text) - tokens, count).long()
    return torch.stack([text[i : i + tokens] for i in first.tolist()]).long()


class Pairs(NamedTuple):
    """Sentences and their translations, each part a list of (source, target)."""

    train: list
    valid: list
    test: list
    name: str


@functools.lru_cache(maxsize=1)
def pairs(source):
    if source == "whole":
        import datasets

        parts = datasets.load_dataset("bentrevett/multi30k")
        read = [list(zip(parts[each]["de"], parts[each]["en"])) for each in ("train", "validation", "test")]
        return Pairs(*read, "Multi30k, German to English")
    if source == "folder":

        def sides(part):
            of_language = (
                _unpacked(FOLDER / "multi30k" / f"{part}.{language}.xz", MULTI30K[f"{part}.{language}"])
                for language in ("de", "en")
            )
            return list(zip(*(each.strip().split("\n") for each in of_language)))

        return Pairs(sides("train"), sides("val"), sides("test_2016_flickr"), "Multi30k, German to English")
    name = "new_testament.es-en.txt.xz"
    lines = _unpacked(SAMPLES / name, OTHERS[f"sample/{name}"]).strip().split("\n")
    verses = [tuple(line.split("\t")) for line in lines]
    held = verses[::16]  # as many of each book
    train = [verse for i, verse in enumerate(verses) if i % 16 != 0]
    return Pairs(train, held[::2], held[1::2], "New Testament, Spanish to English")


class Pictures(NamedTuple):
    """uint8 [count, side, side] or [count, side, side, 3], and classes."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    name: str


@functools.lru_cache(maxsize=1)
def pictures(source, kind="fashion"):
    """kind: "fashion", Fashion-MNIST, or "cifar", CIFAR-10, of which no sample is shipped."""
    name = {"fashion": "Fashion-MNIST", "cifar": "CIFAR-10"}[kind]
    if source == "whole":
        import torchvision.datasets

        load = {"fashion": torchvision.datasets.FashionMNIST, "cifar": torchvision.datasets.CIFAR10}[kind]
        parts = [load(SAMPLES.parents[2] / "build" / "paper", train=each, download=True) for each in (True, False)]
        arrays = [np.asarray(x) for part in parts for x in (part.data, part.targets)]
    else:
        file = {"fashion": "fashion_mnist.npz", "cifar": "cifar10_subset.npz"}[kind]
        known = f"sample/{file}" if source == "sample" else file
        if known not in OTHERS:
            raise ValueError(f"source: expected whole or folder for {name}, got {source}")
        content = checked((FOLDER if source == "folder" else SAMPLES) / file, OTHERS[known])
        with np.load(io.BytesIO(content)) as saved:
            arrays = [saved[each] for each in ("train_x", "train_y", "test_x", "test_y")]
    return Pictures(*arrays, f"{name}, {len(arrays[0]):,} pictures")
