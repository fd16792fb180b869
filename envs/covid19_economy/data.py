"""Data of the COVID-19 economy: fitted parameters and recorded series."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

FILE: Final = Path(__file__).with_name("data.json")
"""Parameters and series with units, sources and licence."""
N_STATES: Final = 51
"""Governors: 50 states and the District of Columbia, in alphabetical order."""
N_FILTERS: Final = 5
"""Exponential filters between stringency and unemployment."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Data:
    """Content of `FILE`; arrays follow the order of ``states``; the file has units."""

    start: date
    """Day before the first step."""
    states: tuple[str, ...]
    """Postal codes."""
    names: tuple[str, ...]
    population: Floats
    transmission_slope: Floats
    transmission_intercept: Floats
    transmission_delay: int
    removal_rate: float
    mortality: float
    filter_decay: Floats
    filter_weight: Floats
    """Weights, ``(n_states, n_filters)``."""
    unemployment_floor: Floats
    health_weight: Floats
    """``(n_states + 1,)``: governors, then the government."""
    gdp_per_head: float
    infected: Floats
    """Share of the population on the day ``start``, as ``recovered``."""
    recovered: Floats
    stringency_before: Ints
    """Recorded levels from 1 January 2020 to ``start``, ``(n_days, n_states)``."""
    stringency: Ints
    """Recorded levels after ``start``, ``(n_days, n_states)``: governors' choices."""
    unemployment: Floats
    """Monthly record from January 2020, per cent, ``(n_months, n_states)``."""
    deaths: Floats
    """Recorded total from ``start``, people of all states, ``(n_days,)``."""
    vaccinated: Floats
    """Recorded total from ``start``, fully vaccinated people, ``(n_days,)``."""
    deaths_open: Floats
    """Deaths per day as a share of the population, at level 1 in all states.

    Mean of 540 days, ``(n_states + 1,)``; the nation is last. Computed with this environment and its default config, as
    are the three fields below.
    """
    deaths_closed: Floats
    """As ``deaths_open``, at level 10."""
    utility_open: Floats
    """Utility of a day's income at level 1, shaped as ``deaths_open``."""
    utility_closed: Floats
    """As ``utility_open``, at level 10."""

    @property
    def population_share(self) -> Floats:
        """Share of each state in the total population."""
        share: Floats = self.population / self.population.sum()
        return share

    @property
    def filters_at_start(self) -> Floats:
        """Filtered changes of stringency on ``start``, ``(n_states, n_filters)``.

        They begin at level 1 in 2019.
        """
        changes = np.diff(self.stringency_before, axis=0, prepend=1)
        age = np.arange(len(changes))[::-1, None]
        filtered: Floats = np.einsum("dk,ds->sk", np.exp(-age / self.filter_decay), changes)
        return filtered

    def month(self, step: int) -> int:
        """Return the row of ``unemployment`` for the day after ``step`` steps."""
        day = date.fromordinal(self.start.toordinal() + step)
        return 12 * (day.year - 2020) + day.month - 1


@cache
def load() -> Data:
    """Read `FILE`; cached."""
    given: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    recorded = given["recorded"]
    start = date.fromisoformat(given["start_date"])
    n_before = (start - date.fromisoformat(given["first_date"])).days + 1
    levels = np.array([[int(digit) for digit in of_state] for of_state in recorded["stringency"]], np.int32).T
    fields: dict[str, Any] = {
        each.name: np.array(given[each.name], float) if each.type == "Floats" else given[each.name]
        for each in dataclasses.fields(Data)
        if each.name in given
    }
    fields |= {
        "start": start,
        "states": tuple(given["states"]),
        "names": tuple(given["names"]),
        "health_weight": np.array([*given["health_weight"], given["health_weight_government"]]),
        "stringency_before": levels[:n_before],
        "stringency": levels[n_before:],
        "unemployment": np.array(recorded["unemployment"]).T,
        "deaths": np.array(recorded["deaths"], float),
        "vaccinated": np.array(recorded["vaccinated"], float),
    }
    return Data(**fields)
