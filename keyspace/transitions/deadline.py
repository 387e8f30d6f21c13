"""A run's deadline: what every result, answer, start and loss compares with before it goes on.

The engine's own clock decides, in the transaction itself, so that it never matters whether the timer has been dispatched
(RFD 2, "The timeout handler and every authoritative forward result"). What comes at the deadline or after it first commits
the TimedOut stop; an attempt that was authorized before keeps its token and settles under the stop, in the same transaction.
"""

from __future__ import annotations

from keyspace.lifecycle import StopReason
from keyspace.records.run import RunRecord
from keyspace.records.work import Direction
from keyspace.transitions.run_timer import TIMED_PHASES
from keyspace.transitions.stop_run import commit_stop
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["DEADLINE", "is_past_deadline", "meet_deadline", "stop_for_deadline"]

DEADLINE = "deadline"
"""Who history names as the one who stopped such a run."""


def is_past_deadline(run: RunRecord, now_ms: int) -> bool:
    """Whether the run's deadline ends its forward execution at `now_ms`: at that instant it does, 1 ms before it does not.

    A run that was stopped, is being undone or has ended is past no deadline: the first committed reason decides.
    """
    return (
        run.deadline_at_ms is not None
        and now_ms >= run.deadline_at_ms
        and run.stop is None
        and run.phase in TIMED_PHASES
    )


async def stop_for_deadline(tx: Tx, workspace: str, run: RunRecord, now_ms: int) -> RunRecord:
    """Commit the TimedOut stop of a run past its deadline and write the run; return it as it stands then.

    Work that was not authorized is fenced and authorized discovery discarded. An authorized or Unknown effect keeps its
    settlement token, so that whoever reports it goes on with the returned run, under stopping semantics.
    """
    after = await commit_stop(tx, workspace, run, StopReason.TIMED_OUT, DEADLINE, now_ms)
    save_run(tx, workspace, run, after)
    return after


async def meet_deadline(tx: Tx, workspace: str, run: RunRecord, direction: Direction) -> RunRecord:
    """Return the run that a transition of `direction` goes on with: stopped when its deadline has passed, else as it is.

    Compensation ignores the deadline (RFD 2, "An unresolved compensation attempt ignores the forward deadline").
    """
    now_ms = engine_now_ms(tx, run)
    if direction is Direction.COMPENSATION or not is_past_deadline(run, now_ms):
        return run
    return await stop_for_deadline(tx, workspace, run, now_ms)
