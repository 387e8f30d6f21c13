"""Portable values go there and back exactly, or are refused where they enter, with the path (FILLED-IN 11, "Values")."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, defaultdict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ryusen import InvalidValue
from ryusen.protocol.values import DEPTH_MAX, check_value, decode_value, encode_value

pytestmark = pytest.mark.case(67)


class Colour(StrEnum):
    RED = "red"


class Rank(IntEnum):
    ONE = 1


class Odd(float):
    pass


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def same(left: Any, right: Any) -> bool:
    """Equality that tells True from 1, 1 from 1.0 and 0.0 from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return (math.copysign(1, left), left) == (math.copysign(1, right), right)
    if isinstance(left, datetime):
        return (left, left.utcoffset()) == (right, right.utcoffset())
    return bool(left == right)


portable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | st.datetimes(
        min_value=datetime(1, 1, 2),
        max_value=datetime(9999, 12, 30),
        timezones=st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.sampled_from(["$bytes", "$map", "$datetime"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(portable)
def test_whatever_is_portable_comes_back_exactly(value: Any) -> None:
    """Case 067: no digit, sign, type, order or offset changes on the way."""
    data = encode_value(value)
    check_value(data)
    assert same(decode_value(data), value)
    assert encode_value(decode_value(data)) == data


@given(portable)
def test_the_encoding_is_json_for_everybody(value: Any) -> None:
    """Another reader of JSON must accept what is written, or gateways and consoles could not show it."""
    json.loads(encode_value(value), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"null"),
        (-0.0, b"-0.0"),
        (2**53 + 1, b"9007199254740993"),
        (-(2**63), b"-9223372036854775808"),
        (5e-324, b"5e-324"),
        ("", b'""'),
        ([], b"[]"),
        ({}, b"{}"),
        (b"", b'{"$bytes":""}'),
        (b"\xff\xfe", b'{"$bytes":"//4="}'),
        ({"$bytes": "x"}, b'{"$map":{"$bytes":"x"}}'),
        ({"$map": {}}, b'{"$map":{"$map":{}}}'),
        ({"$bytes": 1, "other": 2}, b'{"$bytes":1,"other":2}'),
        ({"$ref": "#/a"}, b'{"$ref":"#/a"}'),
        ((1, (2,)), b"[1,[2]]"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), b'{"$datetime":"2026-01-02T03:04:05.000006+00:00"}'),
    ],
)
def test_the_text_of_a_value_is_fixed(value: Any, text: bytes) -> None:
    """Golden bytes: stored payloads of every release must go on meaning the same."""
    assert encode_value(value) == text


def test_fold_is_decided_when_a_datetime_is_encoded() -> None:
    """The second 02:30 of an autumn night is another instant than the first; the text tells them apart."""
    zone = ZoneInfo("Europe/Berlin")
    first = encode_value(datetime(2026, 10, 25, 2, 30, tzinfo=zone))
    second = encode_value(datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zone))
    assert (first, second) == (
        b'{"$datetime":"2026-10-25T02:30:00+02:00"}',
        b'{"$datetime":"2026-10-25T02:30:00+01:00"}',
    )


