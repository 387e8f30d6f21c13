"""What an operator may decide about an attempt whose outcome is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ryusen.protocol.values import encode_value
from ryusen.typed import UNTYPED, encode_typed, is_model

__all__ = ["AuthorizeRetry", "Command", "DeclareFailure", "SupplySuccess", "body_of"]


@dataclass(frozen=True)
class SupplySuccess:
    """The effect happened.

    Attributes:
        value: the step's result: a portable value, a dataclass or a model. None for the undo of a step.
    """

    value: object = None


@dataclass(frozen=True)
class DeclareFailure:
    """The attempt failed; the step's retry policy decides what follows.

    Attributes:
        message: what went wrong, at most 4,096 bytes.
        category: at most 100 characters; the service's word is `operator` when it is None.
        details: a portable value of at most 8,192 bytes, or None for none.
    """

    message: str
    category: str | None = None
    details: object = None


@dataclass(frozen=True)
class AuthorizeRetry:
    """Do it again under the same operation id, although it may have happened."""


Command = SupplySuccess | DeclareFailure | AuthorizeRetry


def body_of(command: Command) -> dict[str, Any]:
    """Return the member of a request that carries `command`; its value is encoded once and travels as these bytes.

    Raises:
        InvalidValue: the value or the details have no portable encoding.
    """
    if isinstance(command, SupplySuccess):
        annotation = type(command.value) if is_model(type(command.value)) else UNTYPED
        return {"success": {"value": msgspec.Raw(encode_typed(command.value, annotation))}}
    if isinstance(command, AuthorizeRetry):
        return {"retry": {}}
    failure: dict[str, Any] = {"message": command.message}
    if command.category is not None:
        failure["category"] = command.category
    if command.details is not None:
        failure["details"] = msgspec.Raw(encode_value(command.details))
    return {"failure": failure}
