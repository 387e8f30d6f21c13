"""A step as workflow code calls it, and who answers for it."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ryusen.protocol.limits import LOCATION_CHARS_MAX
from ryusen.protocol.steps import StepDeclaration

__all__ = ["StepCall", "StepHost", "caller_location"]


@dataclass(frozen=True)
class StepCall:
    """One step as a pass met it: its declaration, and the callback with its arguments as current code has them.

    `callback` is None for a step that the service settles itself. `compensate` undoes the step when the run does not succeed;
    None when current code has no compensator.
    """

    declaration: StepDeclaration
    callback: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    annotation: Any
    context: contextvars.Context
    compensate: Callable[..., Any] | None = None


class StepHost(Protocol):
    """Whatever decides what becomes of a step that workflow code calls."""

    async def resolve(self, call: StepCall) -> Any:
        """Return the step's recorded value, raise its recorded failure, or end this pass's turn."""
        ...


def caller_location() -> str:
    """Return where the method that asks was called; the end of a long path."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"[-LOCATION_CHARS_MAX:]
