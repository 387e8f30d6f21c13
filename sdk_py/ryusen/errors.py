"""Every error of the SDK.

    RyusenError
    +-- InvalidValue         a value that cannot travel exactly, or text that is not one; names the path inside it
    +-- StepFailed           raised by `ctx.step.run` when the server recorded the step's terminal failure
    +-- NonRetryable         raised by a step's callback: do not try again
    +-- RetryAfter           raised by a step's callback: try again, not before a delay
    +-- DeclarationRefused   a step was declared in a way that can never be accepted
    +-- NotInAttempt         `current_attempt()` was called outside a step's callback
    +-- ConfigurationError   an App, a manifest, a worker or a client was set up wrongly
    +-- ApiError             the service answered a request with a problem
    +-- Unreachable          the service gave no answer; whether a write took place is unknown

The sentence of a class is constant, so that logs group; what varies stands behind it as key=value pairs.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "ApiError",
    "ConfigurationError",
    "DeclarationRefused",
    "InvalidValue",
    "NonRetryable",
    "NotInAttempt",
    "RetryAfter",
    "RyusenError",
    "StepFailed",
    "Unreachable",
]


class RyusenError(Exception):
    """The root of the SDK's errors. `code` is stable; `fields` are the details that vary."""

    code: ClassVar[str] = "error"

    def __init__(self, sentence: str, **fields: object) -> None:
        """Keep the constant sentence and the varying fields apart."""
        super().__init__(sentence)
        self.sentence = sentence
        self.fields = fields

    def __str__(self) -> str:
        pairs = " ".join(f"{name}={value!r}" for name, value in self.fields.items() if value is not None)
        return f"{self.sentence} [{pairs}]" if pairs else self.sentence


class InvalidValue(RyusenError, ValueError):
    """A value that has no exact portable encoding, or bytes that are not one.

    Attributes:
        path: where inside the value, such as `$.order.lines[3].price`.
        reason: what is wrong there and what to do.
    """

    code = "invalid_value"

    def __init__(self, reason: str, path: str = "$") -> None:
        """Name the place and the reason."""
        super().__init__(f"{path}: {reason}")
        self.reason = reason
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.path)


class StepFailed(RyusenError):
    """A step failed for good; the server recorded it and every pass sees it here (RFD 1, "produces that recorded failure").

    Attributes:
        step_id: the step.
        category: `application`, `sdk.timeout`, `sdk.invalid_result`, ...
        message: the last attempt's message.
        details: the last attempt's details, a portable value or None.
        attempts: how many attempts were made.
    """

    code = "step_failed"

    def __init__(self, step_id: str, category: str, message: str, details: object = None, attempts: int = 0) -> None:
        """Carry the recorded failure."""
        super().__init__(f"step failed: {message}", step_id=step_id, category=category, attempts=attempts)
        self.step_id = step_id
        self.category = category
        self.message = message
        self.details = details
        self.attempts = attempts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step_id, self.category, self.message, self.details, self.attempts)


class NonRetryable(RyusenError):
    """Raise it from a step's callback when another attempt cannot help; the step fails at once.

    Args:
        message: what happened, for people.
        details: a portable value that `StepFailed.details` will carry.
    """

    code = "non_retryable"

    def __init__(self, message: str = "", details: object = None) -> None:
        """Keep the message and the details."""
        super().__init__(message or "not retryable")
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.details)


class RetryAfter(RyusenError):
    """Raise it from a step's callback to ask for the next attempt not before `delay`; it counts as a failed attempt.

    Args:
        delay: seconds, a timedelta or text such as "1m30s".
        message: what happened, for people.
        details: a portable value that `StepFailed.details` will carry if this was the last attempt.
    """

    code = "retry_after"

    def __init__(self, delay: Any, message: str = "", details: object = None) -> None:
        """Keep the delay as given; the worker reads and checks it."""
        super().__init__(message or "retry later")
        self.delay = delay
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.delay, self.message, self.details)


class DeclarationRefused(RyusenError, ValueError):
    """A step's declaration can never be accepted as written; nothing was recorded and no callback ran.

    Attributes:
        refusal: the stable code of what is wrong, such as `invalid_argument` or `too_many_steps`.
        field: what is wrong, such as `retry.attempts`.
        limit: the bound that was passed, where there is one.
    """

    code = "declaration_refused"

    def __init__(self, refusal: str, field: str, limit: float | None = None, message: str = "") -> None:
        """Name the field and its bound."""
        super().__init__(message or "the declaration was refused", refusal=refusal, field=field, limit=limit)
        self.refusal = refusal
        self.field = field
        self.limit = limit
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.refusal, self.field, self.limit, self.message)


class NotInAttempt(RyusenError, RuntimeError):
    """`current_attempt()` was called where no attempt of a step runs."""

    code = "not_in_attempt"

    def __init__(self) -> None:
        """Say where it may be called."""
        super().__init__("no step attempt is running here; call current_attempt() inside a step's callback")


class ConfigurationError(RyusenError, ValueError):
    """Something was set up wrongly; the fields name it, its value and what is allowed."""

    code = "configuration"


class ApiError(RyusenError):
    """The service refused a request or failed at it (problem+json, RFC 9457).

    Attributes:
        problem: the stable code of the problem, such as `idempotency_conflict`.
        status: the HTTP status.
        detail: the sentence for people.
        members: the problem's other members.
        retry_after_s: when to come back, in seconds, where the answer said so.
    """

    code = "api_error"

    def __init__(
        self,
        problem: str,
        status: int,
        detail: str,
        members: dict[str, object] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Carry the problem."""
        super().__init__(detail or "the service refused the request", problem=problem, status=status)
        self.problem = problem
        self.status = status
        self.detail = detail
        self.members = members or {}
        self.retry_after_s = retry_after_s


class Unreachable(RyusenError):
    """No answer came within the attempts made. A write without an idempotency key may or may not have taken place."""

    code = "unreachable"
