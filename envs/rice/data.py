"""Parameters of RICE from `parameters.json`, and the exogenous paths.

The file has units and sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FILE: Final = Path(__file__).with_name("parameters.json")
N_PROFILE: Final = 4
"""Entries of a profile: population, technology, carbon intensity, mitigation cost."""


@cache
def document() -> dict[str, Any]:
    """Return the content of the file; do not modify it."""
    read: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def world() -> dict[str, float]:
    """Return the parameters shared by all regions, by name."""
    return {name: float(entry["value"]) for name, entry in document()["world"].items()}


def regions(n_regions: int) -> dict[str, Floats]:
    """Return the parameters of the first regions, ``(n_regions,)`` each, by name."""
    table = document()["regions"]
    return dict(zip(table["columns"], np.array(table["rows"][:n_regions]).T, strict=True))


N_REGIONS: Final = len(document()["regions"]["rows"])


def paths(given: Mapping[str, float], n_regions: int, n_periods: int) -> dict[str, NDArray[np.float32]]:
    """Return the exogenous paths, period 0 to ``n_periods``; rounded at the end.

    Args:
        given: Parameters shared by all regions, as from `world`.
        n_regions: Regions.
        n_periods: Periods of an episode.

    Returns:
        Arrays of `Paths` without the starts.
    """
    own, years, period = regions(n_regions), given["years"], np.arange(n_periods + 1)
    labour, technology, intensity = (np.empty((n_periods + 1, n_regions)) for _ in range(3))
    labour[0], technology[0], intensity[0] = own["labour"], own["technology"], own["intensity"]
    for t in range(n_periods):
        # L' = L ((1 + L_a) / (1 + L))^l_g
        labour[t + 1] = labour[t] * ((1 + own["labour_limit"]) / (1 + labour[t])) ** own["labour_speed"]
        # A' = (e^eta + g_A e^(-delta_A years t)) A
        growth = own["technology_growth"] * np.exp(-own["technology_slowing"] * years * t)
        technology[t + 1] = technology[t] * (np.exp(given["technology_trend"]) + growth)
        # sigma' = sigma e^(-g_sigma (1 - delta_sigma)^(years t) years)
        decline = given["intensity_decline"] * (1 - given["intensity_slowing"]) ** (years * t)
        intensity[t + 1] = intensity[t] * np.exp(-decline * years)
    # theta_1 = p_b / (1000 theta_2) (1 - delta_pb)^t sigma
    price = given["backstop_price"] * (1 - given["backstop_decline"]) ** period
    abatement = price[:, None] / (1000 * given["abatement_exponent"]) * intensity
    land = given["land_emissions"] * (1 - given["land_decline"]) ** period
    share = np.minimum(period / given["forcing_steps"], 1)
    forcing = given["forcing_first"] + (given["forcing_last"] - given["forcing_first"]) * share
    exact = {
        "production": technology * (labour / 1000) ** (1 - given["capital_share"]),
        "labour": labour / 1000,
        "intensity": intensity,
        "abatement": abatement,
        "profile": np.stack([labour / 1000, technology / 10, intensity, 10 * abatement], -1),
        "world": np.stack([land, forcing], -1),
        "credit": own["capital"] / given["debt_multiple"],
    }
    return {name: array.astype(np.float32) for name, array in exact.items()}
