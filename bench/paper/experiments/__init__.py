# SPDX-License-Identifier: MIT
"""One module for each experiment, with an `EXPERIMENT`. This one has what they share."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

from ..models import MECHANISMS
from ..results import Results

NAMES = (
    "fig1a", "fig1b", "theory", "table2", "table3", "table4", "table5", "table6", "fig2", "fig3a", "fig3b", "stability",
    "served", "query_bias",
)  # fmt: skip


class Options(NamedTuple):
    """size: "tiny" (for tests), "small" (the miniature) or "paper". steps: of training, None takes those of the size."""

    size: str = "small"
    source: str = "sample"
    steps: Optional[int] = None

    def chosen(self, sizes):
        """Those of the sizes {"tiny": {...}, ...}, with the source of the data, and the steps if they are given."""
        steps = {} if self.steps is None else {"steps": self.steps}
        return {**sizes[self.size], "source": self.source, **steps}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """plan(options) -> the settings of each run, without seeds. measure(run, progress) -> a result of JSON values.
    table(results) -> (column names, rows of text). draw(results, figure) draws with matplotlib. seeds: of the miniature,
    for all runs or a function of their settings. deviations: what ± means in the table. alone: runs measure time, and are
    not run at the same time as others."""

    name: str
    title: str
    claim: str
    plan: Callable[[Options], list]
    measure: Callable[[Any, Callable[[int, int], None]], dict]
    table: Callable[[Results], tuple]
    draw: Callable[[Results, Any], None]
    expectations: tuple
    notes: str = ""
    seeds: Union[int, Callable[[dict], int]] = 3
    deviations: str = "± standard deviation"
    alone: bool = False

    def seeds_of(self, settings):
        return self.seeds(settings) if callable(self.seeds) else self.seeds


def mechanism_settings(name, **changes):
    """A row of MECHANISMS as settings."""
    return dataclasses.asdict(dataclasses.replace(MECHANISMS[name], **changes))
