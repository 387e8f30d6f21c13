"""A run's history as the demo tells it: every kind of entry has its sentence."""

from __future__ import annotations

from typing import Any

from keyspace.history import HistoryKind
from topology.story import sentence

DATA: dict[str, Any] = {
    "step": "s", "attempt": 1, "attempts": 2, "category": "application", "losses": 1, "command": "retry", "upper": 3,
    "reason": "cancelled", "from": 2, "to": 1, "by": "somebody", "steps": 2, "recovery": "compensated",
}  # fmt: skip


def test_every_kind_of_entry_has_its_sentence() -> None:
    """RFD 2, "History is sufficient to explain why": a kind without words would be shown as it is stored."""
    for kind in HistoryKind:
        assert not sentence(kind.value, DATA).startswith(kind.value)
    assert sentence("of-a-later-release", {"a": 1}) == "of-a-later-release {'a': 1}"


def test_what_the_service_does_itself_is_told_apart() -> None:
    """A child has no event, and a wait that was in vain has no attempts."""
    assert "event was accepted" in sentence("run-created", {})
    invoked = sentence("run-created", {"parent": "r1", "parent_step": "call"})
    assert "step call of run r1 invoked" in invoked and "event" not in invoked
    assert " after 2 attempts (application)" in sentence("step-failed", DATA)
    in_vain = sentence("step-failed", DATA | {"attempts": 0, "category": "sdk.timeout"})
    assert in_vain == "Step s has failed for good (sdk.timeout); the function is told."
