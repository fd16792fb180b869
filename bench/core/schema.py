"""Models of files and types of their fields."""

from __future__ import annotations

import re
import reprlib
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

DEEPEST: Final = 32
"""Deepest nesting of a value in a file."""
MOST: Final = 1e24
"""Largest number in a file: products and ratios of two of them are finite."""
SHOWN: Final = 80
"""Letters of a value that an error shows."""
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = SHOWN


class Model(BaseModel):
    """Part of a file: frozen, and a field that it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def short(value: Any) -> str:
    """Return a value as an error shows it."""
    text = _SHORT.repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def fault(error: ValidationError) -> str:
    """Describe a model's first error: field, rule and value."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    got = "" if "(got " in first["msg"] else f" (got {short(first.get('input'))})"
    return f"{field}: {first['msg']}{got}".removeprefix(": ")


# ------------------------------------------------------------------ types of fields


def _plain(value: Any) -> Any:
    """Check that a value's numbers are finite and its nesting is limited."""
    left = [(value, "")]
    while left:
        each, place = left.pop()
        if isinstance(each, float | int) and not abs(each) <= MOST:
            rule = "{place} must be a finite number of at most {most} (got {got})"
            context = {"place": place[1:] or "it", "most": f"{MOST:g}", "got": short(each)}
            raise PydanticCustomError("number", rule, context)
        if isinstance(each, dict | list) and place.count(".") >= DEEPEST:
            raise PydanticCustomError("depth", "must be nested at most {most} deep", {"most": DEEPEST})
        if isinstance(each, dict):
            left += [(inner, f"{place}.{name}") for name, inner in each.items()]
        elif isinstance(each, list):
            left += [(inner, f"{place}.{index}") for index, inner in enumerate(each)]
    return value


def _iso(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise PydanticCustomError("time", "must be a time as 2026-01-31T12:00:00+00:00") from error
    return text


def shaped(**kinds: type | UnionType) -> AfterValidator:
    """Return a type check of optional entries; durations must be above 0."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        for name, kind in kinds.items():
            got = value.get(name)
            if got is not None and not isinstance(got, kind):
                rule = "{name} must be of type {kind} (got {got})"
                context = {"name": name, "kind": getattr(kind, "__name__", str(kind)), "got": short(got)}
                raise PydanticCustomError("type", rule, context)
            if isinstance(got, float | int) and kind == float | int and name.endswith("_s") and got <= 0:
                raise PydanticCustomError("positive", "{name} must be above 0 (got {got})", {"name": name, "got": got})
        return value

    return AfterValidator(check)


COMMIT: Final = re.compile(r"[0-9A-Za-z][\w./-]{0,99}", re.ASCII)
"""Name of a commit, which git cannot take for an option."""


def _is_name(git: dict[str, Any]) -> dict[str, Any]:
    """Check that git cannot take a commit's name for an option."""
    if git.get("sha") and not COMMIT.fullmatch(str(git["sha"])):
        rule = "sha must begin with a letter or digit, then have those and . _ - / (got {got})"
        raise PydanticCustomError("sha", rule, {"got": short(git["sha"])})
    return git


def _scalars(value: dict[str, Any]) -> dict[str, Any]:
    """Check that all values except `unread` are scalars."""
    for name, each in value.items():
        if name != "unread" and isinstance(each, dict | list):
            rule = "{name} must be a text or a number (got {got})"
            raise PydanticCustomError("type", rule, {"name": name, "got": short(each)})
    return value


Plain = AfterValidator(_plain)
"""Checks the numbers within a value of any type."""
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-MOST, le=MOST)]
Amount = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=MOST)]
Nanoseconds = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1e-6, le=1e18)]
"""Time that something took: up to thirty years, ns."""
Index = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Count = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
Json = Annotated[dict[str, Any], Plain]
Machine = Annotated[Json, AfterValidator(_scalars), shaped(gpu=str, cpu=str, python=str, cores=int)]
"""Fields of `machine.fingerprint`."""
Git = Annotated[Json, AfterValidator(_scalars), shaped(sha=str, dirty=bool, diff_hash=str), AfterValidator(_is_name)]
"""Fields of `machine.git_state`."""
WarmUp = Annotated[Json, shaped(settled=bool, blocks=int, cap_s=float | int, last_spread=float | int)]
Telemetry = Annotated[
    Json,
    shaped(duration_s=float | int, energy_j=float | int, contended=bool, throttle_reasons=dict, gpm=dict, samples=int),
]
Notes = Annotated[
    Json,
    shaped(rollout_s=float | int, update_s=float | int, bytes_per_run=int, ops_per_run=int, undisturbed_rounds=int),
    shaped(planted=float | int, samples_s=dict, remarks=list, ours=dict, members=dict),
]
Time = Annotated[str, AfterValidator(_iso)]
"""Time in ISO 8601."""
