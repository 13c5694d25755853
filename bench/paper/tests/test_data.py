# SPDX-License-Identifier: MIT
"""Downloads: what the experiments get, from stand-ins for the loaders."""

import sys
import types

import numpy as np
import pytest
import torch
from paper import data


@pytest.fixture(autouse=True)
def nothing_is_kept():
    """data keeps the last text, pairs and pictures: not from test to test."""

    def clear():
        for each in (data.text, data.pairs, data.pictures):
            each.cache_clear()

    clear()
    yield
    clear()


def put(monkeypatch, name, **members):
    """A module in place of one that may not be installed."""
    module = types.ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    if "." in name:
        put(monkeypatch, name.rpartition(".")[0], **{name.rpartition(".")[2]: module})


def test_texts_and_pairs_of_the_loader(monkeypatch):
    known = {
        ("Salesforce/wikitext", "wikitext-103-raw-v1"): {
            "train": {"text": [" = Title = \n", "", " a line \n"]}, "validation": {"text": ["caf\u00e9 \u2013\n"]},
        },
        ("bentrevett/multi30k",): {
            "train": {"en": ["A dog", "Two"], "de": ["Ein Hund", "Zwei"]},
            "validation": {"en": ["v"], "de": ["w"]}, "test": {"en": ["t"], "de": ["u"]},
        },
    }  # fmt: skip
    put(monkeypatch, "datasets", load_dataset=lambda *names: known[names])
    text = data.text("whole")
    assert bytes(text.train.tolist()) == b" = Title = \n a line \n"
    assert bytes(text.valid.tolist()) == b"caf\xe9 ?\n"
    pairs = data.pairs("whole")
    assert pairs.train == [("Ein Hund", "A dog"), ("Zwei", "Two")]
    assert pairs.valid == [("w", "v")] and pairs.test == [("u", "t")]


@pytest.mark.parametrize("kind", ["fashion", "cifar"])
def test_pictures_of_the_loader(kind, monkeypatch):
    shape = {"fashion": (28, 28), "cifar": (32, 32, 3)}[kind]

    class Loader:  # torchvision has tensors of one data set, arrays and lists of the other
        def __init__(self, root, train, download):
            assert download
            x = np.full((3 if train else 2, *shape), 7, np.uint8)
            self.data = torch.from_numpy(x) if kind == "fashion" else x
            self.targets = torch.arange(len(x)) if kind == "fashion" else list(range(len(x)))

    put(monkeypatch, "torchvision.datasets", FashionMNIST=Loader, CIFAR10=Loader)
    found = data.pictures("whole", kind)
    assert found.train_x.shape == (3, *shape) and found.train_x.dtype == np.uint8
    assert found.train_y.tolist() == [0, 1, 2] and found.test_y.tolist() == [0, 1]
    assert found.name.endswith("3 pictures")
