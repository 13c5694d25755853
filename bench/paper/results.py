# SPDX-License-Identifier: MIT
"""The results of an experiment's runs, their means over seeds, and what is expected of them."""

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple


class Statistic:
    """Mean, standard deviation and standard error of values over seeds; a run that diverged has an infinite one."""

    def __init__(self, values):
        self.values = list(values)
        self.diverged = sum(not math.isfinite(each) for each in self.values)
        self.mean = statistics.fmean(self.values)
        known = len(self.values) > 1 and self.diverged == 0
        self.deviation = statistics.stdev(self.values) if known else 0.0
        self.error = self.deviation / math.sqrt(len(self.values))

    def text(self, digits):
        if self.diverged > 0:
            return f"diverged ({self.diverged} of {len(self.values)})"
        mean = f"{self.mean:.{digits}f}"
        return mean if len(self.values) < 2 else f"{mean} ± {self.deviation:.{digits}f}"


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
        return Statistic(self.of(**settings).values(name))

    def settings(self, name):
        """The different values of a setting, in the order of the plan."""
        return list(dict.fromkeys(entry[0][name] for entry in self.entries))

    def rows(self, **digits):
        """Rows of a table: each variant, and its means of the named results with so many digits."""
        return [
            [name, *(self.mean(each, variant=name).text(count) for each, count in digits.items())]
            for name in self.settings("variant")
        ]

    def seconds(self):
        return sum(self.values("seconds"))


class Expectation(NamedTuple):
    """What is expected, and whether it `holds(results)`."""

    text: str
    holds: Callable[[Results], bool]


def below(name, lower, upper):
    """Whether the variant `lower` has a smaller mean than `upper`, by more than the standard error of the difference: for
    accuracies `lower` is the one that is expected to be worse."""

    def holds(results):
        a, b = (results.mean(name, variant=each) for each in (lower, upper))
        return a.mean < b.mean - math.hypot(a.error, b.error)

    return holds


def at_most(name, variant, bound, margin):
    """Whether the variant's mean is at most `margin` above that of the variant `bound`."""

    def holds(results):
        a, b = (results.mean(name, variant=each) for each in (variant, bound))
        return a.diverged == b.diverged == 0 and a.mean <= b.mean + margin

    return holds


def number(x, digits):
    """So many significant digits, without an exponent."""
    if x == 0 or not math.isfinite(x):
        return str(x)
    rounded = float(f"{x:.{digits - 1}e}")
    return f"{rounded:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def bars(axes, results, name, label):
    """Horizontal bars of the variants' means of a result, with standard deviations; none where a run diverged."""
    variants = results.settings("variant")
    found = [results.mean(name, variant=each) for each in variants]
    kept = [(row, each) for row, each in zip(range(len(variants))[::-1], found) if each.diverged == 0]
    deviations = [each.deviation for _, each in kept]
    axes.barh([row for row, _ in kept], [each.mean for _, each in kept], xerr=deviations, color="#4878a8", capsize=3)
    axes.set_yticks(range(len(variants))[::-1], variants)
    axes.set_ylim(-0.6, len(variants) - 0.4)
    axes.set_xlabel(label)
    ends = [x for _, each in kept for x in (each.mean - each.deviation, each.mean + each.deviation)]
    if ends:
        margin = 0.2 * (max(ends) - min(ends)) + 1e-9
        axes.set_xlim(max(0.0, min(ends) - margin), max(ends) + margin / 2)
