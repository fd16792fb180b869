"""Text of a disagreement: the array, the index, and both values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from warpdrive_min.agreement.compare import BITS, Arrays, Comparison, Difference, differing


def place(
    index: Sequence[int], agents: Sequence[Hashable] | None = None, axis: int | None = 1, *, is_shared: bool = False
) -> str:
    """Name the environment, the agent and the component of an index.

    Args:
        index: Index of an array with a row for each environment.
        agents: Ids by their position; None: their positions.
        axis: The agents' axis; None: the array has none.
        is_shared: All environments share the array.
    """
    words, component = ["all environments"] if is_shared else [f"environment {index[0]}"], list(index)
    if not is_shared and axis is not None and len(index) > 1:
        words.append(f"agent {index[axis] if agents is None else repr(agents[index[axis]])}")
        del component[axis]
    component = component if is_shared else component[1:]
    if component:
        words.append(f"component {component[0] if len(component) == 1 else component}")
    return ", ".join(words)


def at(name: str, element: Difference, others: Sequence[str] = ()) -> str:
    """Describe an element of an array, and name the other arrays that differ."""
    also = f"; so do {', '.join(others)}" if others else ""
    return f"{name} of {place(element.index)}: {element.values}{also}"


def first_difference(want: Arrays, got: Arrays, names: Sequence[str]) -> str:
    """Describe the first element whose bits differ in the first named array.

    Also names the other arrays.
    """
    first = BITS.compare(want[names[0]], got[names[0]]).first
    assert first is not None, names[0]
    return at(names[0], first, names[1:])


def first_step_difference(want: Sequence[Arrays], got: Sequence[Arrays], first_step: int = 0) -> str:
    """Describe the first step of two runs whose bits differ; "" if none.

    Compares the environments present in both runs.
    """
    for step, (expected, arrays) in enumerate(zip(want, got, strict=True), start=first_step):
        rows = {name: arrays[name][: len(array)] for name, array in expected.items()}
        if names := differing(expected, rows):
            return f"step {step}: {first_difference(expected, rows, names)}"
    return ""


def all_differences(name: str, found: Comparison, where: Callable[[Sequence[int]], str]) -> str:
    """Describe the largest error, the number of wrong elements, and the next ones.

    Args:
        name: Name of the array.
        found: Its comparison, with at least one wrong element.
        where: Function from an index to the text of its place.
    """
    first, *others = (f"{where(each.index)}: {each.values}" for each in found.worst)
    count = f"  {found.n_wrong} of {found.n_elements} elements of {name} differ" + ("; the next:" if others else "")
    return "\n".join([f"{name} of {first}", count, *(f"    {other}" for other in others)])
