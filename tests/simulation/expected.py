"""What five hundred scenarios must meet: every edge of every state machine, every kind of history entry, these answers."""

from __future__ import annotations

from keyspace.history import HistoryKind
from keyspace.lifecycle import MACHINES, ItemEvent, ItemState, Phase, RunEvent, StepEvent, StepState
from simulation.coverage import edge

__all__ = ["OUT_OF_REACH", "RARE", "everything"]


def everything() -> set[str]:
    """Return all that scenarios are to meet: every edge of every machine, every kind of entry, every answer that is listed."""
    edges = {
        edge(name, state, event)
        for name, table in MACHINES.items()
        for state, edges in table.items()
        for event in edges
    }
    return edges | {f"history: {kind.value}" for kind in HistoryKind} | ANSWERS


ANSWERS = frozenset(
    (
        "authorized: Accepted ",
        "authorized: Stale lease_lost",
        "authorized: Stale session_superseded",
        "authorized: nobody knows",
        "cancel: accepted",
        "cancel: already_ending",
        "cancel: already_terminal",
        "cancel: repeated",
        "child: at depth 1",
        "child: compensating",
        "child: completed",
        "child: failed, child.cancelled",
        "child: failed, child.failed",
        "child: failed, child.timed_out",
        "child: failed, sdk.timeout",
        "child: obsolete",
        "deadline: deployment",
        "deadline: function",
        "deadline: invoke",
        "deadline: parent",
        "emission: completed",
        "invoke: accepted",
        "invoke: again",
        "invoke: idempotency_conflict",
        "invoke: its run",
        "invoke: no application",
        "invoke: no function",
        "leased: compensation in a reserved place",
        "rediscover: accepted",
        "rediscover: already_requested",
        "refused: deadline_elapsed",
        "refused: idempotency_conflict",
        "refused: retry_forbidden",
        "refused: run_not_blocked",
        "refused: session_superseded",
        "refused: stale_attempt",
        "refused: stop_conflict",
        "resolve: declare_failure",
        "resolve: declare_failure again",
        "resolve: retry",
        "resolve: retry again",
        "resolve: supply_success",
        "resolve: supply_success again",
        "served: child_settle settled",
        "served: fanout done",
        "served: release_wake done",
        "served: run_timeout stopped",
        "served: stop_propagate stopped",
        "served: timer fired",
        "served: timer stopped",
        "settled: accepted ",
        "settled: proceeds",
        "settled: replayed ",
        "settled: stale attempt_not_authorized",
        "settled: stale attempt_not_found",
        "settled: stale attempt_settled",
        "settled: stale deadline_elapsed",
        "settled: stale lease_lost",
        "settled: stale run_not_found",
        "settled: stale run_stopping",
        "timer: completed",
        "timer: obsolete",
        "wait: completed",
        "wait: failed, sdk.timeout",
        "wait: obsolete",
    )
)
"""Answers to workers and operators, and what came of steps that the server settles."""

NOT_SCRIPTED = "no scenario has it in its scripts yet"

OUT_OF_REACH: dict[str, str] = {
    edge("step", StepState.OBSOLETE, StepEvent.OWNED): NOT_SCRIPTED,
    edge("run", Phase.DEFINITION_BLOCKED, RunEvent.STOPPED_SETTLING): NOT_SCRIPTED,
}
"""What no scenario meets, and why. A scenario that meets one of these fails the test, so that the list stays true."""

RARE = frozenset(
    (
        edge("work item", ItemState.READY, ItemEvent.DEFERRED),
        "child: obsolete",
        "served: stop_propagate stopped",
    )
)
"""What the soak meets, and five hundred scenarios need not."""
