# SPDX-License-Identifier: MIT
"""Runs of an experiment: one for each setting and seed, in worker processes, each result kept as a JSON file.

A result is found again by the hash of all that it depends on, so that an interrupted experiment goes on where it was, and
a changed setting runs anew. REVISION is counted up when code changes what results mean. The results of the committed page
are in the folder `results`, a file for each experiment, so that the page can be written again and get more rows.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import importlib
import json
import math
import multiprocessing
import os
import pathlib
import platform
import queue
import signal
import sys
import threading
import time
from typing import Any, NamedTuple

REVISION = 2
CACHE = pathlib.Path(
    os.environ.get("NPRF_PAPER_CACHE", pathlib.Path(__file__).resolve().parents[2] / "build" / "paper")
)
COMMITTED = pathlib.Path(__file__).parent / "results"


class Run(NamedTuple):
    experiment: str
    settings: dict  # as the experiment's plan made them; all that a result depends on besides the seed
    seed: int

    @property
    def path(self):
        identity = json.dumps([REVISION, *self], sort_keys=True)
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return CACHE / self.experiment / f"{name}.json"

    @property
    def checkpoint(self):
        return self.path.with_suffix(".pt")

    def result(self, or_committed=False):
        """What measure() returned, with machine and seconds; None if it has not run. Optionally, if it has not run here,
        the result of the committed page."""
        try:
            return json.loads(self.path.read_text())["result"]
        except FileNotFoundError:
            return committed(self.experiment).get(self.path.stem) if or_committed else None


@functools.lru_cache
def committed(experiment):
    """{name of a run's file: its result} of the committed page."""
    path = COMMITTED / f"{experiment}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def commit(experiment, planned):
    """Writes the results of these runs as those of the committed page."""
    found = {run.path.stem: run.result(or_committed=True) for run in planned}
    COMMITTED.mkdir(exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in found.items()]
    (COMMITTED / f"{experiment}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    committed.cache_clear()


def machine():
    """The processor, the number of threads that a run has, and the versions of what computes."""
    import nprf
    import torch

    model = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    if torch.cuda.is_available():
        model = f"{torch.cuda.get_device_name()}, {model}"
    return f"{model}, {os.cpu_count()} cores; torch {torch.__version__}, nprf {nprf.__version__}"


def _save(run, result, seconds):
    kept = {"experiment": run.experiment, "settings": run.settings, "seed": run.seed}
    kept["result"] = {**result, "seconds": round(seconds, 1), "machine": machine()}
    partial = run.path.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=1) + "\n")
    partial.replace(run.path)


_messages: Any = None  # of a worker: where its progress goes


def _start(messages, threads):
    global _messages
    _messages = messages
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once
    import torch

    torch.set_num_threads(threads)


def experiment_of(name):
    return importlib.import_module(f".experiments.{name}", __package__).EXPERIMENT


def perform(run, progress):
    """Runs and keeps the result. progress(done, of) is called by the experiment as it advances."""
    import torch

    experiment = experiment_of(run.experiment)
    run.path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(run.seed)
    start = time.monotonic()
    result = experiment.measure(run, progress)
    _save(run, result, time.monotonic() - start)
    run.checkpoint.unlink(missing_ok=True)


def _work(run):
    last = 0.0

    def progress(done, of):
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            _messages.put((run.path.name, done / of))

    perform(run, progress)
    _messages.put((run.path.name, 1.0))


class Bar:
    """One line on standard error: how much of all runs is done, and an estimate of the time left."""

    def __init__(self, title, total, done, stream=sys.stderr):
        self.title, self.total, self.skipped, self.stream = title, total, done, stream
        self.parts, self.start, self.shown = {}, time.monotonic(), -1

    def update(self, name, part):
        self.parts[name] = part
        done = sum(self.parts.values())
        spent = time.monotonic() - self.start
        left = spent / done * (self.total - self.skipped - done) if done > 0 else math.nan
        width = 30
        filled = int(width * (self.skipped + done) / self.total)
        finished = self.skipped + sum(each >= 1 for each in self.parts.values())
        terminal = self.stream.isatty()
        if not terminal and finished == self.shown:
            return  # a log gets a line for each finished run
        self.shown = finished
        self.stream.write(
            f"{chr(13) * terminal}{self.title} [{'#' * filled}{'.' * (width - filled)}] {finished}/{self.total} runs, "
            f"{spent / 60:.1f} min, {left / 60:.1f} min left" + (" \033[K" if terminal else "\n")
        )
        self.stream.flush()

    def close(self):
        if self.stream.isatty():
            self.stream.write("\n")


def run_all(title, runs, jobs, alone=False, but_committed=False):
    """Performs the runs that have no result yet: `jobs` at a time, or with `alone` one after another on one thread, for
    timings. Optionally not those of the committed page."""
    todo = [run for run in runs if run.result(but_committed) is None]
    if not todo:
        return
    bar = Bar(title, len(runs), len(runs) - len(todo))
    jobs = 1 if alone else max(1, min(jobs, len(todo)))
    threads = 1 if alone else max(1, (os.cpu_count() or 1) // jobs)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # which libraries of the workers read when they are loaded
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    ended = threading.Event()

    def show():
        while not (ended.is_set() and messages.empty()):
            with contextlib.suppress(queue.Empty):
                bar.update(*messages.get(timeout=0.1))

    reader = threading.Thread(target=show, daemon=True)
    reader.start()
    try:
        # workers end by themselves, after their last message; one that is killed is an error here, not a wait for ever
        with concurrent.futures.ProcessPoolExecutor(jobs, context, _start, (messages, threads)) as pool:
            for _ in pool.map(_work, todo):
                pass
    finally:
        ended.set()
        reader.join(timeout=5)  # a worker that was killed may have left half a message
        bar.close()