cyclic: dict[str, Any] = {"a": []}
cyclic["a"].append(cyclic)


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (math.nan, "$", "not finite"),
        ({"order": {"lines": [{}, {"price": math.inf}]}}, "$.order.lines[1].price", "not finite"),
        ([2**63], "$[0]", "64 bits"),
        ([-(2**63) - 1], "$[0]", "64 bits"),
        ({"n": Decimal("1.10")}, "$.n", "Decimal"),
        ({"tags": {1, 2}}, "$.tags", "set"),
        ({1: 2}, "$", "keys are text"),
        ({"a b": "\ud800"}, '$["a b"]', "surrogate"),
        ({"\udfff": 1}, '$["\\udfff"]', "surrogate"),
        (datetime(2026, 1, 1), "$", "naive"),
        (datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=30))), "$", "whole minutes"),
        (Colour.RED, "$", "plain str"),
        (Rank.ONE, "$", "plain int"),
        (Odd(1.5), "$", "plain float"),
        (OrderedDict(a=1), "$", "plain dict"),
        (defaultdict(list), "$", "plain dict"),
        (bytearray(b"x"), "$", "bytearray"),
        ({"f": iter(())}, "$.f", "tuple_iterator"),
        (object(), "$", "object"),
        (cyclic, "$.a[0]", "contains itself"),
        (nested(DEPTH_MAX + 1), "$" + "[0]" * DEPTH_MAX, "deeper"),
        (nested(100_000), "$" + "[0]" * DEPTH_MAX, "deeper"),
    ],
)
def test_what_cannot_travel_is_refused_with_its_path(value: Any, path: str, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as refused:
        encode_value(value)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        (b"", "$", "not JSON"),
        (b"{", "$", "not JSON"),
        (b"1 2", "$", "not JSON"),
        (b"\xef\xbb\xbf1", "$", "not JSON"),
        (b'"\x01"', "$", "not JSON"),
        (b"\xff", "$", "UTF-8"),
        (b'"\xed\xa0\x80"', "$", "UTF-8"),
        ("1".encode("utf-16"), "$", "UTF-8"),
        (b"[NaN]", "$[0]", "NaN is not JSON"),
        (b"[-Infinity]", "$[0]", "-Infinity"),
        (b'{"a":1e400}', "$.a", "too large"),
        (b'{"a":-1e-400}', "$.a", "too small"),
        (b"18446744073709551616", "$", "64 bits"),
        (b"9" * 100_000, "$", "64 bits"),
        (b'{"a":{"b":1,"b":1}}', "$.a.b", "twice"),
        (b'{"a":"\\ud800"}', "$.a", "surrogate"),
        (b'{"\\udc00":1}', '$["\\udc00"]', "surrogate"),
        (b'{"$bytes":1}', "$", "must hold text"),
        (b'{"$bytes":"YQ"}', "$", "base64"),
        (b'{"$bytes":"YR=="}', "$", "base64"),
        (b'{"$bytes":"Y Q=="}', "$", "base64"),
        (b'{"$bytes":"-_8="}', "$", "base64"),
        (b'{"$datetime":"2026-01-01"}', "$", "RFC 3339"),
        (b'{"$datetime":"2026-01-01T00:00:00"}', "$", "RFC 3339"),
        (b'{"$datetime":"2026-01-01T00:00:00.1234567Z"}', "$", "RFC 3339"),
        (b'{"$datetime":"2026-01-01T00:00:00-00:00"}', "$", "RFC 3339"),
        (b'{"$datetime":"2026-02-30T00:00:00Z"}', "$", "exists"),
        (b'{"$datetime":"2026-01-01T00:00:60Z"}', "$", "exists"),
        (b'{"$map":[]}', "$", "must hold an object"),
        (b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), "$" + "[0]" * DEPTH_MAX, "deeper"),
        (b"[" * 1_000_000, "$", "deeper"),
    ],
)
def test_text_that_is_no_value_is_refused_with_its_path(text: bytes, path: str, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as refused:
        check_value(text)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"-0", -0.0),
        (b"1E2", 100.0),
        (b' { "a" : [ 1.0 , 1 ] } ', {"a": [1.0, 1]}),
        (b'{"$map":{"plain":1}}', {"plain": 1}),
        (b'{"$datetime":"2026-01-01T00:00:00Z"}', datetime(2026, 1, 1, tzinfo=UTC)),
        (b'{"$bytes":"YQ==","x":1}', {"$bytes": "YQ==", "x": 1}),
    ],
)
def test_text_of_other_writers_is_read_exactly(text: bytes, value: Any) -> None:
    assert same(decode_value(text), value)


def test_the_depth_limit_itself_is_allowed() -> None:
    assert same(decode_value(encode_value(nested(DEPTH_MAX))), nested(DEPTH_MAX))


@given(
    st.binary(max_size=40) | st.text(alphabet='{}[]":,0123456789.eE-$mapbytesnulltrue \\u', max_size=40).map(str.encode)
)
def test_any_bytes_are_a_value_or_a_typed_refusal(data: bytes) -> None:
    """Case 067: garbage never escapes as another error."""
    try:
        value = decode_value(data)
    except InvalidValue:
        return
    assert same(decode_value(encode_value(value)), value)
