"""Names of backends, environments, commits and points, and numbers as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..core.archive import read_toml
from ..core.point import class_and_config
from ..core.stats import SpreadKind

if TYPE_CHECKING:
    from ..core.point import Figure
    from ..core.record import Record

_LABELS: Final = read_toml(Path(__file__).with_name("labels.toml"))
BACKEND_NAME: Final[Mapping[str, str]] = _LABELS["backends"]
"""Name of the code, by backend; `numpy` is the baseline."""
BACKEND_STYLE: Final[Mapping[str, dict[str, str]]] = _LABELS["styles"]
"""Colour, marker and line of a backend in matplotlib's names."""
ENV_NAME: Final[Mapping[str, str]] = _LABELS["environments"]
AXES: Final[Mapping[str, str]] = _LABELS["axes"]
"""Explanations of axes."""
USUAL: Final[Mapping[str, object]] = _LABELS["usual"]
"""Usual values of peers' options."""
SPREADS: Final[Mapping[SpreadKind | None, tuple[str, str]]] = {
    "processes": ("interval ", "the 95 % interval over five or more processes"),
    "range": ("range ", "the range of two to four processes"),
    "samples": ("samples ", "the range of the samples of one process, which is no interval"),
    None: ("", "the 95 % interval"),
}
"""Word before a spread, and its meaning."""
UNSETTLED: Final = "\N{DAGGER}"
"""Sign of figures whose warm-up did not settle."""
BUSY: Final = "\N{DOUBLE DAGGER}"
"""Sign of figures of a busy machine."""
WIDE: Final = "\N{SECTION SIGN}"
"""Sign of figures that differ much between processes."""
OTHER_WAYS: Final = ("saved arrays",)
"""Other implementations of this project."""


# ------------------------------------------------------------------ names


def backend_label(record: Record) -> str:
    """Name the backend; on a CPU with its threads."""
    name = BACKEND_NAME[str(record.point["backend"])]
    if record.threads is None:
        return name
    threads = plural(record.threads, "thread")
    return f"{name.removesuffix(')')}, {threads})" if name.endswith(")") else f"{name} ({threads})"


def software(record: Record) -> str:
    """Name other software of a record."""
    return str(record.point["peer"]).removesuffix("-learning")


def is_ours(record: Record) -> bool:
    """True if code of this project did the work."""
    return record.point.get("implementation", "ours") in ("ours", *OTHER_WAYS)


def code_and_device(record: Record) -> str:
    """Name the code: our backend, or other code and its device."""
    if is_ours(record):
        return backend_label(record)
    return f"{record.point['implementation']}, {'GPU' if record.threads is None else 'CPU'}"


def code_label(record: Record) -> str:
    """Name the code and threads: our backend, or a peer's variant."""
    if record.case != "peer":
        return backend_label(record)
    who = " ".join(str(record.point[axis]) for axis in ("peer", "variant") if axis in record.point)
    return f"{who} ({device_label(record.threads)})"


def device_label(threads: int | None) -> str:
    """Name the device: threads of a CPU, or a GPU."""
    return "GPU" if threads is None else plural(threads, "thread")


def machine_label(record: Record) -> str:
    """Name the machine of a record."""
    machine = record.machine
    return f"{machine.get('gpu') or machine.get('cpu')}, {machine.get('cores')} CPU cores"


def commit_label(record: Record) -> str:
    """Name the measured commit, and mark uncommitted changes."""
    sha = record.git.get("sha")
    return (str(sha)[:7] if sha else "unknown") + (" + changes" if record.git.get("dirty") else "")


def medians(records: Iterable[Record]) -> str:
    """Return the sentence on the spreads of records."""
    kinds = _spread_kinds(records)
    meanings = [meaning for kind, (_, meaning) in SPREADS.items() if kind in kinds]
    if not meanings:
        return "Values without a spread."
    what = "Medians" if kinds == {"samples"} else "Geometric means of processes' medians"
    return f"{what} with {' or '.join(meanings)}."


def means(records: Iterable[Record]) -> str:
    """Name the averages of records in a few words, see `medians`."""
    return "medians of one process" if _spread_kinds(records) == {"samples"} else "geometric means of processes"


