"""What a keyspace amounts to, without ids that are drawn and without instants: for comparing two ways to one end."""

from __future__ import annotations

from typing import Any

from keyspace.history import HistoryKind
from keyspace.layout import (
    ATTEMPT,
    CLAIM,
    COMPLETION,
    EVENT,
    EXPANSION,
    HISTORY,
    MATCH,
    OUTPUT,
    ROUTING,
    RUN,
    STALE,
    STEP,
    STEP_VALUE,
    UNRESOLVED,
    identify,
)

__all__ = ["DELIVERY_KINDS", "final_state"]

DELIVERY_KINDS = {
    HistoryKind.PASS_AUTHORIZED,
    HistoryKind.PASS_LOST,
    HistoryKind.ATTEMPT_AUTHORIZED,
    HistoryKind.ATTEMPT_UNKNOWN,
    HistoryKind.ATTEMPT_NOT_STARTED,
    HistoryKind.ATTEMPT_REDELIVERED,
}
"""Entries that tell of deliveries: a crash adds some; all others must be the same whatever crashed."""

_INSTANTS = (
    "since_ms",
    "at_ms",
    "created_at_ms",
    "updated_at_ms",
    "terminal_at_ms",
    "accepted_at_ms",
    "eligible_at_ms",
    "due_at_ms",
)
_DRAWN = ("instance", "release", "item_id", "settled_item", "history_count", "delivery", "token")


def final_state(stored: dict[bytes, bytes]) -> dict[str, list[Any]]:
    """Return what every run, step, attempt, event and claim has come to, by the kind of record."""
    state: dict[str, list[Any]] = {}
    for key, value in sorted(stored.items()):
        found = identify(key)
        assert found is not None, key
        leaf, at = found
        told = _TELL.get(leaf.name)
        if told is not None:
            entry = told(leaf.codec.decode(value))
            if entry is not None:
                state.setdefault(leaf.name, []).append((_place(leaf.name, at), entry))
    return state


def _place(name: str, at: tuple[Any, ...]) -> tuple[Any, ...]:
    # A history's ordinals count the deliveries too.
    return at[:-1] if name == HISTORY.name else at


def _history(entry: Any) -> Any:
    if entry.kind in DELIVERY_KINDS:
        return None
    return entry.kind, {name: what for name, what in entry.data.items() if name not in _INSTANTS + _DRAWN}


_TELL: dict[str, Any] = {
    RUN.name: lambda run: (
        run.function,
        run.phase,
        run.execution,
        run.recovery,
        run.step_count,
        run.completion_count,
        run.unknown_count,
        run.generation,
        run.replay_bytes,
        run.failure,
        run.unwind,
    ),
    STEP.name: lambda step: (
        step.state,
        step.generation,
        step.ordinal,
        step.failure_count,
        step.completion,
        step.failure,
        step.compensation,
        step.operation_id,
    ),
    STEP_VALUE.name: bytes,
    ATTEMPT.name: lambda attempt: (attempt.state, attempt.ordinal, attempt.operation_id, attempt.failure),
    COMPLETION.name: str,
    OUTPUT.name: bytes,
    HISTORY.name: _history,
    EVENT.name: lambda event: (
        event.name,
        event.routing_generation,
        event.fingerprint,
        event.correlation,
        (event.target_application, event.target_function),
    ),
    EXPANSION.name: lambda expansion: (
        expansion.state,
        expansion.evaluated_count,
        expansion.matched_count,
        expansion.missing,
    ),
    MATCH.name: lambda match: (match.run_id, match.function),
    CLAIM.name: lambda claim: claim.event_id,
    ROUTING.name: lambda routing: routing.applications,
    STALE.name: lambda stale: stale.outcome,
    UNRESOLVED.name: lambda _: True,
}
