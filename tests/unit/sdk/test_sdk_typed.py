"""Values of annotated types come back as these types, or are refused in the attempt that made them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from ryusen import InvalidValue
from ryusen.typed import UNTYPED, decode_typed, encode_typed

pytestmark = pytest.mark.case(67)


class Size(Enum):
    S = "s"
    L = "l"


@dataclass
class Line:
    sku: str
    price: Decimal
    size: Size = Size.S


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    placed: datetime
    signature: bytes
    due: date
    patience: timedelta
    tags: set[str] = field(default_factory=set)
    extra: Any = None


class Wire(msgspec.Struct, tag="wire"):
    n: int
    inner: Line | None = None


class Shape(TypedDict):
    x: float
    label: NotRequired[str]


class Point(NamedTuple):
    x: int
    y: int


class Model(pydantic.BaseModel):
    name: str
    at: datetime
    lines: list[int] = []


@dataclass
class Holder:
    model: Model


@dataclass
class Restless:
    count: int

    def __post_init__(self) -> None:
        self.count += 1


ORDER = Order(
    id=UUID(int=7),
    lines=[Line("a", Decimal("1.10"), Size.L), Line("b", Decimal("2"))],
    placed=datetime(2026, 1, 1, tzinfo=UTC),
    signature=b"\xff\x00",
    due=date(2026, 2, 1),
    patience=timedelta(hours=1, milliseconds=3),
    tags={"x"},
    extra={"deep": [1, None]},
)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (ORDER, Order),
        ([ORDER], list[Order]),
        ({3: Line("a", Decimal("1"))}, dict[int, Line]),
        (Wire(n=1, inner=Line("a", Decimal("1"))), Wire),
        ({"x": 1.5, "label": "l"}, Shape),
        (Point(1, 2), Point),
        ((1, "a"), tuple[int, str]),
        (None, None),
        (None, Line | None),
        (Size.L, Size),
        (3, float),
        (Model(name="m", at=datetime(2026, 1, 1, tzinfo=UTC), lines=[1]), Model),
        (Holder(Model(name="m", at=datetime(2026, 1, 1, tzinfo=UTC))), Holder),
        ({"any": [1, b"x"]}, Any),
        ({"any": (1, 2)}, dict[str, Any]),
    ],
)
def test_a_typed_value_comes_back_equal(value: Any, annotation: Any) -> None:
    restored = decode_typed(encode_typed(value, annotation), annotation)
    if value == {"any": (1, 2)}:
        assert restored == {"any": [1, 2]}  # documented: an untyped tuple comes back as a list
    else:
        assert restored == value
    if not isinstance(value, int | dict):
        assert type(restored) is type(value)


@pytest.mark.parametrize(
    ("value", "annotation", "path", "reason"),
    [
        (Line("a", Decimal("1")), UNTYPED, "$", "annotate"),
        (Line("a", Decimal("1")), Any, "$", "annotate"),
        ({"n": Decimal("1")}, dict[str, Any], "$.n", "would come back as a str"),
        ({1, 2}, object, "$", "set"),
        (Order(**{**vars(ORDER), "extra": {"s": {1}}}), Order, "$.extra.s", "would come back as a list"),
        ("3", int, "$", "Expected `int`"),
        ({"a": [Line("a", Decimal("1"))]}, dict[str, list[int]], "$.a[0]", "Expected `int`"),
        ([threading.Lock()], list[Any], "$[0]", "lock"),
        (Order(**{**vars(ORDER), "placed": datetime(2026, 1, 1)}), Order, "$.placed", "naive"),
        (Model(name="m", at=datetime(2026, 1, 1)), Model, "$.at", "naive"),
        ({"x": float("nan")}, Shape, "$.x", "not finite"),
    ],
)
def test_what_would_change_is_refused_with_its_path(value: Any, annotation: Any, path: str, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as refused:
        encode_typed(value, annotation)
    assert refused.value.path == path


def test_a_type_that_does_not_give_back_what_it_was_given_is_refused() -> None:
    with pytest.raises(InvalidValue, match="changed") as refused:
        encode_typed(Restless(1), Restless)
    assert refused.value.path == "$.count"


def test_a_cycle_in_a_typed_value_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidValue, match="contains itself"):
        encode_typed(loop, list[Any])


@pytest.mark.parametrize(
    ("text", "annotation", "path"),
    [
        (b'{"sku":"a"}', Line, "$"),
        (b'{"sku":"a","price":"x"}', Line, "$.price"),
        (b'[{"sku":"a","price":"1"},{"sku":1,"price":"1"}]', list[Line], "$[1].sku"),
        (b'{"name":"m","at":"soon"}', Model, "$"),
        (b'{"model":{"name":1}}', Holder, "$.model"),
        (b'{"x":{"p q":{"a":1}},"y":{"b":"1"}}', dict[str, dict[str, dict[str, int] | int]], "$.y.b"),
        (b'[{"m":{"a":1,"b":{"sku":1,"price":"1"}}}]', list[dict[str, dict[str, Line | int]]], "$[0].m.b.sku"),
        (b"1", type("Strange", (), {}), "$"),
    ],
)
def test_text_of_another_type_is_refused_with_its_path(text: bytes, annotation: Any, path: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        decode_typed(text, annotation)
    assert refused.value.path == path
