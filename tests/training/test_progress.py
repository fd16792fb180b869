"""The progress line, in a terminal and elsewhere."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from warpdrive_min.training.loop.metrics import EPISODIC_RETURN, STEPS_PER_S, make_row
from warpdrive_min.training.loop.progress import ProgressLine


def row(iteration: int, **returns: float) -> dict[str, float | int]:
    metrics = {policy: {EPISODIC_RETURN: value, "loss": 0.7} for policy, value in returns.items()}
    return make_row(iteration, 100 * iteration, 1.0, metrics, **{STEPS_PER_S: 1_234_567.0})


def shown(rows, *, is_terminal: bool, seconds=(0, 60, 120), **options) -> str:
    """Return the display of 30 iterations with a given clock.

    It gives ``seconds`` at each row, or at each iteration without one.
    """
    output, ticks = io.StringIO(), iter(seconds)
    console = Console(file=output, force_terminal=is_terminal, width=160, color_system=None)
    with ProgressLine(30, console=console, clock=lambda: next(ticks), **options) as progress:
        for each in rows:
            progress.advance(each) if isinstance(each, int) else progress.update(each)
    return output.getvalue()


def test_progress_elsewhere_is_a_line_for_each_row():
    """Outside a terminal, each row is one line.

    It has speed, mean returns and remaining time.
    """
    got = shown([row(10, tagger=12.3456, runner=-4), row(20, tagger=math.nan)], is_terminal=False)
    assert got.splitlines() == [
        "iteration 10/30  1,234,567 env steps/s  "
        "mean return by policy (higher is better): tagger 12.35, runner -4  at most 0:02:00 left",
        "iteration 20/30  1,234,567 env steps/s  0:01:00 left",
    ]


def test_time_left_leaves_out_the_first_iteration():
    """The first iteration includes compilation; the first estimate is a bound.

    It took 10 s, each later one 1 s.
    """
    got = shown([row(1), row(3), row(20)], is_terminal=False, seconds=(0, 10, 12, 29)).splitlines()
    assert [line.split("  ")[-1] for line in got] == ["at most 0:04:50 left", "0:00:27 left", "0:00:10 left"]


def test_progress_of_a_resumed_run_counts_its_own_iterations():
    """A resumed run's remaining time counts its own iterations.

    10 of its iterations took 60 s, so 60 s remain for the last 10.
    """
    assert "0:01:00 left" in shown([row(20)], is_terminal=False, start=10)


def test_progress_before_the_first_iteration_knows_no_time():
    """Before the first iteration, the remaining time is unknown."""
    assert "unknown time left" in shown([row(0)], is_terminal=False)


def test_progress_of_many_rows_is_about_twenty_lines():
    """It prints the first row, rows at equal distances, and the last one.

    The last one is also that of a run that stopped early.
    """
    rows = [row(iteration) for iteration in range(1, 30)]
    got = shown(rows, is_terminal=False, seconds=range(30)).splitlines()
    printed = [int(line.split()[1].partition("/")[0]) for line in got]
    assert printed == [*range(1, 30, 2)]
    got = shown(rows[:-1], is_terminal=False, seconds=range(30)).splitlines()
    assert [int(line.split()[1].partition("/")[0]) for line in got] == [*range(1, 29, 2), 28]


def numbers(lines: str) -> list[int]:
    return [int(line.split()[1].partition("/")[0]) for line in lines.splitlines()]


@pytest.mark.parametrize(
    ("rows", "seconds", "printed"),
    [
        ({1}, [*range(0, 300, 10)], [1, *range(4, 30, 3)]),  # rows at the ends of a slow run
        ({1, 15}, [each / 2 for each in range(30)], [1, 4, 7, 10, 13, 15, 18, 21, 24, 27]),
        ({1, *range(2, 30, 2)}, [each / 100 for each in range(30)], [1, *range(4, 30, 2)]),  # rows suffice
    ],
)
def test_iterations_without_rows_are_printed_where_rows_are_rare(rows, seconds, printed):
    """A run that writes few rows prints its iterations, without metrics."""
    steps = [row(each) if each in rows else each for each in range(1, 30)]
    assert numbers(shown(steps, is_terminal=False, seconds=seconds)) == printed


def test_row_before_a_due_line_is_printed_there():
    """Returns of rows that come too early for a line are not lost."""
    steps = [row(each) if each % 5 == 0 or each == 1 else each for each in range(1, 30)]
    lines = shown(steps, is_terminal=False, seconds=[*range(0, 300, 10)]).splitlines()
    assert [number for number in numbers("\n".join(lines)) if number % 5 == 0] == [5, 10, 15, 20, 25]


def test_first_iteration_after_five_seconds_is_printed():
    """A run whose rows are far apart soon prints an estimate."""
    ticks, output = iter([0.0, 1.0, *(1 + each / 10 for each in range(1, 60))]), io.StringIO()
    with ProgressLine(2_000, console=Console(file=output), clock=lambda: next(ticks)) as progress:
        progress.update(row(1))
        for each in range(2, 60):
            progress.advance(each)
    assert output.getvalue().splitlines()[1:] == ["iteration 41/2000  0:03:16 left"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ((0, 100, 101), []),  # the first iteration compiles
        ((0, 100, 200), ["0:46:40 left on this CPU"]),
        ((0, 1, 91), ["0:42:00 left on this CPU"]),
        ((0, 1, 7, 600), []),  # fast at first
        ((0, 60, 120), []),
    ],
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_run_is_told_once(is_terminal, seconds, told):
    """A run of more than half an hour says so, with advice."""
    steps = [row(1), *range(2, len(seconds))]
    got = shown(steps, is_terminal=is_terminal, seconds=seconds, advice=" on this CPU")
    lines = got.replace("\r", "\n").replace("\x1b[2K", "").splitlines()
    assert [line for line in lines if line.endswith("on this CPU")] == told


def test_progress_in_a_terminal_is_a_bar():
    """In a terminal, a bar shows the last row.

    Names are text, not markup.
    """
    got = shown([row(10, tagger=1.5), row(30, **{"[bold]x": 2.5})], is_terminal=True)
    assert "30/30 1,234,567 env steps/s  mean return by policy (higher is better): [bold]x 2.5  0:00:00 left" in got
    assert "\r" in got, "the bar must be drawn in place"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_silent_if_not_verbose(is_terminal):
    """With verbose off nothing is printed."""
    assert shown([row(10, tagger=1.5)], is_terminal=is_terminal, verbose=False) == ""
