"""What a step's callback says it returns, asked once for each function."""

from __future__ import annotations

import functools
import gc
import typing
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ryusen import annotations
from ryusen.annotations import result_annotation
from ryusen.typed import UNTYPED


def whole(value: int) -> int:
    return value


async def texts() -> list[str]:
    return []


def later() -> Awaitable[int]:
    raise NotImplementedError


class Counter:
    def count(self) -> int:
        return 1

    def __call__(self) -> str:
        return ""


@functools.wraps(whole)
def wrapper(*args: Any) -> Any:
    return whole(*args)


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (whole, int),
        (texts, list[str]),
        (later, int),
        (Counter().count, int),
        (Counter(), str),
        (Counter, Counter),
        (functools.partial(whole, 1), int),
        (wrapper, int),
        (lambda: 1, UNTYPED),
        (len, UNTYPED),
    ],
)
def test_every_kind_of_callable_is_asked_and_answers_the_same_again(callback: Any, expected: Any) -> None:
    assert [result_annotation(callback) for _ in range(2)] == [expected, expected]


def test_a_function_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over a thousand steps would read the same annotation a thousand times."""
    asked: list[Any] = []

    def resolve(fn: Callable[..., Any]) -> dict[str, Any]:
        asked.append(fn)
        return typing.get_type_hints(fn)

    def fresh() -> int:
        return 1

    monkeypatch.setattr(annotations, "resolve_annotations", resolve)
    assert {result_annotation(fresh) for _ in range(100)} == {int}
    assert asked == [fresh]


def test_a_name_that_is_defined_later_is_found_then(monkeypatch: pytest.MonkeyPatch) -> None:
    def early() -> NotYet:  # type: ignore[name-defined]  # noqa: F821
        return None

    assert result_annotation(early) is UNTYPED
    monkeypatch.setitem(globals(), "NotYet", int)
    assert result_annotation(early) is int


def test_a_function_that_is_gone_is_not_remembered() -> None:
    before = len(annotations._returns)
    for _ in range(10):

        def passing() -> int:
            return 1

        result_annotation(passing)
    del passing
    gc.collect()
    assert len(annotations._returns) <= before
