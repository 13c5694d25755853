# SPDX-License-Identifier: MIT
import io
import os
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch
import torch.nn.functional as F
from paper import __main__ as command
from paper import data, runs, training
from paper.experiments import Options
from paper.models import LanguageModel, Mechanism

OPTIONS = Options("tiny", "sample", 2)


def test_a_result_is_found_again_and_only_for_the_same_settings(cache):
    run, *_ = command.runs_of(command.experiment_of("theory"), OPTIONS, seeds=1)
    assert run.result() is None
    run.path.parent.mkdir()
    run.checkpoint.touch()
    runs.perform(run, lambda done, of: None)
    assert not run.checkpoint.exists()
    assert run.result()["logits"] > 0 and run.result()["seconds"] >= 0
    assert run._replace(seed=1).result() is None
    assert run._replace(settings={**run.settings, "steps": 3}).result() is None


def test_an_interrupted_experiment_goes_on(cache):
    """A process performs the runs that have no result, and no others."""
    planned = command.runs_of(command.experiment_of("theory"), OPTIONS, seeds=1)
    for run in planned[:-1]:
        runs.perform(run, lambda done, of: None)
    written = [run.path.stat().st_mtime_ns for run in planned[:-1]]
    runs.run_all("theory", planned, jobs=2)
    assert planned[-1].result()["seconds"] >= 0
    assert [run.path.stat().st_mtime_ns for run in planned[:-1]] == written


class Exits(dict):
    """Settings whose reader exits."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_worker_that_is_killed_is_an_error(cache):
    with pytest.raises(BrokenProcessPool):
        runs.run_all("toy", [runs.Run("theory", Exits(), 0)], jobs=1)


def test_committed_results_are_found_on_request_and_only_missing_runs_are_run(cache):
    planned = command.runs_of(command.experiment_of("theory"), OPTIONS, seeds=1)
    for run in planned[:-1]:
        runs.perform(run, lambda done, of: None)
    expected = [run.result() for run in planned[:-1]]
    runs.commit("theory", planned[:-1])
    for run in planned[:-1]:
        run.path.unlink()
    assert all(run.result() is None for run in planned)
    assert [run.result(or_committed=True) for run in planned] == [*expected, None]
    runs.run_all("theory", planned, jobs=1, but_committed=True)
    assert [run.path.exists() for run in planned] == [False] * (len(planned) - 1) + [True]
    runs.commit("theory", planned)  # with those that were committed before
    planned[-1].path.unlink()
    assert [run.result(or_committed=True) for run in planned][:-1] == expected
    assert planned[-1].result(or_committed=True)["seconds"] >= 0


def test_bar_writes_a_line_for_each_finished_run_to_a_log():
    stream = io.StringIO()
    bar = runs.Bar("toy", 4, 1, stream)
    for name, part in (("a", 0.5), ("a", 1.0), ("b", 0.2), ("b", 1.0)):
        bar.update(name, part)
    lines = stream.getvalue().splitlines()
    assert [line.split("] ")[1].split(" runs")[0] for line in lines] == ["1/4", "2/4", "3/4"]


class Interrupted(Exception):
    pass


def test_training_goes_on_from_a_checkpoint(tmp_path, monkeypatch):
    """The same losses and norms to the last bit, whether or not it was interrupted."""

    def train(stop, checkpoint):
        torch.manual_seed(0)
        model = LanguageModel(11, 8, 16, 1, 2, Mechanism())

        def loss_of(generator):
            rows = torch.randint(11, (4, 9), generator=generator)
            return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

        def progress(done, of):
            if done == stop:
                raise Interrupted

        made = training.train(
            model, loss_of, steps=12, rate=1e-2, seed=0, progress=progress, checkpoint=checkpoint, log_norms=True
        )
        return made.losses, made.norm

    whole = train(None, None)
    clock = iter(range(0, 10**9, 1000))  # each look at the clock is a quarter of an hour later: saves each step
    monkeypatch.setattr(training.time, "monotonic", lambda: next(clock))
    checkpoint = tmp_path / "training.pt"
    with pytest.raises(Interrupted):
        train(7, checkpoint)
    assert checkpoint.exists()
    assert train(None, checkpoint) == whole


def test_a_batch_in_parts_trains_like_the_whole():
    def losses(parts):
        torch.manual_seed(0)
        model = LanguageModel(11, 8, 16, 1, 2, Mechanism())
        rows = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(0)).split(4 // parts)
        drawn = iter(rows * 12)

        def loss_of(generator):
            part = next(drawn)
            return F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())

        made = training.train(model, loss_of, steps=12, parts=parts, rate=1e-2, seed=0, progress=lambda done, of: None)
        assert next(drawn, None) is None  # each step took all parts
        return [loss for _, loss in made.losses]

    assert losses(2) == pytest.approx(losses(1), rel=1e-4)
    assert training.part_size({"batch": 8}) == 8 and training.part_size({"batch": 8, "parts": 4}) == 2


@pytest.mark.parametrize("what", [data.text, data.pairs, data.pictures])
def test_samples(what):
    sample = what("sample")
    assert sample.name
    if what is data.pairs:
        assert len(sample.train) > 7000 and len(sample.valid) > 200 and len(sample.test) > 200
        assert not set(sample.train) & set(sample.test)
    if what is data.pictures:
        assert sample.train_x.shape[1:] == (28, 28) and len(sample.train_x) == len(sample.train_y)


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"other")
    with pytest.raises(ValueError, match="SHA-256"):
        data.checked(path, data.OTHERS["sample/moby_dick.txt.xz"])


def test_command_line(capsys):
    assert command.main(["list"]) == 0
    assert "table2" in capsys.readouterr().out
    for wrong in (["table7"], ["theory", "table7", "page"], ["table4", "all"], ["all", "table4"], ["page", "table4"]):
        assert command.main(wrong) == 2
        assert "expected list, all, page" in capsys.readouterr().err
    assert command.main(["theory", "--missing", "--tiny"]) == 2
    assert "--missing: expected" in capsys.readouterr().err
    assert command.main(["theory", "page", "--seeds", "1"]) == 2
    assert "all and page: expected" in capsys.readouterr().err


def test_an_experiment_and_page_write_its_part_of_the_page(cache, capsys):
    assert command.main(["theory", "page", "--tiny", "--source", "sample", "--seeds", "1", "--jobs", "1"]) == 0
    assert "written: " in capsys.readouterr().out
    assert command.experiment_of("theory").title in (cache / "RESULTS.md").read_text()
    assert not (cache / "committed").exists()  # only the miniature's
