"""Runs blocked by their definition: what blocks them, and an operator's request to look at their code again."""

from __future__ import annotations

from collections.abc import Iterable

from keyspace.lifecycle import Phase
from keyspace.records.blocker import BlockerRecord, CallSite
from keyspace.records.run import RunRecord
from keyspace.transitions.blockers import blocker_key
from keyspace.transitions.rediscover_run import RediscoverOutcome, rediscover_run
from keyspace.tx import Tx
from services.gateway.blocker_types import Blocker, Rediscovery, StepCallSite
from services.gateway.endpoints import Answer, Call

__all__ = ["blocker_view", "load_blockers", "rediscover"]

_EXPLANATIONS = {
    RediscoverOutcome.ACCEPTED: "The code is looked at again as soon as a worker takes the run's next pass.",
    RediscoverOutcome.ALREADY_REQUESTED: "The run has its next pass already; nothing changed.",
}


async def rediscover(call: Call) -> Answer:
    """Ask for another look at a blocked run's code now; what it comes to, its next pass will tell."""
    run_id, request_id = call.parts["run"], call.gateway.keyspace.mint()
    reply = await call.transact(
        "rediscover_run",
        lambda tx: rediscover_run(tx, call.workspace, run_id, by=call.identity.key_id, item_id=request_id),
    )
    return Answer(
        Rediscovery(
            run=run_id,
            outcome=reply.outcome.value,
            blocker=blocker_view(reply.blocker),
            explanation=_EXPLANATIONS[reply.outcome],
        )
    )


async def load_blockers(tx: Tx, workspace: str, runs: Iterable[RunRecord]) -> dict[str, BlockerRecord]:
    """Return the blockers of those of `runs` that are blocked, by run, read together by snapshot."""
    blocked = [run.run_id for run in runs if run.phase is Phase.DEFINITION_BLOCKED]
    found = await tx.load_all((blocker_key(workspace, run_id) for run_id in blocked), snapshot=True)
    return {run_id: blocker for run_id, blocker in zip(blocked, found, strict=True) if blocker is not None}


def blocker_view(record: BlockerRecord | None) -> Blocker | None:
    """Return a blocker as the API shows it."""
    if record is None:
        return None
    return Blocker(
        reason=record.reason.value,
        step=record.step_id,
        first=_site(record.first),
        duplicate=_site(record.duplicate),
        first_seen_at_ms=record.first_seen_at_ms,
        seen_at_ms=record.seen_at_ms,
        count=record.count,
        instance=record.instance,
        release=record.release or None,
        probe_count=record.probe_count,
        needs_probe=record.needs_probe,
    )


def _site(site: CallSite) -> StepCallSite:
    return StepCallSite(location=site.location, name=site.name)
