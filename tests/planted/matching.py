"""Bugs of event waits, emissions and failed steps."""

from __future__ import annotations

from .bug import Bug

__all__ = ["MATCHING"]

WAITS = "tests/transitions/test_waits.py"
BOUNDARIES = "tests/transitions/test_wait_boundaries.py"
EMISSION = "tests/transitions/test_emission.py"
OBSOLETE = "tests/transitions/test_obsolete.py"
RACES = "tests/transitions/test_wait_races.py"
PAGE = "keyspace/transitions/wait_page.py"

MATCHING: tuple[Bug, ...] = (
    Bug(
        name="a wait is matched past its run's deadline",
        file=PAGE,
        old="        and not is_past_deadline(run, now_ms)\n",
        new="",
        why="which of the two counts depends on which was dispatched first",
        tests=(BOUNDARIES,),
    ),
    Bug(
        name="an event settles what was registered after it",
        file=PAGE,
        old="    bound = stamp[:COMMIT_STAMP_BYTES] + bytes(STAMP_BYTES - COMMIT_STAMP_BYTES)",
        new='    bound = b"\\xff" * STAMP_BYTES',
        why="a wait is settled by an event of the past, or not, depending on how slow the fan-out was",
        tests=(BOUNDARIES,),
    ),
    Bug(
        name="an event settles what was registered in its own transaction",
        file=PAGE,
        old="bytes(STAMP_BYTES - COMMIT_STAMP_BYTES)",
        new='b"\\xff" * (STAMP_BYTES - COMMIT_STAMP_BYTES)',
        why="which of the two is first depends on the order in which one transaction wrote them",
        tests=(RACES,),
    ),
    Bug(
        name="a page of waits that conflicts is tried again as it was",
        file=PAGE,
        old="WAIT_PAGE_ITEMS >> attempt_index",
        new="WAIT_PAGE_ITEMS",
        why="an expansion over busy runs may never commit",
        tests=(RACES,),
    ),
    Bug(
        name="a settlement that nothing can carry stops the page",
        file=PAGE,
        old="        if not matching and charge > within_bytes + borrowable_bytes:\n            continue\n",
        new="",
        why="the transaction is refused each time, and the event never completes",
        tests=("tests/transitions/test_wait_budget.py",),
    ),
    Bug(
        name="a matched wait stays in the index",
        file="keyspace/transitions/forget_wait.py",
        old="    tx.remove(WAIT_INDEX.at(workspace, event, pair, stamp))\n",
        new="",
        why="every later event inspects waits that ended long ago",
        tests=(WAITS,),
    ),
    Bug(
        name="the timeout of a matched wait stays",
        file=PAGE,
        old="    items.consume(tx, workspace, timer)\n",
        new="",
        why="a timer fires for a step that has its result",
        tests=(WAITS,),
    ),
    Bug(
        name="a page of waits evaluates one again",
        file=PAGE,
        old='bytes.fromhex(expansion.wait_cursor)).data + b"\\x00"',
        new="bytes.fromhex(expansion.wait_cursor)).data",
        why="the last registration of each page is inspected twice",
        tests=(BOUNDARIES,),
    ),
    Bug(
        name="one pair of several is enough",
        file="keyspace/transitions/correlation.py",
        old="all(",
        new="any(",
        why="a wait is settled by another order's event",
        tests=("tests/unit/keyspace", WAITS),
    ),
    Bug(
        name="an emission's identity leaves out the step",
        file="keyspace/transitions/emit_event.py",
        old='    return digest_of("ryusen.emitted", workspace, application, run_id, step_id)',
        new='    return digest_of("ryusen.emitted", workspace, application, run_id)',
        why="of two emissions of a run one disappears",
        tests=(EMISSION,),
    ),
    Bug(
        name="a failed step that was not met stays Failed",
        file="keyspace/transitions/failed_steps.py",
        old="    gone = [step_id for step_id in listed if step_id not in met]",
        new="    gone = [step_id for step_id in listed if step_id in met]",
        why="what the code has left behind is shown as its failure, and what it handled as left behind",
        tests=(OBSOLETE,),
    ),
)
