"""What frames say of steps: how one is declared, by which terms it is settled, and as what later passes see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

__all__ = [
    "Child",
    "Emission",
    "Failure",
    "OptionalRaw",
    "Part",
    "RetryPolicy",
    "StepDeclaration",
    "StepMemo",
    "Timer",
    "Wait",
]

if TYPE_CHECKING:
    OptionalRaw: TypeAlias = msgspec.Raw | None
else:
    # The decoder takes raw text only for a member declared as nothing but raw; one that is absent stays None all the same,
    # and a JSON null arrives as the text `null`, which is a value.
    OptionalRaw = msgspec.Raw


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a frame: an object without a tag, whose members of their default value are left out."""


class Failure(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A structured failure: of an attempt, of a step (with `attempts`) or of the function."""

    category: str
    message: str
    details: OptionalRaw = None
    attempts: int = 0


class RetryPolicy(Part, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt that failed is tried again; delays in milliseconds. `attempts` counts the first one too."""

    attempts: int = 3
    initial_ms: int = 1_000
    coefficient: float = 2.0
    cap_ms: int = 300_000


class Timer(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A durable timer: so long after the server accepts it, or at an instant (Unix epoch); milliseconds, exactly one of them."""

    delay_ms: int | None = None
    until_ms: int | None = None


class Emission(Part, frozen=True, kw_only=True, omit_defaults=True):
    """An event to emit. `payload` is one bytes value: the event's payload exactly, itself the encoding of a portable value."""

    event: str
    payload: msgspec.Raw
    correlation: dict[str, str] = {}


class Child(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A run to start of a function of the same application. `input` is the portable value it gets, byte for byte.

    `timeout_ms` counts from when the server accepts the step; None is for as long as the function and this run may take.
    """

    function: str
    input: msgspec.Raw
    timeout_ms: int | None = None


class Wait(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A wait for an event of exactly this name that carries every pair, so long after the server accepts it at most."""

    event: str
    match: dict[str, str] = {}
    timeout_ms: int


class StepDeclaration(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The next unresolved step that a pass met. `kind` says who settles it: a callback, or the server by the terms beside it.

    What begins with `undo` is its compensator's; `repeatable` says that running the callback again under the same operation id
    is safe. A step of the server's has no attempts: one that asks for a compensator, an attempt timeout or several attempts is
    refused.
    """

    id: str
    name: str = ""
    kind: Literal["callback", "timer", "emission", "child", "wait"] = "callback"
    retry: RetryPolicy = RetryPolicy()
    timeout_ms: int | None = None
    compensable: bool = False
    location: str = ""
    undo_retry: RetryPolicy | None = None
    undo_timeout_ms: int | None = None
    repeatable: bool = False
    undo_repeatable: bool = False
    timer: Timer | None = None
    emission: Emission | None = None
    child: Child | None = None
    wait: Wait | None = None


class StepMemo(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A settled step as every later pass sees it: its accepted value, or its terminal failure."""

    id: str
    value: OptionalRaw = None
    failure: Failure | None = None