def _spread_kinds(records: Iterable[Record]) -> set[SpreadKind]:
    return {spread.kind for record in records if (spread := record.spread)}


def notes(records: Iterable[Record]) -> list[str]:
    """Return the remarks of the sweeps."""
    return sorted({str(record.notes["note"]) for record in records if "note" in record.notes})


def env_name(env: str) -> str:
    """Name an environment; a user's by class or path, and config."""
    try:
        target, config = class_and_config(env)
    except (ValueError, RecursionError):  # a user's name
        target, config = env, {}
    name = ENV_NAME.get(target, target.rpartition(":")[2])
    return f"{name}({', '.join(f'{key}={value}' for key, value in config.items())})" if config else name


def environment(env: str, agents: int = 1, envs: int | None = None) -> str:
    """Name an environment, its number of agents and of copies."""
    parts = [env_name(env)]
    parts += [plural(agents, "agent")] if agents > 1 else []
    parts += [] if envs is None else [plural(envs, "environment")]
    return ", ".join(parts)


def axis_label(axis: str) -> str:
    """Name an axis."""
    return "environment" if axis == "env" else axis.removeprefix("n_").replace("_", " ")


def point_label(point: Mapping[str, Any]) -> str:
    """Name a point by its environment and axes, except backend and implementation."""
    axes = {axis: value for axis, value in point.items() if axis not in ("backend", "implementation")}
    words = [environment(str(axes.pop("env")))] if "env" in axes else []
    words += [way for way in OTHER_WAYS if way == point.get("implementation")]
    return ", ".join(words + [_value(axis, value) for axis, value in axes.items()])


def _value(axis: str, value: Any) -> str:
    if type(value) is bool:
        return axis if value else f"not {axis}"
    if type(value) is not int:
        return str(value).replace("_", " ")
    things = axis.removeprefix("n_").replace("envs", "environments")
    return plural(value, things.removesuffix("s"), things)


def size_and_run(record: Record) -> str:
    """Name the sizes of a point and its run."""
    sizes = {axis: int(value) for axis, value in record.point.items() if axis.startswith("n_")}
    return f"{point_label(sizes)}; {record.run_id}"


def quantity(metric: str) -> str:
    """Name the quantity of a metric such as ``env_steps_per_s``, with its unit."""
    words = metric.replace("_", " ").replace("env", "environment")
    rate = words.removesuffix(" per s")
    return f"{rate} per second" if rate != words else f"{words.removesuffix(' s')}, s"


# ------------------------------------------------------------------ numbers


def plural(count: int, one: str, several: str = "") -> str:
    """Write a count with its noun."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def plain_text(value: Any) -> str:
    """Write the value of an axis or a note; None is empty."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def number(value: float) -> str:
    """Write a rate with three digits and its SI prefix."""
    for letter, unit in UNITS.items():
        if value >= 0.9995 * unit:
            return f"{value / unit:.3g} {letter}" if value < 999.5 * unit else f"{value / unit:,.0f} {letter}"
    return f"{value:.3g}"


def digits(value: float, n: int) -> str:
    """Round to significant digits, and write large values without an exponent."""
    rounded = float(f"{value:.{n}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10**n else f"{rounded:,.{n}g}"


def ratio_text(ratio: float) -> str:
    """Write a ratio with three significant digits."""
    return digits(ratio, 3)


def interval_text(metric: Figure) -> str:
    """Write the kind and ends of a spread with four digits in its median's unit.

    A very wide spread has a unit at each end.
    """
    word, _ = SPREADS[metric.kind]
    letter = number(metric.value).partition(" ")[2]
    unit = UNITS.get(letter, 1.0)
    if metric.high >= 9999.5 * unit or (letter and metric.low < 0.1 * unit):
        return f"{word}{number(metric.low)} to {number(metric.high)}"
    low, high = (f"{end / unit:#.4g}".rstrip(".") for end in (metric.low, metric.high))
    return f"{word}{low} to {high} {letter}".rstrip()


UNITS: Final = {"G": 1e9, "M": 1e6, "k": 1e3}
