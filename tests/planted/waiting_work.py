"""Bugs of events, fan-out, timers, children and blockers."""

from __future__ import annotations

from .bug import Bug

__all__ = ["WAITING_WORK"]

EVENTS = "tests/transitions/test_accept_event.py"
EXPAND = "tests/transitions/test_expand_event.py"
TIMERS = "tests/transitions/test_timers.py"
CHILDREN = "tests/transitions/test_children.py"
BOUNDS = "tests/transitions/test_child_bounds.py"
BLOCKERS = "tests/transitions/test_blockers.py"
WAKES = "tests/transitions/test_blocker_wakes.py"

WAITING_WORK: tuple[Bug, ...] = (
    Bug(
        name="one key for two submissions",
        file="keyspace/transitions/accept_event.py",
        old="    _require_same(claim.event_id, claim.fingerprint, marked)\n",
        new="",
        why="other content under a used key disappears, acknowledged",
        tests=(EVENTS,),
    ),
    Bug(
        name="the caller's instant is not in the fingerprint",
        file="keyspace/transitions/accept_event.py",
        old='    return "1:" + digest_of("ryusen.submit", submission.name, submission.payload, timestamp, *pairs)',
        new='    return "1:" + digest_of("ryusen.submit", submission.name, submission.payload, *pairs)',
        why="other content under a used key disappears, acknowledged",
        tests=(EVENTS,),
    ),
    Bug(
        name="a submission does not find itself",
        file="keyspace/transitions/accept_event.py",
        old="    if own is not None:\n",
        new="    if own is None and offer.name == offer.fingerprint:\n",
        why="after an unknown commit one submission is two obligations",
        tests=(EVENTS,),
    ),
    Bug(
        name="a claim outlives its time",
        file="keyspace/transitions/accept_event.py",
        old="        if claim is not None and tx.now_ms < claim.expires_at_ms:",
        new="        if claim is not None:",
        why="a key is never free again, as was promised",
        tests=(EVENTS,),
    ),
    Bug(
        name="the fan-out cursor stands still",
        file="keyspace/transitions/expand_event.py",
        old="        cursor_binding=last.binding if last else expansion.cursor_binding,",
        new="        cursor_binding=expansion.cursor_binding,",
        why="an event of many bindings is expanded for ever",
        tests=(EXPAND,),
    ),
    Bug(
        name="runs of one event share an identity",
        file="keyspace/transitions/materialize_run.py",
        old='    return digest_of("ryusen.run", workspace, event_id, application, binding)',
        new='    return digest_of("ryusen.run", workspace, event_id, application)',
        why="of two bindings one starts nothing",
        tests=(EXPAND,),
    ),
    Bug(
        name="no first discovery",
        file="keyspace/transitions/materialize_run.py",
        old="    run = msgspec.structs.replace(run, item_id=item.item_id)\n",
        new="",
        why="a run begins that nothing drives",
        tests=(EXPAND, "tests/transitions/test_run_lifecycle.py"),
    ),
    Bug(
        name="a page is not held to its share",
        file="keyspace/transitions/binding_page.py",
        old="        if admitted >= at_least and needed_bytes > within_bytes:",
        new="        if admitted >= at_least and needed_bytes > within_bytes * 1_000:",
        why="a fan-out page outgrows its transaction and never commits",
        tests=(EXPAND,),
    ),
    Bug(
        name="an early timer fires",
        file="keyspace/transitions/fire_timer.py",
        old="    if now_ms < step.server.due_at_ms:",
        new="    if now_ms + 1_000 < step.server.due_at_ms:",
        why="a wait ends before its instant",
        tests=(TIMERS,),
    ),
    Bug(
        name="a timer wakes a run past its deadline",
        file="keyspace/transitions/fire_timer.py",
        old="    return Fired.STOPPED if is_past_deadline(run, now_ms) else Fired.FIRED",
        new="    return Fired.FIRED",
        why="which of the two counts depends on which was dispatched first",
        tests=(TIMERS, "tests/transitions/test_deadlines.py"),
    ),
    Bug(
        name="the timer's item is left",
        file="keyspace/transitions/fire_timer.py",
        old="    items.consume(tx, workspace, found)\n",
        new="",
        why="the timer fires again at every look",
        tests=(TIMERS,),
    ),
    Bug(
        name="a child does not announce its end",
        file="keyspace/transitions/child_work.py",
        old="    at = (settle_item_id(run.run_id), run.parent.run_id, run.parent.step_id)\n    _enqueue(tx, workspace, WorkKind.CHILD_SETTLE, *at, run, now_ms)",
        new="    return",
        why="its parent waits for ever",
        tests=(CHILDREN,),
    ),
    Bug(
        name="a child has all the time there is",
        file="keyspace/transitions/declare_child.py",
        old="        bounds.append((run.deadline_at_ms - now_ms, DeadlineSource.PARENT))",
        new="        pass",
        why="a child goes on past its parent's deadline",
        tests=(BOUNDS,),
    ),
    Bug(
        name="an ended child is stopped again",
        file="keyspace/transitions/propagate_stop.py",
        old="    return parent.stop.reason if child.phase in _STOPPABLE else Propagated.CHILD_DECIDED",
        new="    return parent.stop.reason",
        why="a child's own decision is overruled by its parent's",
        tests=(BOUNDS,),
    ),
    Bug(
        name="a settled parent does not leave Cancelling",
        file="keyspace/transitions/settle_child.py",
        old="        after = await settlement_gate(tx, workspace, after, now_ms)",
        new="        pass",
        why="a stopped parent waits for nothing, for ever",
        tests=(CHILDREN,),
    ),
    Bug(
        name="a blocker is not indexed",
        file="keyspace/transitions/block_run.py",
        old="        tx.put(blocked_key(workspace, run), None)",
        new="        pass",
        why="no release ever wakes the run",
        tests=(BLOCKERS,),
    ),
    Bug(
        name="no probe where nothing announces new code",
        file="keyspace/transitions/block_run.py",
        old="    elif blocker.needs_probe:",
        new="    elif False:",
        why="a run of an unversioned worker stays blocked after the fix",
        tests=(BLOCKERS,),
    ),
    Bug(
        name="a wake is lost beside a block",
        file="keyspace/transitions/block_run.py",
        old="        head_position > max(position, told_position),",
        new="        False,",
        why="a run that blocks while the fix is preferred is never woken",
        tests=(WAKES, BLOCKERS),
    ),
    Bug(
        name="a wake without a look at who has work",
        file="keyspace/transitions/wake_blocked.py",
        old="run.phase is Phase.DEFINITION_BLOCKED and run.item_id is None\n",
        new="run.phase is Phase.DEFINITION_BLOCKED\n",
        why="a run gets two passes at once",
        tests=(WAKES,),
    ),
    Bug(
        name="a wake ends with its first page",
        file="keyspace/transitions/wake_blocked.py",
        old="    if len(rows) < limit:",
        new="    if len(rows) <= limit:",
        why="behind a page of blocked runs nobody is woken",
        tests=(WAKES,),
    ),
    Bug(
        name="the probe outlives its blocker",
        file="keyspace/transitions/blockers.py",
        old="        if probe is not None:\n            items.consume(tx, workspace, probe)\n    tx.remove(key)",
        new="        if probe is not None:\n            pass\n    tx.remove(key)",
        why="a run that has ended owns work",
        tests=(BLOCKERS,),
    ),
    Bug(
        name="an unblocked run stays in the index",
        file="keyspace/transitions/blockers.py",
        old="    tx.remove(blocked_key(workspace, run))\n",
        new="",
        why="every new release wakes runs that go on long since",
        tests=(BLOCKERS,),
    ),
    Bug(
        name="every request to look again makes a pass",
        file="keyspace/transitions/rediscover_run.py",
        old="    if run.rediscovery == item_id:",
        new="    if False:",
        why="after an unknown commit an operator's request is told something else",
        tests=("tests/transitions/test_blocker_faults.py", BLOCKERS),
    ),
)
