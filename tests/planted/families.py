"""Bugs of parents and children."""

from __future__ import annotations

from .bug import Bug

__all__ = ["FAMILIES"]

CHILDREN = "tests/transitions/test_children.py"
CHILD_STOPS = "tests/transitions/test_child_stops.py"
DECLARE = "keyspace/transitions/declare_child.py"
SETTLE = "keyspace/transitions/settle_child.py"

FAMILIES: tuple[Bug, ...] = (
    Bug(
        name="two children of one run have one identity",
        file=DECLARE,
        old='    return digest_of("ryusen.child", workspace, application, run_id, step_id)',
        new='    return digest_of("ryusen.child", workspace, application, run_id)',
        why="the second invocation of a run finds the first one's child",
        tests=(CHILDREN,),
    ),
    Bug(
        name="another run under a child's identity is taken for it",
        file=DECLARE,
        old="    if existing is not None:\n        # Its step",
        new="    if False:\n        # Its step",
        why="a stranger's run is written over",
        tests=(CHILDREN,),
    ),
    Bug(
        name="a chain of invocations has no end",
        file=DECLARE,
        old="    depth = (run.parent.depth if run.parent is not None else 0) + 1\n",
        new="    depth = 1\n",
        why="a function that calls itself starts runs for ever",
        tests=(CHILDREN,),
    ),
    Bug(
        name="the deployment's default does not hold for children",
        file=DECLARE,
        old="    elif default_ms is not None:",
        new="    elif False:",
        why="the two ways in which runs come to be drift apart",
        tests=(CHILDREN,),
    ),
    Bug(
        name="a late settlement goes on past the deadline",
        file=SETTLE,
        old="    run = await meet_deadline(tx, workspace, run, Direction.FORWARD)\n",
        new="",
        why="which of the two counts depends on which was dispatched first",
        tests=(CHILDREN,),
    ),
    Bug(
        name="an invocation without time is told as the child's own",
        file=SETTLE,
        old="    if child.deadline_source is DeadlineSource.INVOKE and child.deadline_at_ms == child.created_at_ms:",
        new="    if False:",
        why="workflow code cannot tell that nothing of the child ran",
        tests=(CHILDREN,),
    ),
    Bug(
        name="a child's settlement is left in its lane",
        file=SETTLE,
        old='    items.consume(tx, workspace, found)\n    told = {"child": child_id}\n',
        new='    told = {"child": child_id}\n',
        why="every look at the lane meets work that nobody owns",
        tests=(CHILDREN,),
    ),
    Bug(
        name="a stop outlives the child that it was for",
        file="keyspace/transitions/child_work.py",
        old="        items.consume(tx, workspace, late)",
        new="        pass",
        why="a terminal run owns work",
        tests=(CHILD_STOPS,),
    ),
    Bug(
        name="a stop is sent to a child that has ended",
        file="keyspace/transitions/stop_run.py",
        old="    if child is not None and child.phase is not Phase.TERMINAL:",
        new="    if child is not None:",
        why="the same, the other way round",
        tests=(CHILD_STOPS,),
    ),
    Bug(
        name="a parent's deadline cancels its child",
        file="keyspace/transitions/propagate_stop.py",
        old="    return parent.stop.reason if child.phase",
        new="    return StopReason.CANCELLED if child.phase",
        why="one tree ends for two reasons",
        tests=(CHILD_STOPS,),
    ),
)
