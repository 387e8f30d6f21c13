"""The keyspace's page: its generated sections are what the code says now."""

from __future__ import annotations

import pytest

from keyspace.describe import README, rendered
from keyspace.docs_tables import facts_of, key_table, state_pictures, transition_table
from keyspace.layout import LEAVES
from keyspace.lifecycle import MACHINES


def test_the_page_is_not_stale() -> None:
    """HOUSE 15, "a test fails when they are stale": run python -m keyspace.describe."""
    page = README.read_text(encoding="utf-8")
    assert rendered(page) == page


def test_every_leaf_state_and_edge_is_shown() -> None:
    """Would catch a renderer that leaves something out."""
    assert all(f"| {leaf.name} |" in key_table() for leaf in LEAVES)
    pictures = state_pictures()
    for machine in MACHINES.values():
        for state, edges in machine.items():
            for event, target in edges.items():
                (line,) = [
                    line
                    for line in pictures.splitlines()
                    if line.strip().startswith(f"{state.value} --> {target.value}:") and event.value in line
                ][:1]
                assert line
            assert edges or f"    {state.value} --> [*]" in pictures


def test_every_fact_of_a_docstring_is_read() -> None:
    """Would catch a table whose cells hold another fact's text."""
    text = """Do it.

    Args:
        tx: the open transaction.

    Reads: a, b.  Writes: c;
        d.
    Conflicts: none.  Budget: under 1 kB.
    Idempotent: by name.

    Raises:
        Refusal: `no`.
    """
    assert facts_of(text) == {
        "Reads": "a, b",
        "Writes": "c;\n        d",
        "Conflicts": "none",
        "Budget": "under 1 kB",
        "Idempotent": "by name",
    }
    assert facts_of("Do it.") == {}
    assert "| `accept_event` | Accept a checked submission" in transition_table()


def test_a_page_without_its_markers_is_refused() -> None:
    """Would catch a section that silently is not written any more."""
    page = README.read_text(encoding="utf-8").replace("<!-- end of keys -->", "")
    with pytest.raises(ValueError, match="markers"):
        rendered(page)
