"""Find what an addressed event is addressed to, in the routing generation that it is pinned to."""

from __future__ import annotations

from keyspace.errors import CorruptRecord
from keyspace.layout import MANIFEST_FUNCTION, ROUTING
from keyspace.lifecycle import DeadlineSource
from keyspace.records.event import EventRecord, NoMatch
from keyspace.transitions.materialize_run import RunSource
from keyspace.transitions.names import INVOKE_BINDING
from keyspace.tx import Tx

__all__ = ["find_target"]


async def find_target(
    tx: Tx, workspace: str, event: EventRecord, run_timeout_default_ms: int | None
) -> RunSource | NoMatch:
    """Return the run's source, or what the pinned generation lacks (RFD 2, "Fan-out of an addressed event evaluates only").

    No trigger binding is read. Manifests and routing generations never change, so what is found now is found always: a later
    activation neither helps nor retargets an invocation. The deadline is the declaration's (RFD 2, "The created run is an ordinary
    run"), or the deployment's `run_timeout_default_ms` when it declares none.

    Reads: the routing generation and the function's declaration by snapshot.  Writes: nothing.

    Raises:
        CorruptRecord: the pinned generation is gone.
    """
    if event.routing_generation == 0:
        return NoMatch.APPLICATION
    routing = await tx.load(ROUTING.at(workspace, event.routing_generation), snapshot=True)
    if routing is None:
        raise CorruptRecord(record="RoutingRecord", reason="a pinned routing generation is missing")
    application, function = event.target_application, event.target_function
    generation = routing.applications.get(application)
    if generation is None:
        return NoMatch.APPLICATION
    declared = await tx.load(MANIFEST_FUNCTION.at(workspace, application, generation, function), snapshot=True)
    if declared is None:
        return NoMatch.FUNCTION
    return RunSource(
        event_id=event.event_id,
        event_name=event.name,
        payload_bytes=event.payload_bytes,
        application=application,
        function=function,
        binding=INVOKE_BINDING,
        manifest_generation=generation,
        routing_generation=event.routing_generation,
        timeout_ms=run_timeout_default_ms if declared.timeout_ms is None else declared.timeout_ms,
        deadline_source=DeadlineSource.DEPLOYMENT if declared.timeout_ms is None else DeadlineSource.FUNCTION,
    )
