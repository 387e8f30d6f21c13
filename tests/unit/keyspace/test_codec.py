"""Records as bytes: the golden files, versions old and new, and what is refused instead of guessed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from golden import FOLDER, key_lines, record_lines, samples, word_lines
from hypothesis import given
from hypothesis import strategies as st

from keyspace.errors import CorruptRecord, UnknownVersion
from keyspace.layout import LEAVES
from keyspace.records.codec import CODECS, Empty, IntCodec, RawCodec, Record, RecordCodec, StampCodec, TextCodec
from keyspace.records.run import RetryRecord

every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.label)


def lines_of(name: str) -> list[str]:
    path = FOLDER / name
    assert path.exists(), f"{path.name} is missing: write it with python tests/unit/keyspace/golden.py"
    return path.read_text().splitlines()


@every_codec
def test_records_are_stored_as_the_golden_bytes(codec: RecordCodec[Any]) -> None:
    """HOUSE 4, "Golden bytes for each key and value version": a change of format must be a visible diff."""
    assert record_lines(codec) == lines_of(f"{codec.label}.v{codec.version}.txt")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.v*.txt")), ids=lambda path: path.stem)
def test_every_version_ever_shipped_is_read(path: Any) -> None:
    """HOUSE 4, "Readers accept every version ever written": each golden file, the old ones too, decodes."""
    codec = CODECS[path.stem.split(".")[0]]
    for line in path.read_text().splitlines():
        data = line.encode().decode("unicode_escape").encode("latin-1")
        record = codec.decode(data)
        if data[0] == codec.version:
            assert codec.encode(record) == data


@every_codec
def test_samples_round_trip(codec: RecordCodec[Any]) -> None:
    """Would catch a field that is stored and not read, or the other way round."""
    for record in samples(codec):
        assert codec.decode(codec.encode(record)) == record


def test_keys_are_the_golden_bytes() -> None:
    """A change of any key's shape must be a visible diff."""
    assert key_lines() == lines_of("keys.txt")


def test_stored_words_are_the_golden_words() -> None:
    """Would catch a renamed state or lane number: records and keys already written would mean something else."""
    assert word_lines() == lines_of("words.txt")


def test_every_leaf_with_records_uses_a_declared_codec() -> None:
    """Would catch a record type that has no golden file because its codec is not registered."""
    for leaf in LEAVES:
        if isinstance(leaf.codec, RecordCodec):
            assert CODECS[leaf.codec.label] is leaf.codec
        else:
            assert isinstance(leaf.codec, Empty | IntCodec | RawCodec | StampCodec | TextCodec)


@every_codec
def test_a_newer_version_is_refused(codec: RecordCodec[Any]) -> None:
    """ARCHITECTURE 4, "unknown newer versions are refused, not guessed"."""
    data = codec.encode(samples(codec)[0])
    with pytest.raises(UnknownVersion) as refused:
        codec.decode(bytes((codec.version + 1,)) + data[1:])
    assert refused.value.details == {"record": codec.label, "version": codec.version + 1, "newest": codec.version}


@every_codec
def test_a_field_that_a_newer_release_appended_is_not_dropped(codec: RecordCodec[Any]) -> None:
    """Would catch an older process that reads a record without its last field, and writes it back without it."""
    data = codec.encode(samples(codec)[1])
    with pytest.raises(UnknownVersion):
        codec.decode(data[:-1] + b',"appended"]')


@every_codec
@pytest.mark.parametrize("damage", ["empty", "version 0", "no JSON", "cut", "a number", "an object"])
def test_damage_is_reported_as_damage(codec: RecordCodec[Any], damage: str) -> None:
    """Would catch a damaged value that is read as something, or raises what nobody expects."""
    data = codec.encode(samples(codec)[1])
    broken = {
        "empty": b"",
        "version 0": b"\x00" + data[1:],
        "no JSON": data[:1] + b"\xff\xfe",
        "cut": data[:-2],
        "a number": data[:1] + b"7",
        "an object": data[:1] + b"{}",
    }[damage]
    with pytest.raises(CorruptRecord) as found:
        codec.decode(broken)
    assert found.value.details["record"] in (codec.label, None)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_reported(data: bytes) -> None:
    """A walk over all values must survive whatever it meets."""
    for codec in CODECS.values():
        try:
            codec.decode(data)
        except (CorruptRecord, UnknownVersion):
            continue


class Third(Record, frozen=True, kw_only=True, array_like=True):
    """A record as its third version has it."""

    name: str
    size_bytes: int
    labels: dict[str, str] = msgspec.field(default_factory=dict)


def _second(fields: list[Any]) -> list[Any]:
    """The first version stored kilobytes."""
    return [fields[0], fields[1] * 1_000]


def _third(fields: list[Any]) -> list[Any]:
    """The second version had no labels."""
    return [*fields, {"from": "v2"}]


@pytest.fixture
def third() -> Any:
    codec = RecordCodec(Third, 3, {1: _second, 2: _third})
    yield codec
    del CODECS["Third"]


def test_an_old_record_is_brought_up_one_version_at_a_time(third: RecordCodec[Third]) -> None:
    """HOUSE 4, upcasters: version 1 passes through both, version 2 through one, version 3 through none."""
    assert third.decode(b'\x01["a",2]') == Third(name="a", size_bytes=2_000, labels={"from": "v2"})
    assert third.decode(b'\x02["a",2]') == Third(name="a", size_bytes=2, labels={"from": "v2"})
    assert third.decode(b'\x03["a",2,{}]') == Third(name="a", size_bytes=2)
    assert third.encode(Third(name="a", size_bytes=2)) == b'\x03["a",2,{}]', "writers write the newest"


@pytest.mark.parametrize(
    "data", [b"\x00[]", b'\x01["a","b"]', b"\x01[]", b"\x01{}", b"\x02[1,2]", b"\x01", b'\x02["a"]']
)
def test_an_old_record_that_is_damaged_is_reported(third: RecordCodec[Third], data: bytes) -> None:
    """Would catch an upcaster that meets what it does not expect and lets its own error out."""
    with pytest.raises(CorruptRecord):
        third.decode(data)


def test_a_gap_in_the_chain_is_reported() -> None:
    """Would catch a version whose upcaster was forgotten and that is read as the next one."""
    codec = RecordCodec(Third, 3, {2: _third})
    try:
        with pytest.raises(CorruptRecord):
            codec.decode(b'\x01["a",2]')
    finally:
        del CODECS["Third"]


def test_records_cannot_be_changed() -> None:
    """A decider that changed its input would decide differently when asked twice."""
    record = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
    with pytest.raises(AttributeError):
        record.attempts = 2  # type: ignore[misc]
    assert msgspec.structs.replace(record, attempts=2).attempts == 2


def test_small_codecs_report_what_they_cannot_be() -> None:
    """Stamps are twelve bytes, presence has no value, a text is UTF-8, an integer eight bytes."""
    assert IntCodec().decode(IntCodec().encode(-5)) == -5
    assert TextCodec().decode("é".encode()) == "é"
    Empty().decode(b"")
    for codec, data in ((StampCodec(), b"x" * 10), (Empty(), b"x"), (TextCodec(), b"\xff"), (IntCodec(), b"\x01")):
        with pytest.raises(CorruptRecord):
            codec.decode(data)
