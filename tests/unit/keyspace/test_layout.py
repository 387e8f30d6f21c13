"""The key tree: every leaf round-trips, every key is one leaf's, every range holds its own keys only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_keys import sample_elements

from keyspace.layout import (
    DUE,
    DUE_APP,
    EVENT_LIST,
    LEAVES,
    bucket_of,
    due_pointer,
    identify,
    ready_key,
    ready_span,
    shard_of_id,
    shard_of_workspace,
    shared_range,
    workspace_range,
)
from keyspace.leaf import ElementType, Id, Int, Leaf, Name, Stamp, Text
from keyspace.limits import SHARDS
from keyspace.records.work import Direction, Lane, LaneKind, application_lane, server_lane
from keyspace.tuple_layer import pack, unpack

names = st.one_of(st.text(min_size=1, max_size=12), st.text(st.sampled_from("\x00\xffa/\U0001f600"), min_size=1))
_BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    Name.label: names,
    Text.label: names,
    Int.label: st.integers(0, 2**63),
    Id.label: st.one_of(
        st.binary(min_size=16, max_size=16), st.lists(st.sampled_from([0, 255]), min_size=16, max_size=16).map(bytes)
    ).map(bytes.hex),
    Stamp.label: st.binary(min_size=12, max_size=12),
}
leaves = st.sampled_from(LEAVES)


def elements_of(leaf: Leaf[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(_BY_TYPE[part.label] for part in leaf.shape if isinstance(part, ElementType)))


keyed = leaves.flatmap(lambda leaf: st.tuples(st.just(leaf), elements_of(leaf)))


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_a_key_of_every_leaf_is_that_leafs_alone(leaf: Leaf[Any]) -> None:
    """HOUSE 4, "every raw key parses to exactly one meaning"."""
    elements = sample_elements(leaf)
    data = leaf.at(*elements).data
    assert leaf.parse(data) == elements
    assert identify(data) == (leaf, elements)
    for other in LEAVES:
        if other is not leaf:
            with pytest.raises(ValueError, match="not a"):
                other.parse(data)


@settings(max_examples=150)
@given(keyed)
def test_any_elements_round_trip(case: tuple[Leaf[Any], tuple[Any, ...]]) -> None:
    """Would catch an escaping, caching or constant that is wrong for one leaf."""
    leaf, elements = case
    data = leaf.at(*elements).data
    assert leaf.parse(data) == elements
    assert identify(data) == (leaf, elements)
    assert data == leaf.pack(elements), "the cached prefix is what packing gives"
    assert data == pack_shape(leaf, elements)


def pack_shape(leaf: Leaf[Any], elements: tuple[Any, ...]) -> bytes:
    """Pack a key the plain way: constants and elements in order."""
    rest = list(elements)
    return b"".join(part.pack(rest.pop(0)) if isinstance(part, ElementType) else pack((part,)) for part in leaf.shape)


@settings(max_examples=150)
@given(keyed, keyed, st.integers(0, 8))
def test_a_span_holds_exactly_what_goes_on_from_its_elements(
    case: tuple[Leaf[Any], tuple[Any, ...]], stranger: tuple[Leaf[Any], tuple[Any, ...]], count: int
) -> None:
    """Would catch a page of one run, step or lane that shows another's keys."""
    leaf, elements = case
    count = min(count, len(elements))
    span = leaf.span(*elements[:count])
    if count < len(elements):
        assert span.begin <= leaf.at(*elements).data < span.end
    other, others = stranger
    data = other.at(*others).data
    prefix = unpack(span.begin)
    assert (span.begin <= data < span.end) == (unpack(data)[: len(prefix)] == prefix)


@settings(max_examples=100)
@given(keyed, names)
def test_a_workspace_is_one_range_and_nothing_else(case: tuple[Leaf[Any], tuple[Any, ...]], workspace: str) -> None:
    """ARCHITECTURE 4, "One workspace is one contiguous range": also beside a name that goes on with a NUL."""
    leaf, elements = case
    data = leaf.at(*elements).data
    is_shared = isinstance(leaf.shape[0], int)
    for name in (workspace, *(() if is_shared else (elements[0],))):
        span = workspace_range(name)
        assert (span.begin <= data < span.end) == (not is_shared and elements[0] == name)
    shared = shared_range()
    assert (shared.begin <= data < shared.end) == is_shared


@settings(max_examples=100)
@given(st.binary(max_size=40))
def test_any_bytes_are_identified_or_not_ours(data: bytes) -> None:
    """A walk over all keys must survive whatever it meets, and never take a foreign key for its own."""
    found = identify(data)
    if found is not None:
        leaf, elements = found
        assert leaf.at(*elements).data == data


