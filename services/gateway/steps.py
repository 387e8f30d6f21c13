"""A run's steps with their attempts.

Steps and attempts are stored in the same order, by step id, so a page of steps finds all their attempts in one range for
each direction; a page ends early, at a whole step, when its attempts are many.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.layout import ATTEMPT, STALE, STEP, STEP_VALUE
from keyspace.lifecycle import StepKind, StepState
from keyspace.limits import STALE_RESULTS_MAX
from keyspace.records.run import AttemptRecord, StepRecord
from keyspace.records.work import Direction
from keyspace.store.api import KeyRange
from keyspace.tx import Tx
from services.gateway.cursors import ListQuery
from services.gateway.endpoints import Answer, Call, missing
from services.gateway.pages import PageRequest, read_rows
from services.gateway.runs import failure_view, load_run
from services.gateway.step_types import Attempt, AwaitedEvent, Retry, StaleResult, Step, StepDetail
from services.gateway.types import Page
from services.gateway.waits import load_awaited

__all__ = ["get_step", "list_steps"]

ATTEMPTS_PAGE_MAX = 2_000
"""Attempts of one direction that a page carries; above the most that one step can have, so a page always moves on."""
STALE_PAGE_MAX = 64 * STALE_RESULTS_MAX


class _Attempts(NamedTuple):
    """Attempts by step id, and the last step id whose attempts are all there; None when all are."""

    by_step: dict[str, list[Attempt]]
    complete_up_to: str | None


async def list_steps(call: Call) -> Answer:
    """List a run's steps with all their attempts, by step id."""
    run_id = call.parts["run"]
    request = PageRequest.of(ListQuery("steps", call.workspace, run_id), call.query)

    async def page(tx: Tx) -> Page[Step]:
        run = await load_run(tx, call.workspace, run_id)
        found = await read_rows(tx, STEP.span(call.workspace, run.run_id), request, reverse=False)
        steps = [STEP.codec.decode(value) for _, value in found.rows]
        if not steps:
            return Page(items=[], next_cursor=None)
        by_step: dict[str, list[Attempt]] = {}
        shown = len(steps)
        for direction in Direction:
            attempts = await _attempts(
                tx, call.workspace, run_id, direction, steps[0].step_id, steps[shown - 1].step_id
            )
            if attempts.complete_up_to is not None:
                whole = [index for index, step in enumerate(steps[:shown]) if step.step_id == attempts.complete_up_to]
                shown = whole[0] + 1
            for step_id, made in attempts.by_step.items():
                by_step.setdefault(step_id, []).extend(made)
        next_cursor = found.next_cursor if shown == len(steps) else request.query.seal(found.rows[shown - 1][0])
        awaited = await load_awaited(tx, call.workspace, run_id, _registered(steps[:shown]))
        items = [_step(step, by_step.get(step.step_id, []), awaited.get(step.step_id)) for step in steps[:shown]]
        return Page(items=items, next_cursor=next_cursor)

    return Answer(await call.transact("list_steps", page))


async def get_step(call: Call) -> Answer:
    """Answer one step with its value and the results that lost."""
    run_id, step_id = call.parts["run"], call.parts["step"]

    async def read(tx: Tx) -> StepDetail:
        await load_run(tx, call.workspace, run_id)
        step = await tx.load(STEP.at(call.workspace, run_id, step_id), snapshot=True)
        if step is None:
            raise missing("step", run=run_id, step=step_id[:80])
        attempts: list[Attempt] = []
        stale: list[StaleResult] = []
        for direction in Direction:
            found = await _attempts(tx, call.workspace, run_id, direction, step_id, step_id)
            attempts += found.by_step.get(step_id, [])
            stale += await _stale(tx, call.workspace, run_id, direction, step_id)
        value = None
        if step.value_bytes is not None:
            value = await tx.load_blob(
                STEP_VALUE, call.workspace, run_id, step_id, size_bytes=step.value_bytes, snapshot=True
            )
        awaited = await load_awaited(tx, call.workspace, run_id, _registered([step]))
        shown = _step(step, attempts, awaited.get(step_id))
        return StepDetail(
            **{name: getattr(shown, name) for name in shown.__struct_fields__},
            stale_results=stale,
            value=None if value is None else msgspec.Raw(value),
        )

    return Answer(await call.transact("get_step", read))


