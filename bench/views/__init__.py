"""Tables and charts of each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench.cases import CASES
from bench.show import peers
from bench.show.charts import MakeChart
from bench.show.columns import MakeTable
from bench.views import env_step, kernels, learn, startup, train

_TABLES: Final[Mapping[str, Mapping[str, MakeTable]]] = {
    **env_step.TABLES,
    **kernels.TABLES,
    **train.TABLES,
    **startup.TABLES,
    **learn.TABLES,
    "peer": peers.TABLES,
}
TABLES: Final = {case: _TABLES[case] for case in (*CASES, "peer")}
_CHARTS: Final[Mapping[str, Sequence[MakeChart]]] = {
    **env_step.CHARTS,
    **kernels.CHARTS,
    **startup.CHARTS,
    **train.CHARTS,
    "peer": peers.CHARTS,
    **learn.CHARTS,
}
CHARTS: Final = {case: _CHARTS[case] for case in (*CASES, "peer") if case in _CHARTS}
