"""Exceptions and bad values as structured failures, which travel and are read without the code that raised them.

Nothing here may raise, whatever the exception is: one whose `__str__` raises, whose causes form a cycle or that is not even
an Exception must still become the failure of its attempt and not silence.
"""

from __future__ import annotations

import traceback
from typing import Any

import msgspec

from ryusen.errors import DeclarationRefused, InvalidValue, NonRetryable, RetryAfter, StepFailed
from ryusen.protocol.frames import Failure
from ryusen.protocol.limits import DETAILS_BYTES_MAX, MESSAGE_BYTES_MAX
from ryusen.protocol.values import decode_value, encode_value
from ryusen.typed import encode_typed

__all__ = [
    "APPLICATION",
    "INVALID_INPUT",
    "INVALID_RESULT",
    "TIMEOUT",
    "describe_exception",
    "encode_result",
    "invalid_result",
    "step_failed",
]

APPLICATION = "application"
TIMEOUT = "sdk.timeout"
INVALID_RESULT = "sdk.invalid_result"
INVALID_INPUT = "sdk.invalid_input"
INVALID_VALUE = "sdk.invalid_value"

_FRAMES_MAX = 10  # innermost frames of a traceback, the ones that name the fault
_CAUSES_MAX = 5
_MEMBERS_MAX = 10  # exceptions of a group
_PART_BYTES_MAX = 500  # text of a cause, a member or a frame


def describe_exception(exc: BaseException) -> Failure:
    """Return the structured failure for whatever user code raised."""
    category, attempts = APPLICATION, 0
    if isinstance(exc, StepFailed):
        category, attempts = exc.category, exc.attempts
    elif isinstance(exc, DeclarationRefused):
        category = f"sdk.{exc.code}"
    elif isinstance(exc, InvalidValue):
        category = INVALID_VALUE
    message = _shortened(_text(exc), MESSAGE_BYTES_MAX)
    return Failure(category=category, message=message, details=_details(exc), attempts=attempts)


def step_failed(step_id: str, failure: Failure) -> StepFailed:
    """Return the error that workflow code sees for a step's recorded failure."""
    details: object = None
    if failure.details is not None:
        try:
            details = decode_value(bytes(failure.details))
        except InvalidValue as exc:
            # An operator or another SDK wrote them; the failure itself must stay visible all the same.
            details = {"unreadable": str(exc)}
    return StepFailed(step_id, failure.category, failure.message, details, failure.attempts)


def encode_result(value: object, annotation: Any, limit_bytes: int, field: str) -> msgspec.Raw | Failure:
    """Return a result's encoding, or the failure that says why it cannot be one (FILLED-IN 11, "Oversized").

    Args:
        value: what user code returned.
        annotation: the type it is annotated with.
        limit_bytes: the largest encoding the server accepts.
        field: what the value is, for the failure.
    """
    try:
        data = encode_typed(value, annotation)
    except InvalidValue as exc:
        return invalid_result(field, exc)
    except Exception as exc:  # noqa: BLE001 - user code runs here: comparisons, properties, validators
        return invalid_result(field, InvalidValue(f"encoding it raised {_text(exc):.{_PART_BYTES_MAX}}"))
    if len(data) > limit_bytes:
        return Failure(
            category=INVALID_RESULT,
            message=f"{field} is {len(data)} bytes when encoded; the limit is {limit_bytes}",
            details=msgspec.Raw(encode_value({"field": field, "size": len(data), "limit": limit_bytes})),
        )
    return msgspec.Raw(data)


def invalid_result(field: str, error: InvalidValue) -> Failure:
    """Return the failure of a result that has no portable encoding."""
    path = _shortened(error.path, _PART_BYTES_MAX)
    reason = _shortened(error.reason, _PART_BYTES_MAX)
    return Failure(
        category=INVALID_RESULT,
        message=_shortened(f"{field} is not a portable value: {path}: {reason}", MESSAGE_BYTES_MAX),
        details=msgspec.Raw(encode_value({"field": field, "path": path, "reason": reason})),
    )


def _text(exc: BaseException) -> str:
    """Return the exception's own text, made safe to travel, whatever its `__str__` does."""
    try:
        text = exc.message if isinstance(exc, NonRetryable | RetryAfter | StepFailed) else str(exc)
    except BaseException:  # noqa: BLE001 - __str__ is user code; not even SystemExit may pass from here
        text = f"<{type(exc).__name__} whose text cannot be shown>"
    if type(text) is not str:
        text = str.__str__(text) if isinstance(text, str) else ""
    return text.encode("utf-8", "backslashreplace").decode("utf-8") or type(exc).__name__


def _shortened(text: str, bytes_max: int) -> str:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= bytes_max:
        return data.decode()
    note = f"... [{len(data)} bytes, shortened to {bytes_max}]"
    return data[: bytes_max - len(note)].decode("utf-8", "ignore") + note


def _details(exc: BaseException) -> msgspec.Raw | None:
    described: dict[str, object] = {"type": _type_name(exc), "traceback": _frames(exc)}
    causes = _causes(exc)
    if causes:
        described["causes"] = causes
    if isinstance(exc, BaseExceptionGroup):
        members = [_brief(member) for member in exc.exceptions[:_MEMBERS_MAX]]
        described["exceptions"] = members
        described["exceptions_count"] = len(exc.exceptions)
    if isinstance(exc, StepFailed):
        described["step_id"] = exc.step_id
        described["step_details"] = exc.details
    if isinstance(exc, NonRetryable | RetryAfter) and exc.details is not None:
        return _own_details(exc.details)
    return _fitting(described)


def _own_details(details: object) -> msgspec.Raw:
    try:
        data = encode_value(details)
    except InvalidValue as exc:
        return _fitting({"details_omitted": str(exc)[:_PART_BYTES_MAX]})
    if len(data) > DETAILS_BYTES_MAX:
        return _fitting({"details_omitted": f"{len(data)} bytes; the limit is {DETAILS_BYTES_MAX}"})
    return msgspec.Raw(data)


def _fitting(described: dict[str, object]) -> msgspec.Raw:
    """Return the encoded details, without the parts that do not fit or cannot travel."""
    for dropped in (None, "step_details", "exceptions", "causes", "traceback"):
        if dropped is not None:
            described.pop(dropped, None)
        try:
            data = encode_value(described)
        except InvalidValue:
            continue
        if len(data) <= DETAILS_BYTES_MAX:
            return msgspec.Raw(data)
    return msgspec.Raw(encode_value({"details_omitted": "they do not fit"}))


def _type_name(exc: BaseException) -> str:
    kind = type(exc)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return _shortened(name.encode("utf-8", "backslashreplace").decode("utf-8"), _PART_BYTES_MAX)


def _brief(exc: BaseException) -> dict[str, object]:
    return {"type": _type_name(exc), "message": _shortened(_text(exc), _PART_BYTES_MAX)}


def _causes(exc: BaseException) -> list[dict[str, object]]:
    causes: list[dict[str, object]] = []
    seen = {id(exc)}
    current = exc
    while len(causes) < _CAUSES_MAX:
        following = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        causes.append(_brief(following))
        current = following
    return causes


def _frames(exc: BaseException) -> list[str]:
    # Names and lines only: source text is not read and local values never travel.
    entries = [(frame.f_code, line) for frame, line in traceback.walk_tb(exc.__traceback__)]
    return [
        _shortened(f"{code.co_filename}:{line} in {code.co_qualname}", _PART_BYTES_MAX)
        for code, line in entries[-_FRAMES_MAX:]
    ]
