"""Figure of RICE without policy and Nordhaus's DICE-2016R.

Usage: ``python -m tests.envs.rice_baseline FILE``
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envs.rice import Rice
from warpdrive_min import EnvWrapper

Floats = NDArray[np.float64]

YEARS: Final = np.arange(2015, 2120, 5)
DICE_2016R: Final[dict[str, Floats]] = {
    "temperature": np.array([
        0.8500000000, 1.0163416484, 1.1892306821, 1.3679223581, 1.5517382033, 1.7400122810, 1.9320690888,
        2.1272196666, 2.3247673028, 2.5240174603, 2.7242887063, 2.9249228452, 3.1252933680, 3.3248118882,
        3.5229325669, 3.7191547069, 3.9130237748, 4.1041311327, 4.2891568657, 4.4681583758, 4.6411843630,
    ]),
    "consumption": np.array([
        12.6020357599, 14.2107261238, 15.9650313312, 17.8702068000, 19.9313805688, 22.1534007458, 24.5407253760,
        27.0973440088, 29.8267238728, 32.7317758108, 35.8148365753, 39.0776651168, 42.5214514246, 46.1468376197,
        49.9539527866, 53.9424662062, 58.1116695928, 62.4606102316, 66.9897955035, 71.6990314045, 76.5875901660,
    ]),
    "emissions": np.array([
        35.7403846239, 39.3836936187, 42.9317332530, 46.3500626764, 49.6064559213, 52.6746847474, 55.5338979827,
        58.1679798262, 60.5649239920, 62.7162465933, 64.6164502868, 66.2625447611, 67.6536235241, 68.7904934669,
        69.6753512566, 70.3114985962, 70.7030860777, 70.8548718186, 70.7719749064, 70.4614328363, 69.9301122980,
    ]),
}  # fmt: skip
"""Baseline of DICE-2016R in each of `YEARS`.

Units: K above 1900; 1,000 USD per person and year; GtCO2 per year of industry. Source: Nordhaus's run of the model,
dice2016/DICER3-base.csv in github.com/chrisroadmap/loaded-dice (commit 430df964).
"""
UNITS: Final = {
    "temperature": "temperature, K above 1900",
    "consumption": "consumption, 1,000 USD a year\nfor each person",
    "emissions": "emissions of industry,\nGtCO2 a year",
}
SAVINGS_LEVEL: Final = 2
"""Savings of 20 % in all regions and periods."""


def without_policy() -> dict[str, Floats]:
    """Return RICE's paths without mitigation, by the names of `DICE_2016R`.

    Consumption and emissions are of the period that begins.
    """
    wrapper = EnvWrapper(Rice(episode_length=len(YEARS)), env_backend="cpu")
    wrapper.reset()
    arrays = {name: wrapper.cuda_data_manager.tensor(name).numpy() for name in ("temperature", *UNITS, "labour")}
    arrays["actions"] = wrapper.cuda_data_manager.tensor("sampled_actions").numpy()
    series: dict[str, list[float]] = {name: [] for name in UNITS}
    for period in range(len(YEARS)):
        series["temperature"].append(float(arrays["temperature"][0, 0]))
        arrays["actions"][..., 0], arrays["actions"][..., 1] = 0, SAVINGS_LEVEL
        wrapper.step()
        series["consumption"].append(float(arrays["consumption"].sum() / arrays["labour"][period].sum()))
        series["emissions"].append(float(arrays["emissions"].sum()))
    return {name: np.array(values) for name, values in series.items()}


def paint(file: str) -> None:
    """Write the figure in the format of the file's suffix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    for axes, (name, own) in zip(figure.subplots(1, 3), without_policy().items(), strict=True):
        axes.plot(YEARS, own, color="#d55e00", label="RICE here")
        axes.plot(YEARS, DICE_2016R[name], color="#0072b2", linestyle="--", label="DICE-2016R")
        axes.set_ylabel(UNITS[name])
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    figure.savefig(file, dpi=110, metadata={"Software": None} if file.endswith(".png") else None)


if __name__ == "__main__":
    paint(*sys.argv[1:])
