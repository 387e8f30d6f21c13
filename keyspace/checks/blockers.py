"""Definition blockers: a blocked run has exactly one, is found through its function, and is looked at again (C3, C4, C7)."""

from __future__ import annotations

from keyspace.checks.report import Case, checks
from keyspace.layout import BLOCKED, BLOCKER, ITEM, RELEASE_HEAD, RUN, WAKE
from keyspace.lifecycle import Phase
from keyspace.records.blocker import BlockerRecord, WakeRecord
from keyspace.records.run import RunRecord
from keyspace.records.work import WorkKind
from keyspace.store.api import KeyRange
from keyspace.transitions.blockers import blocked_key, blocker_key
from keyspace.transitions.wake_blocked import wake_id_of

__all__ = ["check_blocked_run"]


async def check_blocked_run(case: Case, run: RunRecord) -> BlockerRecord | None:
    """A blocked run has its blocker, stands in the index and will be looked at again; return the blocker."""
    blocker = await case.tx.load(blocker_key(case.workspace, run.run_id), snapshot=True)
    if not case.expect(blocker is not None, "C3", "a blocked run has no blocker") or blocker is None:
        return None
    entry = blocked_key(case.workspace, run)
    rows = await case.tx.page(KeyRange(entry.data, entry.data + b"\x00"), limit=1, snapshot=True)
    case.expect(rows, "C3", "a blocked run is not among those of its function")
    if run.item_id is not None:
        case.expect(blocker.probe_item is None, "C7", "a blocked run has both its next pass and a probe")
        return blocker
    case.expect((blocker.probe_item is not None) == blocker.needs_probe, "C3", "the blocker and its probe do not agree")
    await _check_is_told(case, run, blocker)
    return blocker


async def _check_is_told(case: Case, run: RunRecord, blocker: BlockerRecord) -> None:
    """A run at rest knows of the release that its function prefers, or the wake has yet to come to it."""
    head = await case.tx.load(RELEASE_HEAD.at(case.workspace, run.application, run.function), snapshot=True)
    if head is None or head.position <= max(blocker.position, blocker.head_position):
        return
    wake = await case.tx.load(WAKE.at(case.workspace, wake_id_of(run.application, run.function)), snapshot=True)
    case.expect(wake is not None and wake.after < run.run_id, "C3", "no wake will tell the run of the newer release")


@checks(BLOCKER)
async def check_blocker(case: Case) -> None:
    """A blocker is a blocked run's; its probe waits for it."""
    ws, run_id, reason = case.elements
    blocker: BlockerRecord = case.record
    run = await case.tx.load(RUN.at(ws, run_id), snapshot=True)
    case.expect(
        run is not None and run.phase is Phase.DEFINITION_BLOCKED, "C4", "a blocker of a run that is not blocked"
    )
    case.expect(blocker.reason.value == reason, "C7", "the blocker names another reason")
    case.expect(blocker.count >= 1 and blocker.first_seen_at_ms <= blocker.seen_at_ms, "C12", "the blocker goes back")
    if blocker.probe_item is not None:
        item = await case.tx.load(ITEM.at(ws, blocker.probe_item), snapshot=True)
        case.expect(
            item is not None and (item.kind, item.target) == (WorkKind.DEFINITION_PROBE, run_id),
            "C3",
            "the blocker's probe does not exist",
        )


@checks(BLOCKED)
async def check_blocked(case: Case) -> None:
    """A blocked entry names a blocked run of the function."""
    ws, application, function, run_id = case.elements
    run = await case.tx.load(RUN.at(ws, run_id), snapshot=True)
    case.expect(
        run is not None
        and (run.phase, run.application, run.function) == (Phase.DEFINITION_BLOCKED, application, function),
        "C7",
        "no such run of the function is blocked",
    )


@checks(WAKE)
async def check_wake(case: Case) -> None:
    """A wake stands under its function's digest and has its work."""
    ws, wake_id = case.elements
    wake: WakeRecord = case.record
    case.expect(wake_id == wake_id_of(wake.application, wake.function), "C7", "the wake stands under another function")
    item = await case.tx.load(ITEM.at(ws, wake.item_id), snapshot=True)
    case.expect(item is not None and item.target == wake_id, "C3", "the wake's work item does not exist")
