"""Backoff: deterministic, bounded, never shrinking, never nothing unless nothing was declared."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyspace.errors import Refusal
from keyspace.limits import ATTEMPTS_MAX, RETRY_COEFFICIENT_MAX, RETRY_DELAY_MS_MAX
from keyspace.records.run import RetryRecord
from keyspace.retry import backoff_ms, check_retry


def policy(
    attempts: int = ATTEMPTS_MAX, initial_ms: int = 1_000, coefficient: float = 2.0, cap_ms: int = RETRY_DELAY_MS_MAX
) -> RetryRecord:
    return RetryRecord(attempts=attempts, initial_ms=initial_ms, coefficient=coefficient, cap_ms=cap_ms)


@pytest.mark.case(43)
@pytest.mark.parametrize("coefficient", [1.0, 1.000001, 1.5, 2.0, 10.0, RETRY_COEFFICIENT_MAX])
@pytest.mark.parametrize("cap_ms", [1, 999, 60_000, RETRY_DELAY_MS_MAX])
@pytest.mark.parametrize("initial_ms", [1, 1_000, RETRY_DELAY_MS_MAX])
def test_a_thousand_attempts_never_overflow_into_no_delay(initial_ms: int, coefficient: float, cap_ms: int) -> None:
    """Case 043: the delays of 1,000 attempts are positive, at most the cap, and never go down."""
    retry = policy(initial_ms=initial_ms, coefficient=coefficient, cap_ms=cap_ms)
    check_retry(retry)
    delays = [backoff_ms(retry, count) for count in range(1, ATTEMPTS_MAX + 1)]
    assert delays == sorted(delays)
    assert delays[0] >= 1 and delays[-1] <= cap_ms
    assert all(isinstance(delay, int) for delay in delays)
    assert delays[0] == min(initial_ms, cap_ms)
    assert [backoff_ms(retry, count) for count in (1, 500, 1_000)] == [delays[0], delays[499], delays[999]]


@pytest.mark.case(43)
def test_no_delay_only_where_none_was_declared() -> None:
    """Case 043, "never negative or zero unless declared": an initial delay of 0, or a cap of 0."""
    assert {backoff_ms(policy(initial_ms=0), count) for count in range(1, 1_001)} == {0}
    assert {backoff_ms(policy(cap_ms=0), count) for count in range(1, 1_001)} == {0}


def test_the_delays_are_those_of_the_formula() -> None:
    """RFD 2, "deterministic backoff": initial times coefficient to the failures before, capped."""
    assert [backoff_ms(policy(), count) for count in range(1, 8)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
        32_000,
        64_000,
    ]
    assert [backoff_ms(policy(cap_ms=5_000), count) for count in range(1, 5)] == [1_000, 2_000, 4_000, 5_000]
    assert [backoff_ms(policy(coefficient=1.5), count) for count in range(1, 4)] == [1_000, 1_500, 2_250]


@given(
    st.integers(0, RETRY_DELAY_MS_MAX),
    st.floats(1.0, RETRY_COEFFICIENT_MAX),
    st.integers(0, RETRY_DELAY_MS_MAX),
    st.integers(1, ATTEMPTS_MAX - 1),
)
def test_any_sound_policy_gives_sound_delays(initial_ms: int, coefficient: float, cap_ms: int, count: int) -> None:
    """Would catch a policy that `check_retry` lets pass and whose arithmetic fails."""
    retry = policy(initial_ms=initial_ms, coefficient=coefficient, cap_ms=cap_ms)
    check_retry(retry)
    delay, following = backoff_ms(retry, count), backoff_ms(retry, count + 1)
    assert 0 <= delay <= following <= cap_ms
    assert delay > 0 or 0 in (initial_ms, cap_ms)


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("attempts", -1),
        ("attempts", 2**31),
        ("attempts", 2**70),
        ("attempts", ATTEMPTS_MAX + 1),
        ("initial_ms", -1),
        ("initial_ms", RETRY_DELAY_MS_MAX + 1),
        ("cap_ms", -1),
        ("cap_ms", RETRY_DELAY_MS_MAX + 1),
        ("coefficient", 0.5),
        ("coefficient", -2.0),
        ("coefficient", 1e308),
        ("coefficient", math.inf),
        ("coefficient", math.nan),
    ],
)
def test_a_nonsensical_policy_is_refused(field: str, value: float) -> None:
    """Case 044, "refused at publish or declaration with the path, the bad value and the allowed range"."""
    fields = {"attempts": 3, "initial_ms": 1, "cap_ms": 1, "coefficient": 2.0} | {field: value}
    with pytest.raises(Refusal) as refused:
        check_retry(RetryRecord(**fields))  # type: ignore[arg-type]
    assert refused.value.code == "invalid_retry"
    assert refused.value.details["field"] == f"retry.{field}"
    assert refused.value.details["value"] is value
    assert {"minimum", "limit"} <= set(refused.value.details)
