"""Bugs of the steps that the server settles, and of the events that workflows emit."""

from __future__ import annotations

from .bug import Bug

__all__ = ["SERVER_STEPS"]

TIMERS = "tests/transitions/test_timers.py"
EMISSION = "tests/transitions/test_emission.py"
CORE = "tests/unit/sdk/test_sdk_server_steps.py"
FRAMES = "tests/unit/services/dispatcher/test_dispatch_server_steps.py"
WHOLE = "tests/unit/services/dispatcher/test_whole_continuation.py"

SERVER_STEPS: tuple[Bug, ...] = (
    Bug(
        name="an anchor before acceptance",
        file="keyspace/transitions/declare_timer.py",
        old="else max(now_ms, terms.until_ms or 0)",
        new="else terms.until_ms or 0",
        why="an instant that has passed vests in a bucket nobody looks into",
        tests=(TIMERS,),
    ),
    Bug(
        name="a timer may have a compensator",
        file="keyspace/transitions/declaration.py",
        old="    if declaration.compensable or has_undo_policy or declaration.undo_repeatable:\n",
        new="    if has_undo_policy or declaration.undo_repeatable:\n",
        why="what is never undone is declared as if it were",
        tests=(TIMERS, EMISSION),
    ),
    Bug(
        name="a repeat is told from nothing",
        file="keyspace/transitions/declare_server_step.py",
        old="        _check_repeat(earlier, declaration, terms)\n",
        new="",
        why="a second, different event under one step id is swallowed",
        tests=(EMISSION, TIMERS),
    ),
    Bug(
        name="a repeated emission strands its run",
        file="keyspace/transitions/declare_server_step.py",
        old="    if step.state is StepState.WAITING:\n",
        new="    if step.server is not None:\n",
        why="a run that asks again for what it has waits for ever",
        tests=(EMISSION, TIMERS),
    ),
    Bug(
        name="an emission's claim lies where callers' keys lie",
        file="keyspace/transitions/emit_event.py",
        old="    return Claim(Operation.EVENT_EMIT, digest, is_kept=True)\n",
        new="    return Claim(Operation.EVENT_SUBMIT, digest, is_kept=True)\n",
        why="somebody else's submission may be taken for the workflow's",
        tests=(EMISSION,),
    ),
    Bug(
        name="an emission adopts whatever event its claim names",
        file="keyspace/transitions/emit_event.py",
        old="    if accepted.event_id != event_id:\n",
        new="    if not accepted.event_id:\n",
        why="the receipt names an event that was never accepted",
        tests=(EMISSION,),
    ),
    Bug(
        name="correlation is not part of an emission",
        file="keyspace/transitions/emit_event.py",
        old='    return "1:" + digest_of("ryusen.emit", terms.event_name, terms.payload, *pairs)\n',
        new='    return "1:" + digest_of("ryusen.emit", terms.event_name, terms.payload, str(len(pairs) - len(pairs)))\n',
        why="a repeat with other routing is taken for the same event",
        tests=(EMISSION,),
    ),
    Bug(
        name="one event for the same step of every run",
        file="keyspace/transitions/emit_event.py",
        old='    return digest_of("ryusen.emitted", workspace, application, run_id, step_id)\n',
        new='    return digest_of("ryusen.emitted", workspace, application, step_id)\n',
        why="the second run's event is refused or lost",
        tests=(EMISSION,),
    ),
    Bug(
        name="an emission's claim expires",
        file="keyspace/transitions/emit_event.py",
        old="    return Claim(Operation.EVENT_EMIT, digest, is_kept=True)\n",
        new="    return Claim(Operation.EVENT_EMIT, digest)\n",
        why="a run that outlives the workspace's retention emits twice",
        tests=(EMISSION,),
    ),
    Bug(
        name="a settled timer is a completion",
        file="keyspace/transitions/settle_server_step.py",
        old="        settled_count=run.settled_count + 1,\n",
        new="        settled_count=run.settled_count + 1,\n        completion_count=run.completion_count + 1,\n",
        why="the unwind looks for a step that it can never undo",
        tests=(TIMERS, EMISSION),
    ),
    Bug(
        name="the pass behind an emission is anybody's",
        file="keyspace/transitions/declare_server_step.py",
        old="    holder = await current_hold(tx, workspace, hold)\n",
        new="    holder = hold\n",
        why="a session that was superseded goes on beside the new one",
        tests=(EMISSION,),
    ),
    Bug(
        name="any value is an event's payload",
        file="services/dispatcher/declarations.py",
        old="        check_value(_payload_of(step.emission))\n",
        new="        _payload_of(step.emission)\n",
        why="whoever is started by the event can never read its input",
        tests=(FRAMES,),
    ),
    Bug(
        name="a repeated resume goes on twice",
        file="sdk_py/ryusen/worker/chain.py",
        old="        return  # repeated: to give back what goes on would have it go on twice\n",
        new="        pass\n",
        why="work under way is given back and runs elsewhere too",
        tests=(CORE, WHOLE),
    ),
    Bug(
        name="a step that is a timer now is taken for its callback",
        file="sdk_py/ryusen/worker/core.py",
        old="    return call.declaration.id == ref.step and wanted is not None\n",
        new="    return call.declaration.id == ref.step\n",
        why="the worker starts a callback that its code does not have",
        tests=(CORE,),
    ),
    Bug(
        name="a step is called inside a callback",
        file="sdk_py/ryusen/worker/passes.py",
        old="        refuse_inside_attempt(declaration.id)\n",
        new="",
        why="the inner step waits for the outer one's callback and that for the inner step, without a word",
        tests=("tests/unit/services/testing/test_workflow_runs.py",),
    ),
)
