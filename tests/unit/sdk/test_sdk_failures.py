"""Whatever user code raises becomes a structured failure, at once and readable without its code (case 068)."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import msgspec
import pytest
from ryusen import ApiError, DeclarationRefused, InvalidValue, NonRetryable, RetryAfter, StepFailed
from ryusen.failures import describe_exception, encode_result, step_failed
from ryusen.protocol.frames import Failure
from ryusen.protocol.limits import DETAILS_BYTES_MAX, MESSAGE_BYTES_MAX
from ryusen.protocol.values import decode_value
from ryusen.typed import UNTYPED

pytestmark = pytest.mark.case(68)


class NeedsArguments(Exception):
    def __init__(self, one: int, two: threading.Lock) -> None:
        super().__init__(one)
        self.lock = two


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class NotText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


def caught(raising: Any) -> BaseException:
    try:
        raising()
    except BaseException as exc:  # noqa: BLE001
        return exc
    raise AssertionError


def raise_it(exc: BaseException) -> Any:
    raise exc


def cycle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def chain(length: int) -> BaseException:
    exc: BaseException = ValueError("0")
    for number in range(1, length):
        following = ValueError(str(number))
        following.__cause__ = exc
        exc = following
    return exc


@pytest.mark.parametrize(
    ("exc", "message"),
    [
        (ValueError("out of stock"), "out of stock"),
        (ValueError(), "ValueError"),
        (NeedsArguments(3, threading.Lock()), "3"),
        (Unprintable(), "<Unprintable whose text cannot be shown>"),
        (NotText(), "<NotText whose text cannot be shown>"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(137), "137"),
        (GeneratorExit("bye"), "bye"),
        (cycle(), "first"),
        (chain(1_000), "999"),
        (ExceptionGroup("many", [ValueError("a"), TypeError("b")]), "many (2 sub-exceptions)"),
        (BaseExceptionGroup("hard", [KeyboardInterrupt()] * 500), "hard (500 sub-exceptions)"),
        (ValueError("bad \ud800 text"), "bad \\ud800 text"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), "'utf-8' codec can't decode byte 0xff in position 0: x"),
    ],
)
def test_any_exception_becomes_a_failure(exc: BaseException, message: str) -> None:
    failure = describe_exception(caught(lambda: raise_it(exc)))
    assert (failure.category, failure.message) == ("application", message)
    details = decode_value(bytes(failure.details or b"null"))
    assert details["type"].endswith(type(exc).__name__)
    assert any("raise_it" in line for line in details["traceback"])
    assert len(msgspec.json.encode(failure)) < MESSAGE_BYTES_MAX + DETAILS_BYTES_MAX


def test_causes_and_members_are_told_and_bounded() -> None:
    details = decode_value(bytes(describe_exception(chain(1_000)).details or b""))
    assert [cause["message"] for cause in details["causes"]] == ["998", "997", "996", "995", "994"]
    group = ExceptionGroup("many", [ValueError(str(n)) for n in range(50)])
    details = decode_value(bytes(describe_exception(group).details or b""))
    assert (len(details["exceptions"]), details["exceptions_count"]) == (10, 50)


@pytest.mark.case(46)
@pytest.mark.parametrize(
    "size", [MESSAGE_BYTES_MAX - 1, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 1, MESSAGE_BYTES_MAX * 50]
)
def test_a_long_message_says_that_it_was_shortened(size: int) -> None:
    """Case 046: a huge message neither hangs nor is cut in silence."""
    message = describe_exception(ValueError("x" * size)).message
    assert len(message.encode()) <= MESSAGE_BYTES_MAX
    assert (message == "x" * size) == (size <= MESSAGE_BYTES_MAX)
    assert message.endswith(f"[{size} bytes, shortened to {MESSAGE_BYTES_MAX}]") == (size > MESSAGE_BYTES_MAX)


def test_a_long_message_in_any_script_fits_its_bytes() -> None:
    message = describe_exception(ValueError("注" * 5_000)).message
    assert MESSAGE_BYTES_MAX - 4 < len(message.encode()) <= MESSAGE_BYTES_MAX
    assert message.endswith("[15000 bytes, shortened to 4096]")


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"order": 7}, {"order": 7}),
        ([1, b"x"], [1, b"x"]),
        ({"lock": threading.Lock()}, None),
        ("x" * DETAILS_BYTES_MAX, None),
    ],
)
def test_own_details_travel_or_their_absence_is_explained(details: Any, expected: Any) -> None:
    for exc in (NonRetryable("no", details=details), RetryAfter(5, "later", details=details)):
        carried = decode_value(bytes(describe_exception(exc).details or b""))
        assert carried == expected if expected is not None else "details_omitted" in carried


def test_a_step_failure_that_nobody_catches_keeps_what_it_was() -> None:
    failure = describe_exception(StepFailed("charge", "sdk.timeout", "too slow", {"a": 1}, 5))
    assert (failure.category, failure.message, failure.attempts) == ("sdk.timeout", "too slow", 5)
    details = decode_value(bytes(failure.details or b""))
    assert (details["step_id"], details["step_details"]) == ("charge", {"a": 1})


def test_errors_of_the_sdk_have_categories_of_their_own() -> None:
    assert describe_exception(DeclarationRefused("x", "retry")).category == "sdk.declaration_refused"
    assert describe_exception(InvalidValue("no", "$.a")).category == "sdk.invalid_value"


def test_a_recorded_failure_is_raised_as_step_failed_even_with_details_nobody_can_read() -> None:
    good = step_failed("s", Failure(category="c", message="m", details=msgspec.Raw(b'{"$bytes":"eA=="}'), attempts=2))
    assert (good.step_id, good.category, good.message, good.details, good.attempts) == ("s", "c", "m", b"x", 2)
    assert "unreadable" in step_failed("s", Failure(category="c", message="m", details=msgspec.Raw(b"NaN"))).details  # type: ignore[operator]


class Treacherous:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparing")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value",
    [iter(()), threading.Lock(), lambda: 1, {1, 2}, object(), Treacherous(), float("nan"), {"deep": [open]}],
)
@pytest.mark.parametrize("annotation", [UNTYPED, Any, dict, Treacherous])
def test_a_result_that_cannot_travel_is_a_failure_and_not_silence(value: Any, annotation: Any) -> None:
    failure = encode_result(value, annotation, 1_000, "the result")
    assert isinstance(failure, Failure)
    assert failure.category == "sdk.invalid_result"
    assert failure.message.startswith("the result is not a portable value: $")


@pytest.mark.case(46)
@pytest.mark.parametrize(("size", "fits"), [(999, True), (1_000, True), (1_001, False), (50_000, False)])
def test_an_oversized_result_names_field_size_and_limit(size: int, fits: bool) -> None:
    """Case 046: at the limit and around it."""
    encoded = encode_result("x" * (size - 2), str, 1_000, "the result of step 'a'")
    if fits:
        assert isinstance(encoded, msgspec.Raw)
        return
    assert isinstance(encoded, Failure)
    assert encoded.category == "sdk.invalid_result"
    assert decode_value(bytes(encoded.details or b"")) == {
        "field": "the result of step 'a'",
        "size": size,
        "limit": 1_000,
    }


@pytest.mark.parametrize(
    "exc",
    [
        InvalidValue("no", "$.a"),
        StepFailed("s", "c", "m", {"a": 1}, 3),
        NonRetryable("no", {"a": 1}),
        RetryAfter("5s", "later"),
        DeclarationRefused("x", "retry", 3, "no"),
        ApiError("conflict", 409, "no"),
    ],
)
def test_the_sdks_own_errors_survive_pickling(exc: Exception) -> None:
    """Callbacks run in process pools too; an error that cannot be rebuilt there breaks the pool."""
    if isinstance(exc, ApiError):
        assert exc.problem == "conflict"
        return
    assert str(pickle.loads(pickle.dumps(exc))) == str(exc)