async def _attempts(tx: Tx, workspace: str, run_id: str, direction: Direction, first: str, last: str) -> _Attempts:
    begin = ATTEMPT.span(workspace, run_id, direction, first).begin
    end = ATTEMPT.span(workspace, run_id, direction, last).end
    rows = await tx.page(KeyRange(begin, end), limit=ATTEMPTS_PAGE_MAX + 1, snapshot=True)
    by_step: dict[str, list[Attempt]] = {}
    for key, value in rows:
        step_id = ATTEMPT.parse(key)[3]
        by_step.setdefault(step_id, []).append(_attempt(direction, ATTEMPT.codec.decode(value)))
    if len(rows) <= ATTEMPTS_PAGE_MAX or len(by_step) == 1:
        return _Attempts(by_step, None)
    by_step.popitem()
    return _Attempts(by_step, next(reversed(by_step)))


async def _stale(tx: Tx, workspace: str, run_id: str, direction: Direction, step_id: str) -> list[StaleResult]:
    span = STALE.span(workspace, run_id, direction, step_id)
    found = []
    for key, value in await tx.page(span, limit=STALE_PAGE_MAX, snapshot=True):
        record = STALE.codec.decode(value)
        found.append(
            StaleResult(
                direction=direction.name.lower(),
                generation=STALE.parse(key)[4],
                received_at_ms=record.received_at_ms,
                outcome=record.outcome,
                value_bytes=record.value_bytes,
                failure=failure_view(record.failure),
            )
        )
    return found


def _attempt(direction: Direction, record: AttemptRecord) -> Attempt:
    return Attempt(
        direction=direction.name.lower(),
        generation=record.generation,
        ordinal=record.ordinal,
        operation=record.operation_id,
        state=record.state.value,
        queued_at_ms=record.queued_at_ms,
        vesting_ms=record.vesting_ms,
        authorized_at_ms=record.authorized_at_ms,
        lost_at_ms=record.lost_at_ms,
        settled_at_ms=record.settled_at_ms,
        session=record.session,
        instance=record.instance,
        release=record.release,
        failure=failure_view(record.failure),
        stale_count=record.stale_count,
        loss_count=record.loss_count,
    )


def _registered(steps: list[StepRecord]) -> list[str]:
    return [step.step_id for step in steps if step.kind is StepKind.WAIT and step.state is StepState.WAITING]


def _step(record: StepRecord, attempts: list[Attempt], awaited: AwaitedEvent | None) -> Step:
    return Step(
        step=record.step_id,
        name=record.name,
        kind=record.kind.value,
        child=None if record.server is None else record.server.child_id,
        state=record.state.value,
        compensation=record.compensation.value,
        ordinal=record.ordinal,
        failure_count=record.failure_count,
        retry=Retry(
            attempts=record.retry.attempts,
            initial_ms=record.retry.initial_ms,
            coefficient=record.retry.coefficient,
            cap_ms=record.retry.cap_ms,
        ),
        timeout_ms=record.timeout_ms,
        repeatable=record.repeatable,
        undo_repeatable=record.undo_repeatable,
        location=record.location,
        declared_at_ms=record.declared_at_ms,
        settled_at_ms=record.settled_at_ms,
        completion=record.completion,
        value_bytes=record.value_bytes,
        failure=failure_view(record.failure),
        attempts=attempts,
        due_at_ms=None if record.server is None else record.server.due_at_ms,
        event=None if record.server is None else record.server.event_id,
        awaited=awaited,
    )
