# SPDX-License-Identifier: MIT
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))  # bench, where `import paper` finds it


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    from paper import runs

    monkeypatch.setattr(runs, "CACHE", tmp_path)
    monkeypatch.setattr(runs, "COMMITTED", tmp_path / "committed")
    runs.committed.cache_clear()
    monkeypatch.setenv("NPRF_PAPER_CACHE", str(tmp_path))  # of other processes
    yield tmp_path
    runs.committed.cache_clear()
