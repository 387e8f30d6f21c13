"""Correlation pairs: what an event may carry and a wait may ask for, and the ranges in which the two meet.

A registration lies under the digest of its first declared pair in byte order, or under that of no pair. An event therefore
looks at one range for each pair it carries and at the empty one, and never at registrations of other pairs (ARCHITECTURE 4,
"Waits"). Equality is exact and is checked on the pairs themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from keyspace.errors import Refusal
from keyspace.limits import CORRELATION_PAIRS_MAX, CORRELATION_TEXT_BYTES_MAX
from keyspace.transitions.names import check_text
from keyspace.tx import digest_of

__all__ = ["carries", "check_correlation", "pair_of_registration", "pairs_of_event"]

_NO_PAIR = digest_of("ryusen.pair")


def check_correlation(field: str, pairs: Mapping[str, str]) -> None:
    """Refuse pairs that are too many, too long or not text; `field` is what the caller calls them.

    Raises:
        Refusal: `invalid_correlation`, `invalid_text`.
    """
    if len(pairs) > CORRELATION_PAIRS_MAX:
        raise Refusal(
            "invalid_correlation", "Too many correlation pairs.", field=field, pairs=len(pairs),
            limit=CORRELATION_PAIRS_MAX,
        )  # fmt: skip
    for name, value in pairs.items():
        check_text(field, name, bytes_max=CORRELATION_TEXT_BYTES_MAX)
        check_text(f"{field}.{name}", value, bytes_max=CORRELATION_TEXT_BYTES_MAX, empty=True)


def _pair_digest(name: str, value: str) -> str:
    return digest_of("ryusen.pair", name, value)


def pair_of_registration(match: Mapping[str, str]) -> str:
    """Return the digest that a registration lies under: of its first declared pair in byte order, or of none."""
    if not match:
        return _NO_PAIR
    name = min(match, key=lambda text: text.encode())
    return _pair_digest(name, match[name])


def pairs_of_event(correlation: Mapping[str, str]) -> list[str]:
    """Return the digests under which registrations may lie that an event satisfies, in the order they are looked at."""
    return [_NO_PAIR, *sorted(_pair_digest(name, value) for name, value in correlation.items())]


def carries(correlation: Mapping[str, str], match: Mapping[str, str]) -> bool:
    """Whether an event carries every pair that a registration declared; more pairs do no harm."""
    return all(correlation.get(name) == value for name, value in match.items())