@pytest.mark.parametrize(
    "data",
    [
        pack(("acme", 5, "not an id")),
        pack(("acme", 5, b"short")),
        pack(("acme", 5, 7)),
        pack(("acme", 3, b"0123456789abcdef", 4, "app", 7)),
        pack(("acme", 99, b"0123456789abcdef")),
        pack(("acme",)),
        pack(()),
        pack((1, 1)),
        pack((77, "x")),
        pack(("acme", 4, bytes(12))),
        b"\x02acme\x00\x16\x00\x05\x01" + b"0123456789abcdef\x00",
    ],
    ids=[
        "text for id",
        "short id",
        "int for id",
        "int for name",
        "unknown branch",
        "workspace alone",
        "empty",
        "int for name in a shared key",
        "unknown shared branch",
        "bytes for stamp",
        "an integer in more bytes than it takes",
    ],
)
def test_a_key_of_no_leaf_is_not_identified(data: bytes) -> None:
    """Would catch evidence of corruption that raises, or is taken for a good key."""
    assert identify(data) is None


def test_a_stamped_key_has_its_place_at_its_end() -> None:
    """The offset names the ten bytes that the commit fills in; the two behind them keep the order inside it."""
    data, offset = EVENT_LIST.stamped("acme", order=258)
    assert len(data) - offset == 12
    assert data[offset - 1 : offset] == b"\x33"
    filled = data[:offset] + b"0123456789" + data[offset + 10 :]
    assert EVENT_LIST.parse(filled) == ("acme", b"0123456789\x01\x02")


# -- the queue's keys

lanes = st.one_of(
    st.sampled_from([kind for kind in LaneKind if kind.is_server]).map(server_lane),
    st.builds(application_lane, names, names, st.sampled_from(Direction)),
)


@settings(max_examples=100)
@given(lanes, lanes, st.integers(0, 2**41), st.integers(0, 9), st.integers(0, 2**41), st.integers(0, 2**41))
def test_a_lanes_range_holds_its_own_entries_in_their_time(
    lane: Lane, other: Lane, vesting_ms: int, priority: int, begin_ms: int, end_ms: int
) -> None:
    """ARCHITECTURE 4, "so no lane hides another": a claim's range holds the vested entries of one lane."""
    entry = ready_key("acme", lane, vesting_ms, priority, "ab" * 16).data
    span = ready_span("acme", lane, begin_ms, end_ms)
    assert (span.begin <= entry < span.end) == (begin_ms <= vesting_ms < end_ms)
    strange = ready_key("acme", other, vesting_ms, priority, "ab" * 16).data
    if other != lane:
        assert not span.begin <= strange < span.end


@given(st.integers(0, 2**41), st.integers(0, 9), st.integers(0, 2**41), st.integers(0, 9))
def test_a_lane_is_ordered_by_vesting_time_then_priority(v1: int, p1: int, v2: int, p2: int) -> None:
    """RFD 2, "Ready indexes are ordered by vesting time and priority"."""
    lane = application_lane("shop", "fulfil")
    first, second = ready_key("acme", lane, v1, p1, "00" * 16).data, ready_key("acme", lane, v2, p2, "00" * 16).data
    assert (first < second) == ((v1, p1) < (v2, p2))


@given(lanes, st.integers(0, 2**32))
def test_a_due_pointer_names_its_lane(lane: Lane, bucket: int) -> None:
    """Would catch a pointer that leads a scan to another lane than the one that was enqueued in."""
    leaf, elements = identify(due_pointer("acme", lane, bucket).data) or (None, ())
    if lane.kind.is_server:
        assert (leaf, elements) == (DUE, (lane.kind, shard_of_workspace("acme"), bucket, "acme"))
    else:
        assert (leaf, elements) == (
            DUE_APP,
            ("acme", lane.kind, lane.application, bucket, lane.function, lane.direction),
        )


def test_shards_cover_their_range() -> None:
    """Both shard functions stay in range, are the same everywhere, and reach every shard."""
    assert {shard_of_id(f"{number:02x}" + "0" * 30) for number in range(256)} == set(range(SHARDS))
    assert {shard_of_workspace(f"workspace-{number}") for number in range(64)} == set(range(SHARDS))
    assert [shard_of_workspace(name) for name in ("acme", "beta", "a")] == [6, 4, 1]
    assert [bucket_of(instant) for instant in (0, 999, 1_000, 1_001)] == [0, 0, 1, 1]


def test_no_two_leaves_have_one_shape() -> None:
    """Two leaves with one shape would be one key with two meanings; the labels are not in the key."""
    kinds = {Name.label: str, Text.label: str, Int.label: int, Id.label: bytes, Stamp.label: "stamp"}
    shapes = [tuple(part if isinstance(part, int) else kinds[part.label] for part in leaf.shape) for leaf in LEAVES]
    assert len(set(shapes)) == len(LEAVES)
    assert len({leaf.name for leaf in LEAVES}) == len(LEAVES)
