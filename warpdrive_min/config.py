"""Base of run and environment configs: frozen pydantic models.

Errors name the key. A field's annotation gives its type and bounds. Two bounds hold for all numbers: integers have 64
bits, and floats lie in the range of float32, in which kernels compute. Types are strict: a string is not a number, and
neither is true. Five other values are accepted: NumPy scalars and arrays, 1e6 for an integer, a list for a tuple, and
null for a section with its defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from warpdrive_min.errors import ConfigError, did_you_mean, known


def _whole(given: Any) -> Any:
    return int(given) if isinstance(given, float) and given.is_integer() else given


MAX_SIZE: Final = 2**31 - 1
"""Largest array size; kernels use int32 sizes."""
MAX_SEED: Final = 2**63 - 1
MAX_FLOAT, MIN_FLOAT = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
"""Largest and smallest absolute value of a nonzero float."""
MAX_DEPTH: Final = 100
"""Maximum nesting of lists and mappings."""

Int = Annotated[int, BeforeValidator(_whole)]
PositiveInt = Annotated[int, Field(ge=1, le=MAX_SIZE), BeforeValidator(_whole)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_SIZE), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=1, le=2**63 - 1), BeforeValidator(_whole)]
"""Number of steps, episodes or iterations; never an array size."""
Seed = Annotated[int, Field(ge=0, le=MAX_SEED), BeforeValidator(_whole)]
AgentCount = Annotated[PositiveInt, Field(le=2**20)]
"""Number of agents in an environment."""
Levels = Annotated[NonNegativeInt, Field(le=1_000)]
"""Number of an action's choices, without the one that changes nothing."""
PoolSize = Annotated[NonNegativeInt, Field(le=10_000_000)]
"""Number of rows of a reset pool."""
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
NonPositiveFloat = Annotated[float, Field(le=0)]
UnitFloat = Annotated[float, Field(ge=0, le=1)]
"""Number from 0 to 1."""
AS_TUPLE = BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given)
"""Annotation of tuples, which YAML and JSON write as lists."""
NULL_IS_EMPTY = BeforeValidator(lambda given: {} if given is None else given)
"""Annotation of mappings that reads null as empty."""

NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
NUMBER_TYPES: Final = ("int_type", "float_type")
"""pydantic's error types for a value that should be a number."""
QUOTED: Final = "write it without quotes; PyYAML itself reads 1e-3 as a string: write 1.0e-3, or use RunConfig.load"


class Config(BaseModel):
    """Base of configs and of their sections; missing keys get their defaults.

    Raises:
        ConfigError: A key is unknown, a value has the wrong type, or a rule is broken; ``what`` is the dotted key, with
            the enclosing sections.
    """

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())

    WHO: ClassVar[str] = ""
    """Prefix of the key in errors."""
    PLACE: ClassVar[str] = ""
    """Key of a section that is created alone, for errors."""
    OF_OTHERS: ClassVar[Sequence[str]] = ()
    """Fields whose numbers are checked by another config."""
    KEEPS_INTEGERS: ClassVar[bool] = False
    """Keep an integer given for a float, so that saved configs match."""

    def __init__(self, /, **given: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(given, self_instance=self)
        except ValidationError as error:
            raise _config_error(error, given, self.WHO, self.PLACE) from None
        except RecursionError:
            raise _too_deep(self.WHO, self.PLACE) from None

    # Makes pydantic create nested sections without this constructor, so that all errors reach the outermost one.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Create a config from a mapping, which is copied and not changed.

        Keys in errors start at this mapping.

        Raises:
            ConfigError: See the class.
        """
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _config_error(error, given, cls.WHO, "") from None
        except RecursionError:
            raise _too_deep(cls.WHO, "") from None

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some keys changed.

        Raises:
            ConfigError: See the class.
        """
        return type(self)(**{**dict(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return all keys as Python dicts, lists and scalars; `read` accepts them."""
        values: dict[str, Any] = plain(self.model_dump(warnings=False))
        return values

    def _check(self) -> None:
        """Raise `ConfigError` if a rule is broken that annotations cannot express."""

    def _require(self, key: str, holds: object, rule: str, do: str = "") -> None:
        """Raise `ConfigError` unless a rule about a key of this config holds."""
        if not holds:
            raise ConfigError.of(key, rule, getattr(self, key), do)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            return given
        for key in given:
            if key not in cls.model_fields:
                do = did_you_mean(str(key), cls.model_fields) or "leave it out"
                raise ConfigError.of(str(key), f"is not a key (known are {known(cls.model_fields)})", do=do)
        return {key: plain(value) for key, value in given.items()}

    @field_validator("*", mode="wrap")
    @classmethod
    def _in_range(cls, given: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Check the numbers of a field, also those in lists and mappings.

        With `KEEPS_INTEGERS`, an integer given for a float stays one.
        """
        value = handler(given)
        for number in _numbers(value) if info.field_name not in cls.OF_OTHERS else ():
            if isinstance(number, int) and not -MAX_SEED <= number <= MAX_SEED:
                raise PydanticCustomError("integer_range", "must be an integer of 64 bits")
            if isinstance(number, float) and number and not MIN_FLOAT <= abs(number) <= MAX_FLOAT:
                rule = f"must be 0, or from {MIN_FLOAT:.3g} to {MAX_FLOAT:.3g} in size, the range of float32"
                raise PydanticCustomError("float_range", rule)
        return given if cls.KEEPS_INTEGERS and isinstance(given, int) and isinstance(value, float) else value

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self._check()
        return self


def plain(given: Any) -> Any:
    """Copy mappings and lists, with NumPy's numbers as Python's; configs stay."""
    if isinstance(given, Mapping):
        return {key: plain(value) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [plain(value) for value in given]
    return given.tolist() if isinstance(given, np.ndarray | np.generic) else given


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, Mapping):
        yield from _numbers([*value.values()])


def _too_deep(who: str, place: str) -> ConfigError:
    rule = f"must not be nested deeper than {MAX_DEPTH} levels, nor contain itself"
    return ConfigError.of(place or "mapping", rule, who=who)


def _config_error(error: ValidationError, given: Any, who: str, place: str) -> ConfigError:
    """Convert pydantic's first error to ours, with the key as its place."""
    first = error.errors(include_url=False)[0]
    path, cause = first["loc"], first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        keys, rule, got, do = [*path, cause.what], cause.rule, cause.got, cause.do
    elif path[-1:] == ("[key]",):
        keys, rule, got, do = [*path[:-2]], "must have strings as keys", first["input"], ""
    else:
        keys, got = _innermost_key(path, given)
        rule = re.sub(r"^\w+ should ", "must ", first["msg"]).replace("valid tuple", "list")
        do = QUOTED if first["type"] in NUMBER_TYPES and isinstance(got, str) and NUMBER.fullmatch(got) else ""
    return ConfigError.of(".".join(str(key) for key in (place, *keys) if key != ""), rule, got, do, who)


def _innermost_key(path: tuple[int | str, ...], given: Any) -> tuple[list[int | str], Any]:
    """Return a path's leading mapping keys, and the value there.

    Marks of pydantic and indices of lists are left out.
    """
    keys: list[int | str] = []
    for part in path:
        if not isinstance(given, Mapping) or part not in given:
            break
        keys, given = [*keys, part], given[part]
    return (keys, given) if keys or not path else ([*path], ...)
