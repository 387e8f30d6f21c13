"""Waiting for something outside this process: looked at again and again, with a deadline that says what was waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

__all__ = ["eventually"]

T = TypeVar("T")

LOOK_S = 0.02


async def eventually(look: Callable[[], Awaitable[T]], what: str, *, seconds_max: float = 20.0) -> T:
    """Return the first true answer of `look`.

    Raises:
        AssertionError: there was none within `seconds_max`; says `what` was waited for and the last answer.
    """
    answer: T | None = None
    with anyio.move_on_after(seconds_max):
        while not (answer := await look()):  # noqa: ASYNC110 - what is looked at is in other processes
            await anyio.sleep(LOOK_S)
        return answer
    raise AssertionError(f"within {seconds_max} s it never came to this: {what}; the last look gave {answer!r}")
