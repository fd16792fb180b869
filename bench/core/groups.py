"""Group items that share a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
SharedKey = TypeVar("SharedKey", bound=Hashable)


def groups_of(items: Iterable[Item], key: Callable[[Item], SharedKey]) -> dict[SharedKey, list[Item]]:
    """Group items by key, in their order of appearance."""
    groups: dict[SharedKey, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
