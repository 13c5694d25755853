# SPDX-License-Identifier: MIT
"""python -m paper list | all | page | NAME... [page]: see README.md."""

import argparse
import os
import sys

import torch

from . import data, page, runs
from .experiments import NAMES, Options
from .results import Results
from .runs import experiment_of


def runs_of(experiment, options, seeds=None):
    planned = [
        (settings, experiment.seeds_of(settings) if seeds is None else seeds) for settings in experiment.plan(options)
    ]
    most = max(count for _, count in planned)
    return [
        runs.Run(experiment.name, settings, seed) for seed in range(most) for settings, count in planned if seed < count
    ]


def results_of(planned, or_committed=False):
    """The results of the runs that have one, and how many have none."""
    found = [(run, run.result(or_committed)) for run in planned]
    entries = [(run.settings, run.seed, result) for run, result in found if result is not None]
    return Results(entries), len(planned) - len(entries)


def default_jobs():
    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


def page_path(size):
    """The committed page; that of the tests' sizes is with their results."""
    if size == "tiny":
        return runs.CACHE / "RESULTS.md"
    return page.HERE / ("RESULTS.md" if size == "small" else "RESULTS_PAPER_SIZE.md")


def parser():
    made = argparse.ArgumentParser(
        prog="python -m paper", description="The experiments of Luo et al. 2021 in miniature."
    )
    made.add_argument(
        "names", nargs="+", metavar="NAME", help=f"list, all, page, or some of {', '.join(NAMES)}, and then page"
    )
    made.add_argument("--steps", type=int, help="steps of training, in place of those of the size")
    made.add_argument("--seeds", type=int, help="the number of seeds, in place of the experiment's")
    made.add_argument("--missing", action="store_true", help="runs only what the committed page has no result of")
    made.add_argument("--jobs", type=int, help="runs at the same time; default: all cores, or one with a GPU")
    sizes = made.add_mutually_exclusive_group()
    sizes.add_argument(
        "--paper-size", action="store_true", help="the sizes of the paper, for a GPU: weeks, not minutes"
    )
    sizes.add_argument("--tiny", action="store_true", help="sizes of the tests: seconds, results without meaning")
    made.add_argument(
        "--source", choices=data.SOURCES, help="where data come from; default: the folder, or the samples"
    )
    return made


def main(arguments=None):
    chosen = parser().parse_args(arguments)
    if chosen.names == ["list"]:
        for name in NAMES:
            print(f"{name:10} {experiment_of(name).title}")
        return 0
    writes = chosen.names[-1] == "page" or chosen.names == ["all"]
    whole = chosen.names in (["all"], ["page"])
    names = NAMES if whole else chosen.names[: -1 if writes else None]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"expected list, all, page, or some of {', '.join(NAMES)}; got {', '.join(unknown)}", file=sys.stderr)
        return 2
    size = "paper" if chosen.paper_size else "tiny" if chosen.tiny else "small"
    options = Options(size, chosen.source or data.best_source(), chosen.steps)
    is_default = size == "small" and chosen.steps is None and chosen.seeds is None
    if writes and size == "small" and not is_default:
        print("all and page: expected the miniature's steps and seeds, got others", file=sys.stderr)
        return 2
    if chosen.missing and not is_default:
        print("--missing: expected the miniature's sizes, steps and seeds, got others", file=sys.stderr)
        return 2
    found = {}
    runs_anything = chosen.names != ["page"]
    or_committed = is_default and (chosen.missing or not runs_anything)
    for name in names:
        experiment = experiment_of(name)
        planned = runs_of(experiment, options, chosen.seeds)
        if runs_anything:
            runs.run_all(name, planned, chosen.jobs or default_jobs(), experiment.alone, or_committed)
        results, missing = results_of(planned, or_committed)
        if missing:
            print(f"{name}: {missing} of {len(planned)} runs have no result yet", file=sys.stderr)
            continue
        found[name] = results
        if writes and is_default and options.source != "sample":
            runs.commit(name, planned)
        print(page.section(experiment, results))
        print(f"picture: {page.picture(experiment, results, runs.CACHE)}\n")
    if writes:
        print(f"written: {page.write([experiment_of(name) for name in NAMES], found, size, page_path(size))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
