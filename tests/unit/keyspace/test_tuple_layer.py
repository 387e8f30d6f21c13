"""The tuple encoding, held to FoundationDB's own implementation byte for byte."""

from __future__ import annotations

import sys

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyspace.tuple_layer import escaped_bytes, pack, pack_bytes, pack_int, pack_stamp, pack_str, range_of, unpack

# The package brings an importer of a style that Python warns of at every later import, and warnings are errors here.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_SixMetaPathImporter"]

INT_MAX = 2**64 - 2
"""The reference gives 2**64 - 1 its form for longer integers, other clients do not; no key comes near either."""
integers = st.one_of(
    st.integers(-INT_MAX, INT_MAX),
    st.integers(0, 8)
    .flatmap(lambda size: st.integers(-2, 2).map(lambda near: (1 << (8 * size)) + near))
    .filter(lambda number: number <= INT_MAX),
    st.integers(1, 8)
    .flatmap(lambda size: st.integers(-2, 2).map(lambda near: near - (1 << (8 * size))))
    .filter(lambda number: number >= -INT_MAX),
)
# Zero bytes and 0xff are what the encoding treats specially; plain sampling would hardly ever put them side by side.
awkward_bytes = st.lists(st.sampled_from([b"\x00", b"\xff", b"\x01", b"a", b"\x00\xff"]), max_size=12).map(b"".join)
byte_strings = st.one_of(st.binary(max_size=40), awkward_bytes)
texts = st.one_of(st.text(max_size=20), st.text(st.sampled_from("\x00\x01a\xff\u0100\U0001f600"), max_size=12))
tuples = st.lists(st.one_of(integers, byte_strings, texts), max_size=6).map(tuple)


@given(tuples)
def test_packing_is_the_reference_byte_for_byte(elements: tuple[int | bytes | str, ...]) -> None:
    """Would catch a key that another client of the same cluster reads differently."""
    assert pack(elements) == fdb.tuple.pack(elements)


@given(tuples)
def test_unpacking_gives_back_what_was_packed(elements: tuple[int | bytes | str, ...]) -> None:
    """Would catch an encoding that loses or confuses an element."""
    assert unpack(pack(elements)) == elements
    assert unpack(fdb.tuple.pack(elements)) == elements


@given(tuples, tuples)
def test_packed_order_is_the_order_of_the_elements(
    left: tuple[int | bytes | str, ...], right: tuple[int | bytes | str, ...]
) -> None:
    """Would catch an index whose entries are not in the order of what they index."""
    packed = (pack(left) > pack(right)) - (pack(left) < pack(right))
    assert packed == fdb.tuple.compare(left, right)


@given(st.binary(min_size=12, max_size=12))
def test_a_stamp_is_read_by_the_reference_as_the_same_stamp(stamp: bytes) -> None:
    """Would catch a versionstamp whose batch order and user part are mixed up."""
    (read,) = fdb.tuple.unpack(pack_stamp(stamp))
    assert read.tr_version + read.user_version.to_bytes(2, "big") == stamp
    assert unpack(pack_stamp(stamp)) == (stamp,)


@given(byte_strings)
def test_escaped_bytes_is_the_length_of_the_encoding(value: bytes) -> None:
    """Would catch a reserve that forgets the escaping."""
    assert escaped_bytes(value) == len(pack_bytes(value))


@given(tuples, tuples, tuples)
def test_a_range_holds_what_goes_on_from_its_tuple_and_nothing_else(
    head: tuple[int | bytes | str, ...], tail: tuple[int | bytes | str, ...], other: tuple[int | bytes | str, ...]
) -> None:
    """Would catch a range that takes in the keys of a name which goes on with a NUL."""
    begin, end = range_of(pack(head))
    assert begin <= pack(head + tail) < end
    assert (begin <= pack(other) < end) == (other[: len(head)] == head and len(other) >= len(head))


def test_a_name_that_goes_on_with_a_nul_is_outside() -> None:
    """The same at the one place where byte order and tuple order part."""
    begin, end = range_of(pack_str("acme"))
    assert begin <= pack(("acme", 5)) < end
    assert not begin <= pack(("acme\x00", 5)) < end
    assert not begin <= pack(("acme\x00\xff", 5)) < end


@pytest.mark.parametrize("number", [2**64, -(2**64), 2**80])
def test_an_integer_of_more_than_eight_bytes_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        pack_int(number)


def test_what_is_not_a_key_element_is_refused() -> None:
    """A bool is an int in Python and would be stored as one."""
    with pytest.raises(TypeError):
        pack((True,))
    with pytest.raises(UnicodeEncodeError):
        pack_str("\ud800")
    for stamp in (b"", bytes(10), bytes(13)):
        with pytest.raises(ValueError, match="12 bytes"):
            pack_stamp(stamp)


@pytest.mark.parametrize(
    "data",
    [b"\x01abc", b"\x02abc", b"\x02\xff\x00", b"\x16\x01", b"\x0c\x00", b"\x33" + bytes(11), b"\x20", b"\xff", b"\x00"],
)
def test_what_is_not_an_encoding_is_refused(data: bytes) -> None:
    """Would catch a stray key that is read as something it is not."""
    with pytest.raises(ValueError, match=r".+"):
        unpack(data)


@given(st.binary(max_size=30))
def test_any_bytes_are_unpacked_or_refused(data: bytes) -> None:
    """Would catch an error other than ValueError, which a walk over all keys would not survive."""
    try:
        elements = unpack(data)
    except ValueError:
        return
    assert isinstance(elements, tuple)
