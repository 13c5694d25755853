# SPDX-License-Identifier: MIT
"""One module for each experiment, with an `EXPERIMENT`. This one has what they share."""

import dataclasses
import math
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from ..models import MECHANISMS, Mechanism

NAMES = (
    "fig1a", "fig1b", "theory", "table2", "table3", "table4", "table5", "table6", "fig2", "fig3a", "fig3b", "stability",
)  # fmt: skip


class Options(NamedTuple):
    """size: "tiny" (for tests), "small" (the miniature) or "paper". steps: None takes those of the size."""

    size: str = "small"
    source: str = "sample"
    steps: Optional[int] = None


class Statistic(NamedTuple):
    """Mean and standard deviation over seeds; the latter is nan for one seed."""

    mean: float
    deviation: float
    count: int

    def text(self, digits):
        if not math.isfinite(self.mean):
            return "diverged"
        if self.count < 2:
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.deviation:.{digits}f}"


def statistic(values):
    values = list(values)
    deviation = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan
    return Statistic(statistics.fmean(values) if values else math.nan, deviation, len(values))


class Results:
    """(settings, seed, result) of the runs of an experiment."""

    def __init__(self, entries):
        self.entries = list(entries)

    def of(self, **settings):
        """Those with these settings."""
        return Results(e for e in self.entries if all(e[0].get(name) == value for name, value in settings.items()))

    def values(self, name):
        return [entry[2][name] for entry in self.entries]

    def mean(self, name, **settings):
        return statistic(self.of(**settings).values(name))

    def settings(self, name):
        """The different values of a setting, in the order of the plan."""
        return list(dict.fromkeys(entry[0][name] for entry in self.entries))

    def seconds(self):
        return sum(self.values("seconds"))


class Expectation(NamedTuple):
    """What the paper shows, and whether `holds(results)` in ours; a gap counts only if it exceeds the seeds' noise."""

    text: str
    holds: Callable[[Results], bool]


def below(name, lower, upper, key="variant", margin=0.0):
    """Whether the mean of `lower` is below that of `upper`: by more than the standard error of the difference, unless a
    `margin` above it is allowed."""

    def holds(results):
        a, b = (results.mean(name, **{key: each}) for each in (lower, upper))
        if margin > 0:
            return a.mean <= b.mean + margin
        noise = math.sqrt(sum(each.deviation**2 / each.count for each in (a, b) if each.count > 1))
        return a.mean < b.mean - noise

    return holds


@dataclasses.dataclass(frozen=True)
class Experiment:
    """plan(options) -> the settings of each run, without seeds. measure(run, progress) -> a result of JSON values.
    table(results) -> (column names, rows of text). draw(results, figure) draws with matplotlib. alone: runs measure time,
    and are not run at the same time as others. seeds: of the miniature. draws: whether `seeds` are in a run itself."""

    name: str
    title: str
    claim: str
    plan: Callable[[Options], list]
    measure: Callable[[Any, Callable[[int, int], None]], dict]
    table: Callable[[Results], tuple]
    draw: Callable[[Results, Any], None]
    expectations: tuple
    notes: str = ""
    seeds: int = 3
    alone: bool = False


def mechanism_settings(name, **changes):
    """A row of MECHANISMS as settings."""
    return dataclasses.asdict(dataclasses.replace(MECHANISMS[name], **changes))


def mechanism_of(settings):
    return Mechanism(**settings)


def bars(axes, results, key, name, label, values=None):
    """Horizontal bars of means with standard deviations."""
    names = results.settings(key) if values is None else values
    found = [results.mean(name, **{key: each}) for each in names]
    deviations = [0 if math.isnan(each.deviation) else each.deviation for each in found]
    rows = range(len(names))[::-1]
    axes.barh(rows, [each.mean for each in found], xerr=deviations, color="#4878a8", height=0.6, capsize=3)
    axes.set_yticks(rows, names)
    axes.set_xlabel(label)
    ends = [x for each, d in zip(found, deviations) if math.isfinite(each.mean) for x in (each.mean - d, each.mean + d)]
    if ends:
        margin = 0.2 * (max(ends) - min(ends)) + 1e-9
        axes.set_xlim(max(0.0, min(ends) - margin), max(ends) + margin / 2)
