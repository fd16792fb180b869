"""Groups of whatever shares a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
SharedKey = TypeVar("SharedKey", bound=Hashable)


def groups_of(items: Iterable[Item], key: Callable[[Item], SharedKey]) -> dict[SharedKey, list[Item]]:
    """Return items by their keys; groups and the items of each are in the order in which they come."""
    groups: dict[SharedKey, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
