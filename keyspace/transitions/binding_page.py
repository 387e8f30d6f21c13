"""The binding page of an expansion: the next candidate bindings of the pinned routing generation, and the runs they match.

Manifests and routing generations are immutable, so they are read by snapshot. The page spends at most half of the allowance
(RFD 2, "The binding page spends at most half"), and less when the wait page's first settlement had to borrow.
"""

from __future__ import annotations

from keyspace.errors import CorruptRecord
from keyspace.layout import MANIFEST_BINDING, MATCH, ROUTING, RUN
from keyspace.lifecycle import DeadlineSource
from keyspace.limits import BINDING_PAGE_ITEMS
from keyspace.records.event import EventRecord, ExpansionRecord, MatchRecord
from keyspace.records.tenancy import BindingRecord
from keyspace.store.api import KeyRange
from keyspace.transitions.materialize_run import RunSource, materialize_run, reserve_bytes, run_identity
from keyspace.tx import Tx

__all__ = ["admit", "create_runs", "next_candidates", "reserved_bytes"]


async def next_candidates(
    tx: Tx, workspace: str, event: EventRecord, expansion: ExpansionRecord, run_timeout_default_ms: int | None
) -> tuple[list[RunSource], bool]:
    """Return the next page of candidates after the cursor, and whether it is the last."""
    if event.routing_generation == 0:
        return [], True
    routing = await tx.load(ROUTING.at(workspace, event.routing_generation), snapshot=True)
    if routing is None:
        raise CorruptRecord(record="RoutingRecord", reason="a pinned routing generation is missing")
    page: list[RunSource] = []
    for application, generation in sorted(routing.applications.items()):
        if application < expansion.cursor_application:
            continue
        after = expansion.cursor_binding if application == expansion.cursor_application else ""
        found = await _bindings(
            tx, workspace, event, application, generation, after, BINDING_PAGE_ITEMS + 1 - len(page)
        )
        for binding, record in found:
            is_declared = record.timeout_ms is not None
            page.append(
                RunSource(
                    event_id=event.event_id,
                    event_name=event.name,
                    payload_bytes=event.payload_bytes,
                    application=application,
                    function=record.function,
                    binding=binding,
                    manifest_generation=generation,
                    routing_generation=event.routing_generation,
                    timeout_ms=record.timeout_ms if is_declared else run_timeout_default_ms,
                    deadline_source=DeadlineSource.FUNCTION if is_declared else DeadlineSource.DEPLOYMENT,
                )
            )
        if len(page) > BINDING_PAGE_ITEMS:
            return page[:BINDING_PAGE_ITEMS], False
    return page, True


async def _bindings(
    tx: Tx, workspace: str, event: EventRecord, application: str, generation: int, after: str, limit: int
) -> list[tuple[str, BindingRecord]]:
    span = MANIFEST_BINDING.span(workspace, application, generation, event.name)
    if after:
        last = MANIFEST_BINDING.at(workspace, application, generation, event.name, after)
        span = KeyRange(last.data + b"\x00", span.end)
    rows = await tx.page(span, limit=limit, snapshot=True)
    return [(MANIFEST_BINDING.parse(key)[-1], MANIFEST_BINDING.codec.decode(value)) for key, value in rows]


def admit(workspace: str, page: list[RunSource], prefix_bytes: int, within_bytes: int, *, at_least: int) -> int:
    """Return how many candidates of `page`, from its start, fit `within_bytes`; `at_least` that many whatever they weigh."""
    admitted, needed_bytes = 0, 0
    for source in page:
        needed_bytes += reserve_bytes(workspace, source, prefix_bytes)
        if admitted >= at_least and needed_bytes > within_bytes:
            break
        admitted += 1
    return admitted


def reserved_bytes(workspace: str, page: list[RunSource], prefix_bytes: int) -> int:
    """Return what the candidates of `page` are charged at most."""
    return sum(reserve_bytes(workspace, source, prefix_bytes) for source in page)


async def create_runs(tx: Tx, workspace: str, admitted: list[RunSource]) -> None:
    """Write each candidate's match record and its run, unless an attempt whose commit was unknown has."""
    identities = [run_identity(workspace, source) for source in admitted]
    existing = await tx.load_all(RUN.at(workspace, run_id) for run_id in identities)
    for order, (source, run_id, run) in enumerate(zip(admitted, identities, existing, strict=True)):
        if run is None:
            materialize_run(tx, workspace, run_id, source, order=order)
        elif (run.event_id, run.binding) != (source.event_id, source.binding):
            raise CorruptRecord(record="RunRecord", reason="a run's identity has another provenance", run=run_id)
        tx.put(
            MATCH.at(workspace, source.event_id, source.application, source.binding),
            MatchRecord(run_id=run_id, function=source.function, evaluated_at_ms=tx.now_ms),
        )
