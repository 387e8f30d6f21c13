"""Fan-out as a pump of its lane: each item is an event's obligation, handled by one bounded chunk a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry

from keyspace.keyspace import Keyspace
from keyspace.records.work import ItemRecord, LaneKind, WorkKind
from keyspace.transitions.expand_event import Expanded, expand_event
from keyspace.tx import Tx
from services.fanout.metrics import PREFIX, FanOutMetrics
from services.lanes.handlers import Handler
from services.lanes.metrics import LaneMetrics
from services.lanes.options import LaneOptions
from services.lanes.pump import LanePump

__all__ = ["fan_out_pump"]


def fan_out_pump(
    keyspace: Keyspace,
    options: LaneOptions,
    registry: CollectorRegistry,
    *,
    process_id: str,
    peers: Callable[[], Sequence[str]],
    run_timeout_default_ms: int | None = None,
) -> LanePump:
    """Return the pump that expands events of every workspace.

    Args:
        keyspace: where.
        options: how.
        registry: what is counted is registered on it.
        process_id: this process, for affinity.
        peers: returns the live fan-out processes' ids.
        run_timeout_default_ms: how long a run may take whose function does not say; None is for ever.
    """
    metrics = FanOutMetrics(registry)

    async def expand(tx: Tx, workspace: str, item: ItemRecord) -> Expanded:
        return await expand_event(
            tx, workspace, item.target, item.item_id, run_timeout_default_ms=run_timeout_default_ms
        )

    def tell(done: Expanded) -> None:
        metrics.candidates.inc(done.evaluated_count)
        metrics.inspected.inc(done.inspected_count)
        metrics.settled.inc(done.settled_count)
        metrics.completed.inc(done.is_complete)

    handler = Handler("expand_event", expand, goes_on=lambda done: not done.is_complete, tell=tell)
    return LanePump(
        keyspace,
        [LaneKind.FANOUT],
        {WorkKind.FANOUT: handler},
        options,
        LaneMetrics(registry, PREFIX),
        process_id=process_id,
        peers=peers,
    )
