"""Base of what files hold: models that know all their fields, and the words for what breaks one."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class Model(BaseModel):
    """Part of a file: frozen, and a field that it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def fault(error: ValidationError) -> str:
    """Return the first field that breaks a model, the rule, and what was got, in words."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']} (got {first.get('input')!r:.80})"
