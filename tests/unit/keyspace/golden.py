"""The stored format, sample by sample, and how its golden files are written.

Run this file to write the golden files anew after a deliberate change of format:

    python tests/unit/keyspace/golden.py

The files of older versions stay for ever: readers accept every version ever shipped.
"""

from __future__ import annotations

import types
import typing
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import msgspec
from sample_keys import sample_elements

from keyspace.history import HistoryKind
from keyspace.layout import LEAVES
from keyspace.lifecycle import (
    MACHINES,
    AttemptState,
    CompensationState,
    DeadlineSource,
    Execution,
    ItemState,
    Phase,
    Recovery,
    StepKind,
    StepState,
)
from keyspace.records.codec import CODECS, Record, RecordCodec
from keyspace.records.event import ExpansionState, NoMatch, Operation
from keyspace.records.tenancy import Role
from keyspace.records.work import Direction, LaneKind, WorkKind

__all__ = ["FOLDER", "key_lines", "record_lines", "samples", "word_lines"]

FOLDER = Path(__file__).parent.parent / "golden"
STORED_WORDS: tuple[type[Enum], ...] = (
    AttemptState,
    CompensationState,
    DeadlineSource,
    Direction,
    Execution,
    ExpansionState,
    HistoryKind,
    ItemState,
    LaneKind,
    NoMatch,
    Operation,
    Phase,
    Recovery,
    Role,
    StepKind,
    StepState,
    WorkKind,
)
_MIXED_TEXT = ': "quoted" \\ \u00e9\U0001f600\t'
"""Stands behind each field's name, so that two fields that change places are seen to."""


def samples(codec: RecordCodec[Any]) -> list[Any]:
    """Return two records of a codec's type: one with only what must be given, one with everything given."""
    fields = msgspec.structs.fields(codec.record_type)
    least = {field.name: _sample(field.type, field.name, 0) for field in fields if field.required}
    full = {field.name: _sample(field.type, field.name, 1) for field in fields}
    return [codec.record_type(**least), codec.record_type(**full)]


def _sample(kind: Any, name: str, depth: int) -> Any:
    """Return a value of a type: the first member of an enumeration, or its last where everything is given."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        inner = [part for part in typing.get_args(kind) if part is not type(None)]
        return _sample(inner[0], name, depth) if depth else None
    if typing.get_origin(kind) is dict:
        return {name: _sample(typing.get_args(kind)[1], "value", depth), "b": _sample(typing.get_args(kind)[1], "b", 0)}
    if typing.get_origin(kind) is list:
        return [_sample(typing.get_args(kind)[0], name, depth)]
    if typing.get_origin(kind) is tuple:
        return tuple(_sample(part, name, depth) for part in typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Record):
        return samples(CODECS[kind.__name__])[depth] if kind.__name__ in CODECS else _plain_record(kind, depth)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[-1 if depth else 0]
    plain = {str: name + _MIXED_TEXT if depth else name, int: sum(name.encode()) if depth else 0, bool: bool(depth)}
    return {**plain, float: 2.5, Any: [1, None, "x"]}[kind]


def _plain_record(kind: type[Record], depth: int) -> Record:
    """Return a record that is only ever stored inside another one."""
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: _sample(field.type, field.name, depth) for field in fields})


def record_lines(codec: RecordCodec[Any]) -> list[str]:
    """Return the stored bytes of a codec's samples as text, the version byte escaped."""
    return [codec.encode(record).decode("latin-1").encode("unicode_escape").decode() for record in samples(codec)]


def key_lines() -> list[str]:
    """Return one key of every leaf, in hexadecimal."""
    return [f"{leaf.name} {leaf.at(*sample_elements(leaf)).data.hex()}" for leaf in LEAVES]


def word_lines() -> list[str]:
    """Return every word and number that is stored for a member of an enumeration."""
    return [
        f"{kind.__name__} {member.name} {int(member.value) if isinstance(member, IntEnum) else member.value}"
        for kind in STORED_WORDS
        for member in kind
    ]


def write_all() -> None:
    """Write every golden file of the newest versions."""
    FOLDER.mkdir(exist_ok=True)
    for name, codec in CODECS.items():
        (FOLDER / f"{name}.v{codec.version}.txt").write_text("\n".join(record_lines(codec)) + "\n")
    (FOLDER / "keys.txt").write_text("\n".join(key_lines()) + "\n")
    (FOLDER / "words.txt").write_text("\n".join(word_lines()) + "\n")


if __name__ == "__main__":
    assert MACHINES
    write_all()
