"""What names and texts may be, and how a refusal names what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyspace.errors import Refusal
from keyspace.transitions.names import check_id, check_name, check_text, check_workspace_name
from keyspace.tuple_layer import pack, unpack


def code_of(check: object, *arguments: object, **options: object) -> str | None:
    """Return the code of the refusal, None when it passes."""
    try:
        check(*arguments, **options)  # type: ignore[operator]
    except Refusal as refusal:
        assert all(len(str(value)) <= 200 for value in refusal.details.values()), "a refusal does not repeat the input"
        return refusal.code
    return None


@pytest.mark.case(44)
@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "\t",
        "\n",
        " a",
        "a ",
        "a\n",
        "a\x00b",
        "\x00",
        "a\x1fb",
        "a\x7fb",
        "a\ud800",
        "x" * 201,
        "x" * 10_000,
        "\u3000",
    ],
)
def test_a_name_that_is_none_is_refused(value: str) -> None:
    """Case 044: empty, blank, 10 kB, with NUL, with control characters, not Unicode."""
    assert code_of(check_name, "name", value) == "invalid_name"


@pytest.mark.parametrize(
    "value", ["a", "order.placed", "a b", "é", "\U0001f600" * 200, "x" * 200, 'q"\\', "ryusen", "\xff"]
)
def test_a_name_may_be_any_printable_text(value: str) -> None:
    """Up to 200 characters, whatever their width."""
    check_name("name", value)


@given(st.text(max_size=12))
def test_what_passes_can_be_a_key(value: str) -> None:
    """Would catch a name that the tuple layer or JSON cannot carry."""
    if code_of(check_name, "name", value) is None:
        assert unpack(pack((value,))) == (value,)
        assert value.encode().decode() == value


@pytest.mark.parametrize("value", ["a", "acme", "a-b", "0", "a" * 63, "a--b"])
def test_a_workspace_name(value: str) -> None:
    check_workspace_name(value)


@pytest.mark.parametrize("value", ["", "-a", "a-", "A", "a_b", "a.b", "a" * 64, "é", "a\n", "a\x00", " a", "a/b"])
def test_a_workspace_name_is_refused(value: str) -> None:
    """It begins every key and stands in every address, so it is the narrowest name of all."""
    assert code_of(check_workspace_name, value) == "invalid_name"


@pytest.mark.parametrize(
    "value", ["", "ab", "AB" * 16, "ab" * 16 + "\n", "g" * 32, " " * 32, "ab" * 17, "ab" * 15 + " ab"]
)
def test_what_cannot_be_an_id_is_not_found(value: str) -> None:
    """Would catch a look-up that reaches the key encoding with something that is no id, and fails there."""
    assert code_of(check_id, "run", value) == "not_found"


def test_an_id() -> None:
    check_id("run", "0123456789abcdef" * 2)


@pytest.mark.parametrize(
    ("value", "empty", "code"),
    [
        ("", False, "invalid_text"),
        ("", True, None),
        ("  ", False, "invalid_text"),
        ("a", False, None),
        ("é" * 5, False, None),
        ("é" * 5 + "a", False, "invalid_text"),
        ("a\x00", True, "invalid_text"),
        ("\ud800", True, "invalid_text"),
        ("a" * 10, False, None),
        ("a" * 11, False, "invalid_text"),
    ],
)
def test_a_text_is_bounded_in_bytes(value: str, empty: bool, code: str | None) -> None:
    """A bound on what is stored counts bytes, not characters: at the limit and one above."""
    assert code_of(check_text, "label", value, bytes_max=10, empty=empty) == code
