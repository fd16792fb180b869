"""Sections of a run config: frozen dataclasses that check their keys, and are read from mappings and written back.

What a key may hold is the annotation of its field: numbers, strings, literals, lists, schedules, other sections.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from warpdrive_min.errors import ConfigError, known
from warpdrive_min.training.schedules import Points, is_number, is_schedule

WORDS: Final[dict[Any, str]] = {
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    str: "a string",
    NoneType: "null",
    Points: "a list of [timestep, value] in the order of time",
    Any: "anything",
}
"""What is said of a type in errors."""


class RuleError(ConfigError):
    """A key of a section breaks a rule."""

    def __init__(self, place: str, key: str, what: str) -> None:
        super().__init__(place, key, what)  # as they are, so that the error can be pickled
        self.place, self.key, self.what = place, key, what

    def __str__(self) -> str:
        return f"run config {_join(self.place, self.key)}: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Base of the sections; a mapping that leaves a key out gets the field's default.

    Raises:
        ConfigError: A value is of another type than its field, or breaks a rule of the section.
    """

    PLACE: ClassVar[str] = ""
    """Where the section stands in a run config, for errors."""

    def __post_init__(self) -> None:
        for key, hint in _hints(type(self)).items():
            value = getattr(self, key)
            if not _fits(value, hint):
                self._require(key, False, f"must be {_describe(hint)}", _advice(value, hint))
        self._check()

    def to_dict(self) -> dict[str, Any]:
        """Return the section as dicts, lists and scalars of Python, all keys given; `read` takes it back."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def types(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the type of each key, for a mapping that is being read."""
        return _hints(cls)

    def _check(self) -> None:
        """Raise `ConfigError` where a rule about values of the right types is broken."""

    def _require(self, key: str, holds: bool, rule: str, advice: str = "") -> None:
        """Raise `ConfigError` unless a rule about a key of this section holds."""
        if not holds:
            got = f" (got {getattr(self, key)!r})"
            raise RuleError(self.PLACE, key, rule + got + (f"; {advice}" if advice else ""))


S = TypeVar("S", bound=Section)


def read(cls: type[S], given: Mapping[str, Any], place: str = "") -> S:
    """Make a section of a mapping, which is copied and left as it is.

    A section in it that is missing or null has all its defaults. A float without a fraction is taken where an
    integer belongs: 1e6.

    Args:
        cls: The section.
        given: Values by key.
        place: Where the section stands, with the names around it and dots; for errors.

    Raises:
        ConfigError: A key is unknown, a value is of the wrong type, or a rule is broken.
    """
    types = cls.types(given)
    for key in given:
        if key not in types:
            near = difflib.get_close_matches(str(key), types, n=1)
            advice = f"did you mean {near[0]}?" if near else "leave it out"
            raise RuleError(place, str(key), f"is not a key (known are {known(types)}); {advice}")
    values = {
        key: _read_value(given.get(key), hint, _join(place, key))
        for key, hint in types.items()
        if key in given or _is_section(hint)
    }
    try:
        return cls(**values)
    except RuleError as error:
        raise RuleError(place, error.key, error.what) from None


def _read_value(given: Any, hint: Any, place: str) -> Any:
    """Return a value as the type of its field, where it can be read so; else a copy, which the section refuses."""
    if given is None and (_is_section(hint) or get_origin(hint) is dict):
        given = {}
    for option in _options(hint):
        arguments = get_args(option)
        if _is_section(option) and isinstance(given, Mapping):
            return read(option, given, place)
        if get_origin(option) is dict and isinstance(given, Mapping):
            return {key: _read_value(value, arguments[1], _join(place, key)) for key, value in given.items()}
        if get_origin(option) is tuple and isinstance(given, list | tuple):
            return tuple(_read_value(value, arguments[0], place) for value in given)
    if isinstance(given, float) and given.is_integer() and int in _options(hint) and float not in _options(hint):
        return int(given)
    return copy.deepcopy(given)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is float:
        return is_number(value)
    if hint is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if hint == Points:
        return isinstance(value, list) and is_schedule(value)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(entry, arguments[0]) for entry in value)
    if origin is dict:
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _fits(entry, arguments[1]) for key, entry in value.items()
        )
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    """Say what a type takes: the end of "must be"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in WORDS:
        return WORDS[hint]
    if origin in (Union, UnionType):
        return " or ".join(_describe(option) for option in sorted(arguments, key=lambda option: option is not NoneType))
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is tuple:
        return f"a list, each entry {_describe(arguments[0])}"
    if origin is dict:
        return f"a mapping of names, each value {_describe(arguments[1])}"
    return f"a mapping, as {hint.__name__}"


def _advice(value: Any, hint: Any) -> str:
    """Say what to do about a number that came as a string."""
    if not isinstance(value, str) or not {int, float} & set(_options(hint)):
        return ""
    try:
        float(value)
    except ValueError:
        return ""
    return "write it without quotes; PyYAML alone takes 1e-3 for a string: write 1.0e-3, or use RunConfig.load"


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else str(key)


def _hints(cls: type[Section]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}
