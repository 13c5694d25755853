# SPDX-License-Identifier: MIT
"""Each experiment, for two steps of training, from its plan to its part of the page."""

import math
import os

import pytest
from paper import __main__ as command
from paper import page, runs
from paper.experiments import NAMES, Options
from paper.results import Results, Statistic, at_most, below, number

OPTIONS = Options("tiny", "sample", 2)


@pytest.mark.parametrize("name", NAMES)
def test_two_steps(name, cache):
    experiment = command.experiment_of(name)
    assert experiment.name == name
    planned = command.runs_of(experiment, OPTIONS, seeds=2)
    assert len({run.path for run in planned}) == len(planned)
    for run in planned:
        runs.perform(run, lambda done, of: None)
    results, missing = command.results_of(planned)
    assert missing == 0
    text = page.section(experiment, results)
    assert experiment.title in text
    rows = experiment.table(results)[1]
    assert all(len(row) == len(experiment.table(results)[0]) for row in rows)
    assert len(page.seen(experiment, results)) == len(experiment.expectations) > 0
    assert page.picture(experiment, results, cache).read_text().lstrip().startswith("<?xml")
    path = page.write([experiment], {name: results}, "tiny", cache / "RESULTS.md")
    assert f"pictures/results/{name}.svg" in path.read_text()
    with_results = path.read_text()
    page.write([command.experiment_of(each) for each in NAMES], {}, "tiny", path)
    assert path.read_text() == with_results  # parts without results stay as they are


def test_a_part_with_rows_of_several_machines_says_so(cache):
    experiment = command.experiment_of("theory")
    planned = command.runs_of(experiment, OPTIONS, seeds=1)
    for run in planned:
        runs.perform(run, lambda done, of: None)
    results, _ = command.results_of(planned)
    assert "several machines" not in page.section(experiment, results)
    results.entries[0][2]["machine"] = "another"
    assert "several machines" in page.section(experiment, results)


@pytest.mark.parametrize("name", NAMES)
def test_the_other_sizes_have_plans(name):
    experiment = command.experiment_of(name)
    for size in ("small", "paper"):
        planned = experiment.plan(Options(size, "sample"))
        assert planned and all(isinstance(each, dict) for each in planned)
        assert all(each["batch"] % each["parts"] == 0 for each in planned if "parts" in each)


FEW = dict(batch=1, parts=1, held_out=1, test=1)


@pytest.mark.skipif(
    "NPRF_PAPER_SIZE" not in os.environ, reason="takes minutes and the folder of data; set NPRF_PAPER_SIZE=1 to run it"
)
@pytest.mark.parametrize("name", NAMES)
def test_one_step_of_the_paper_sizes(name, cache):
    """Models and sequences are the paper's. A batch is one sequence or picture, or of table 3 as many as in the paper's size;
    one is held out."""
    experiment = command.experiment_of(name)
    for settings in experiment.plan(Options("paper", "folder", 1)):
        if "rate" not in settings:
            pytest.skip("trains nothing")
        few = {each: FEW[each] for each in FEW if each in settings}
        run = runs.Run(name, {**settings, **few}, seed=0)
        runs.perform(run, lambda done, of: None)
        assert not run.result()["diverged"], settings["variant"]


def entries(**losses):
    return Results(
        ({"variant": name}, seed, {"loss": loss}) for name, all_ in losses.items() for seed, loss in enumerate(all_)
    )


def test_below_counts_a_difference_only_above_the_noise_of_seeds():
    results = entries(a=[1.0, 1.2, 1.1], b=[2.0, 2.2, 2.1], c=[1.0, 1.4, 1.2])
    assert below("loss", "a", "b")(results)
    assert not below("loss", "b", "a")(results)
    assert not below("loss", "a", "c")(results)  # 0.1, with a standard error of 0.13
    assert at_most("loss", "c", "a", 0.2)(results)
    assert not at_most("loss", "b", "a", 0.2)(results)


def test_a_run_that_diverged_is_worse_than_all_others():
    results = entries(a=[1.0, 1.2], b=[1.1, math.inf])
    assert below("loss", "a", "b")(results)
    assert not below("loss", "b", "a")(results)
    assert results.rows(loss=1) == [["a", "1.1 ± 0.1"], ["b", "diverged (1 of 2)"]]
    accuracies = entries(a=[1.0, 1.2], b=[1.1, -math.inf])
    assert below("loss", "b", "a")(accuracies)
    assert not at_most("loss", "b", "a", 0.2)(accuracies)
    assert not at_most("loss", "a", "b", 0.2)(results)


def test_numbers_without_exponents():
    assert [number(x, 3) for x in (3450.6, 9.996, 0.0123, 0)] == ["3,450", "10.0", "0.0123", "0"]
    assert [number(x, 1) for x in (0.096, 23)] == ["0.1", "20"]


def test_statistic():
    found = Statistic([1.0, 2.0, 3.0])
    assert found.text(2) == "2.00 ± 1.00"
    assert found.error == pytest.approx(3**-0.5)
    assert Statistic([1.5]).text(1) == "1.5"
