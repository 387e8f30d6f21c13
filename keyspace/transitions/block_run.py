"""Block a run: a pass met one step id twice (RFD 1, "A step ID names one logical operation for the life of a run").

The blocker is a pause, not a failure: accepted results stand, nothing is undone, and nothing new starts until a pass no
longer reports the conflict. A pass that still does updates the one blocker. It appends one entry, so what a blocked run's
history gains is bounded by how often it is looked at again: once for each newly preferred release, for each probe (at most
one an hour once its delay has grown) and for each operator's command.

No wake is lost: this transition reads the function's release head with conflict and writes the blocked run into the index
that `prefer_release` reads with conflict. Whichever commits second sees the other: a head that is newer than what the pass
ran under, and than the run was told of, gives the run its next pass here.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.errors import Refusal
from keyspace.history import HistoryKind
from keyspace.layout import INSTANCE, RELEASE_HEAD
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import RunEvent, advance
from keyspace.limits import LOCATION_CHARS_MAX, STEP_NAME_CHARS_MAX
from keyspace.records.blocker import BlockerRecord, BlockReason, CallSite
from keyspace.records.release import HeadRecord
from keyspace.records.work import InstanceRecord
from keyspace.transitions.blockers import blocked_key, blocker_key, enqueue_probe
from keyspace.transitions.names import check_name
from keyspace.transitions.pass_receipt import Pass, answer_digest, open_pass, settle_pass
from keyspace.transitions.work import Accepted, Verdict, Work, discovery_item, engine_now_ms
from keyspace.tx import Tx

__all__ = ["Blocking", "DefinitionConflict", "block", "block_run", "check_conflict", "conflict_digest", "decide"]


class DefinitionConflict(NamedTuple):
    """One step id that a pass met twice, with its two calls as far as the worker could tell."""

    step_id: str
    first: CallSite
    duplicate: CallSite


class Blocking(NamedTuple):
    """What an observed conflict comes to.

    `blocker` is the record to write, its probe not yet set. `replaces` is the id that was duplicated before, empty when none
    was or it is the same. `is_outdated` says that a release is preferred which the run has not been told of.
    """

    blocker: BlockerRecord
    kind: HistoryKind
    replaces: str
    is_outdated: bool


def check_conflict(conflict: DefinitionConflict) -> None:
    """Refuse a conflict that no record can name.

    Raises:
        Refusal: `invalid_name`, naming field and limit.
    """
    check_name("step id", conflict.step_id)
    for site in (conflict.first, conflict.duplicate):
        for field, text, limit in (
            ("name", site.name, STEP_NAME_CHARS_MAX),
            ("location", site.location, LOCATION_CHARS_MAX),
        ):
            if len(text) > limit:
                raise Refusal("invalid_name", "A text is too long.", field=field, characters=len(text), limit=limit)


def decide(
    earlier: BlockerRecord | None,
    conflict: DefinitionConflict,
    instance_id: str | None,
    instance: InstanceRecord | None,
    head: HeadRecord | None,
    now_ms: int,
) -> Blocking:
    """Decide what an observed conflict comes to (RFD 2, "a pass that still reports a conflict").

    Args:
        earlier: the active blocker, if there is one.
        conflict: what the pass reported.
        instance_id: the worker that reported, if it is known.
        instance: its record; without one it counts as a worker that names no release.
        head: the release that the function prefers, if it prefers any.
        now_ms: engine time.
    """
    is_same = earlier is not None and earlier.step_id == conflict.step_id
    position = "" if instance is None else instance.position
    head_position = "" if head is None else head.position
    told_position = "" if earlier is None else earlier.head_position
    blocker = BlockerRecord(
        reason=BlockReason.DUPLICATE_STEP_ID,
        step_id=conflict.step_id,
        first=conflict.first,
        duplicate=conflict.duplicate,
        first_seen_at_ms=earlier.first_seen_at_ms if earlier is not None and is_same else now_ms,
        seen_at_ms=now_ms,
        count=earlier.count + 1 if earlier is not None and is_same else 1,
        instance=instance_id,
        release="" if instance is None else instance.release,
        position=position,
        head_position=head_position,
        # Another conflict is other code: a fix may be near again.
        probe_count=earlier.probe_count if earlier is not None and is_same else 0,
    )
    return Blocking(
        blocker,
        HistoryKind.DEFINITION_BLOCKED if earlier is None else HistoryKind.DEFINITION_STILL_BLOCKED,
        "" if earlier is None or is_same else earlier.step_id,
        head_position > max(position, told_position),
    )


async def block_run(tx: Tx, workspace: str, work: Work, conflict: DefinitionConflict) -> Verdict:
    """Set, refresh or replace the run's blocker (RFD 2, "The SDK returns definition_blocked").

    Reads: run, item, blocker, the worker's instance by snapshot, the function's release head with conflict.
    Writes: blocker, its place in the index, run, status index, history; the discovery item goes; a probe, or the next
        discovery item when a release is preferred that the run has not been told of.
    Conflicts: with this run's other transitions, and with a release that its function comes to prefer.
    Budget: under 16 kB; 24 kB past the deadline.  Idempotent: the run's receipt of the pass.

    Raises:
        Refusal: `invalid_name`: the pass is answered, nothing is mutated.
    """
    digest = conflict_digest(conflict)
    _, outcome = await open_pass(tx, workspace, work, digest)
    if not isinstance(outcome, Pass):
        return outcome
    await block(tx, workspace, outcome, conflict, digest)
    return Accepted()


def conflict_digest(conflict: DefinitionConflict) -> str:
    """Return the digest of the answer that a pass met `conflict`."""
    return answer_digest("blocked", msgspec.json.encode(conflict))


async def block(tx: Tx, workspace: str, accepted: Pass, conflict: DefinitionConflict, digest: str) -> None:
    """Write an accepted conflict. Refuses before it writes anything."""
    check_conflict(conflict)
    run = accepted.run
    key = blocker_key(workspace, run.run_id)
    earlier, head = await tx.load(key, RELEASE_HEAD.at(workspace, run.application, run.function))
    instance = (
        None if accepted.instance is None else await tx.load(INSTANCE.at(workspace, accepted.instance), snapshot=True)
    )
    now_ms = engine_now_ms(tx, run)
    blocker, kind, replaces, is_outdated = decide(earlier, conflict, accepted.instance, instance, head, now_ms)
    entry = {
        "reason": blocker.reason.value,
        "step": blocker.step_id,
        "first": _shown(blocker.first),
        "duplicate": _shown(blocker.duplicate),
        "count": blocker.count,
        "instance": blocker.instance,
        "release": blocker.release,
    }
    if replaces:
        entry["replaces"] = replaces
    if is_outdated and head is not None:
        entry["newer_release"] = head.release_id
    after = history.append(tx, workspace, run, now_ms, (kind, entry))
    after = msgspec.structs.replace(
        after, phase=advance(RUN_TABLE, run.phase, RunEvent.BLOCKED), item_id=None, step_id=None
    )
    if is_outdated:
        after = msgspec.structs.replace(after, item_id=discovery_item(tx, workspace, after, now_ms).item_id)
    elif blocker.needs_probe:
        probe = enqueue_probe(tx, workspace, after, blocker.probe_count, now_ms)
        blocker = msgspec.structs.replace(blocker, probe_item=probe.item_id)
    tx.put(key, blocker)
    if earlier is None:
        tx.put(blocked_key(workspace, run), None)
    settle_pass(tx, workspace, accepted, after, digest, now_ms)


def _shown(site: CallSite) -> dict[str, str]:
    return {"location": site.location, "name": site.name}
