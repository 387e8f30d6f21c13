"""One key of every leaf, from elements given by type: shared by the golden files and the layout's tests."""

from __future__ import annotations

from typing import Any

from keyspace.leaf import ElementType, Id, Int, Leaf, Name, Stamp, Text

__all__ = ["sample_elements"]

_SAMPLES: dict[str, Any] = {
    Name.label: "order.placed",
    Text.label: "running",
    Int.label: 1_700_000_000_000,
    Id.label: "00ff" + "0123456789abcdef" * 1 + "000000000000",
    Stamp.label: bytes(range(12)),
}


def sample_elements(leaf: Leaf[Any]) -> tuple[Any, ...]:
    """Return elements of the right types for `leaf`."""
    return tuple(_SAMPLES[part.label] for part in leaf.shape if isinstance(part, ElementType))
