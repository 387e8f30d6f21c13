"""Every case from the field that this release reaches has a test that bears its number."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
REACHED = frozenset(
    (
        1,
        2,
        4,
        5,
        7,
        8,
        10,
        11,
        13,
        14,
        16,
        17,
        19,
        20,
        22,
        23,
        25,
        26,
        28,
        31,
        32,
        29,
        34,
        35,
        37,
        38,
        40,
        41,
        43,
        44,
        46,
        47,
        49,
        50,
        52,
        53,
        55,
        56,
        59,
        62,
        64,
        65,
        67,
        68,
        70,
        71,
        73,
        74,
        76,
        77,
        79,
    )
)
_MARK = re.compile(r"mark\.case\((\d+)\)")


def test_every_reached_case_has_a_test() -> None:
    """Would catch a case whose last test was renamed, merged or removed."""
    numbered = {
        int(number) for path in TESTS.rglob("test_*.py") for number in _MARK.findall(path.read_text(encoding="utf-8"))
    }
    assert numbered >= REACHED, f"no test bears {sorted(REACHED - numbered)}"
