"""Models of files and types of their fields."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Required

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from warpdrive_min.errors import shortened

DEEPEST: Final = 32
"""Maximum nesting of a value in a file."""
MOST: Final = 1e24
"""Largest number in a file; products and ratios stay finite."""
SHOWN: Final = 80
"""Maximum characters of a value in an error."""
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = SHOWN


class Model(BaseModel):
    """Part of a file; frozen, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def short_text(value: Any) -> str:
    """Return a value, shortened for an error."""
    return shortened(_SHORT.repr(value), SHOWN)


def error_text(error: ValidationError) -> str:
    """Describe a model's first error: field, rule and value."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    got = "" if "(got " in first["msg"] else f" (got {short_text(first.get('input'))})"
    return f"{field}: {first['msg']}{got}".removeprefix(": ")


# ------------------------------------------------------------------ types of fields


def _plain(value: Any) -> Any:
    """Check that a value's numbers are finite and its nesting is limited."""
    left = [(value, "")]
    while left:
        each, place = left.pop()
        if isinstance(each, float | int) and not abs(each) <= MOST:
            rule = "{place} must be a finite number of at most {most} (got {got})"
            context = {"place": place[1:] or "it", "most": f"{MOST:g}", "got": short_text(each)}
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
        time = datetime.fromisoformat(text)
        time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)  # years 1 and 9999 of some zones are no years in UTC
    except (ValueError, OverflowError) as error:
        raise PydanticCustomError("time", "must be a time as 2026-01-31T12:00:00+00:00") from error
    return text


COMMIT: Final = re.compile(r"[0-9A-Za-z][\w./-]{0,99}", re.ASCII)
"""Pattern of a commit's name that git cannot take for an option."""
COMMIT_RULE: Final = "must begin with a letter or digit, then have those and . _ - /"


def _is_name(git: dict[str, Any]) -> dict[str, Any]:
    """Check that git cannot take a commit's name for an option."""
    if git.get("sha") and not COMMIT.fullmatch(str(git["sha"])):
        raise PydanticCustomError("sha", f"sha {COMMIT_RULE} (got {{got}})", {"got": short_text(git["sha"])})
    return git


def _scalars(value: dict[str, Any]) -> dict[str, Any]:
    """Check that all values except `unread` are scalars."""
    for name, each in value.items():
        if name != "unread" and isinstance(each, dict | list):
            rule = "{name} must be a text or a number (got {got})"
            raise PydanticCustomError("type", rule, {"name": name, "got": short_text(each)})
    return value


Plain = AfterValidator(_plain)
"""Checks the numbers within a value of any type."""
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-MOST, le=MOST)]
Amount = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=MOST)]
Positive = Annotated[float, Field(strict=True, gt=0, le=MOST)]
Nanoseconds = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1e-6, le=1e18)]
"""Duration of up to thirty years, ns."""
Index = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Count = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
Json = Annotated[dict[str, Any], Plain]
Seconds = Annotated[float, Field(ge=1e-9, le=1e9)]
Size = Annotated[int, Field(ge=0, lt=2**63)]


def _entries(types: Mapping[str, Any]) -> Any:
    """Return the type of a dictionary that may have undeclared entries.

    Args:
        types: Type of each declared entry; entries of one type share a key, separated by spaces.
    """
    make: Any = TypedDict
    declared = make("Entries", {name: of for names, of in types.items() for name in names.split()}, total=False)
    declared.__pydantic_config__ = ConfigDict(extra="allow", strict=True)
    return declared


def entries(types: Mapping[str, Any]) -> AfterValidator:
    """Return a validator for the declared entries of a dictionary; see `_entries`."""
    adapter: TypeAdapter[Any] = TypeAdapter(_entries(types))

    def check(value: dict[str, Any]) -> dict[str, Any]:
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            raise PydanticCustomError("entry", "{fault}", {"fault": error_text(error)}) from error
        return value

    return AfterValidator(check)


def _has_window(telemetry: dict[str, Any]) -> dict[str, Any]:
    """Check that an energy comes with its time window."""
    if telemetry.get("energy_j") is not None and "duration_s" not in telemetry:
        raise PydanticCustomError("window", "energy_j needs duration_s (got none)")
    return telemetry


Cores = Annotated[int, Field(ge=1, le=10**6)]
Machine = Annotated[
    Json,
    AfterValidator(_scalars),
    entries({"gpu cpu python gpu_uuid_hash": str | None, "cores": Cores | None, "memory_bytes": Size | None}),
]
"""See `machine.fingerprint`."""
_OF_GIT: Final = entries({"sha diff_hash": str | None, "dirty": bool | None})
Git = Annotated[Json, AfterValidator(_scalars), _OF_GIT, AfterValidator(_is_name)]
"""See `machine.git_state`."""
WarmUp = Annotated[Json, entries({"settled": bool, "blocks": Size, "cap_s": Seconds, "last_spread": Amount})]
TELEMETRY: Final = {
    "duration_s": Seconds,
    "energy_j": Amount | None,
    "contended": bool,
    "samples": Size,
    "throttle_reasons": dict[str, Amount],
    "gpm": dict[str, Any],
}
Telemetry = Annotated[Json, entries(TELEMETRY), AfterValidator(_has_window)]
"""NVML's readings."""
OURS: Final = {"case": str, "point": Required[dict[str, str | int | float | bool]]}
"""Our point next to a peer's."""
MEMBERS: Final = {
    "env_steps_to_threshold": Required[Annotated[list[Positive | None], Field(min_length=1)]],
    "seconds_to_threshold": list[Amount | None],
    "return_after": list[Number],
}
"""Results of a population: each list has a value for each member; null: not reached."""
DIFFERENCE: Final = {"iteration": Required[Size], "tensor": Required[str], "absolute relative": Required[Amount]}
"""First difference of two runs."""
RUN: Final = {"processor architecture": Required[str]}
"""Run of the case `determinism`."""
NOTES: Final = {
    "setup_s": Amount | None,
    "rollout_s update_s": Seconds,
    "bytes_per_run ops_per_run": Size,
    "peak_bytes undisturbed_rounds blocks threads launches": Size | None,
    "planted": Number,
    "fixed_bytes free_bytes stepped_envs": Number | None,
    "samples_s": dict[str, list[Seconds]],
    "throttled_samples": dict[str, Size],
    "joules_per_unit": Annotated[list[Positive], Field(min_length=1)],
    "options": dict[str, Any],
    "remarks": list[str],
    "version": str | None,
    "counts code": str,
    "digests": dict[str, list[str]],
    "ours": _entries(OURS),
    "members": _entries(MEMBERS),
    "difference": _entries(DIFFERENCE) | None,
    "reference varied": _entries(RUN),
}
Notes = Annotated[Json, entries(NOTES)]
Time = Annotated[str, AfterValidator(_iso)]
"""Time in ISO 8601."""
