"""Moves of callers and operators: events, invocations, cancellations, looking again, resolutions."""

from __future__ import annotations

from collections.abc import Mapping

from keyspace.errors import Refusal
from keyspace.layout import UNRESOLVED
from keyspace.lifecycle import Phase
from keyspace.records.run import FailureRecord
from keyspace.records.work import Direction
from keyspace.transitions.accept_event import Submission, accept_event
from keyspace.transitions.rediscover_run import rediscover_run
from keyspace.transitions.resolve_attempt import (
    Command,
    DeclareFailure,
    RetryAttempt,
    SupplySuccess,
    Target,
    resolve_attempt,
)
from keyspace.transitions.stop_run import cancel_run
from simulation.code import PAIRS
from simulation.dispatching import OPTIONS
from simulation.invoking import invoke
from simulation.maker import Maker
from simulation.model import Broken, stop_stands
from simulation.scenario import Draws, Kind
from simulation.world import EVENTS, World

__all__ = ["MAKERS", "resolve", "unresolved"]

STARTING = (*EVENTS, "placed", "returned", "placed", "returned")


async def submit(world: World, draws: Draws) -> str:
    """Submit an event, or one of the earlier submissions again."""
    again = [one for one in world.submissions if one[2] is not None]
    if again and draws.chance(0.3):
        workspace, first_id, key, event = draws.choose(again, lambda one: one[1])
        event_id = world.gateway.keyspace.mint()
    else:
        workspace, event_id, event = draws.one_of(world.workspaces), draws.bytes(16).hex(), draws.one_of(STARTING)
        first_id, key = event_id, f"key-{event_id[:6]}" if draws.chance(0.6) else None
        world.submissions.append((workspace, event_id, key, event))
    pairs = Draws(world.seed, f"pairs/{first_id}").one_of(PAIRS)
    submission = Submission(event, b'"%s"' % first_id[:6].encode(), pairs, None, key)
    accepted = await world.act(
        world.gateway,
        "accept_event",
        lambda tx: accept_event(tx, workspace, submission, event_id=event_id, accepted_by="sim"),
    )
    if accepted is None:
        return "nobody hears whether it was accepted"
    world.broken += world.model.event_acknowledged(key or event_id, accepted.event_id)
    world.accepted[accepted.event_id] = (workspace, event)
    return f"{event} {accepted.event_id[:6]} accepted"


async def cancel(world: World, draws: Draws) -> str:
    """Cancel a run, also one that is stopping or over."""
    runs = [(ws, look) for ws, look in world.runs() if look.run.phase is not Phase.TERMINAL or draws.chance(0.1)]
    if not runs:
        return "there is no run"
    workspace, look = draws.choose(runs, lambda one: one[1].run.run_id)
    run_id = look.run.run_id
    try:
        reply = await world.act(
            world.gateway, "cancel_run", lambda tx: cancel_run(tx, workspace, run_id, by="operator")
        )
    except Refusal as refusal:
        world.saw(f"refused: {refusal.code}")
        return f"{world.run_name(run_id)}: refused, {refusal.code}"
    if reply is None:
        return f"nobody hears whether {world.run_name(run_id)} is cancelled"
    world.saw(f"cancel: {reply.outcome.value}")
    if not stop_stands(world.run_look(workspace, run_id), reply.outcome):
        world.broken.append(Broken("an acknowledged stop stands", f"{world.run_name(run_id)}: {reply}"))
    return f"{world.run_name(run_id)}: {reply.outcome.value}"


async def rediscover(world: World, draws: Draws) -> str:
    """Let an operator have a blocked run looked at again, or one that is not blocked."""
    blocked = [(ws, look) for ws, look in world.runs() if look.run.phase is Phase.DEFINITION_BLOCKED]
    runs = blocked if blocked and draws.chance(0.9) else world.runs()
    if not runs:
        return "there is no run"
    workspace, look = draws.choose(runs, lambda one: one[1].run.run_id)
    run_id, item_id = look.run.run_id, world.gateway.keyspace.mint()
    try:
        reply = await world.act(
            world.gateway,
            "rediscover_run",
            lambda tx: rediscover_run(tx, workspace, run_id, by="operator", item_id=item_id),
        )
    except Refusal as refusal:
        world.saw(f"refused: {refusal.code}")
        return f"{world.run_name(run_id)}: refused, {refusal.code}"
    if reply is None:
        return f"nobody hears whether {world.run_name(run_id)} is looked at again"
    world.saw(f"rediscover: {reply.outcome.value}")
    return f"{world.run_name(run_id)}: {reply.outcome.value}"


async def resolve(world: World, draws: Draws) -> str:
    """Let an operator settle an Unknown attempt, sometimes with a wrong idea of it."""
    if world.resolutions and draws.chance(0.3):
        workspace, target, command, key = draws.choose(world.resolutions, str)
        command = draws.one_of(_commands(target.step_id)) if draws.chance(0.5) else command
    elif not unresolved(world):
        return "nothing is unresolved"
    else:
        workspace, run_id, direction, step_id, generation = draws.choose(unresolved(world), str)
        target = Target(run_id, Direction(direction), step_id, generation + draws.chance(0.1))
        command, key = draws.one_of(_commands(step_id)), f"resolve-{draws.number(1, 999)}"
        world.resolutions.append((workspace, target, command, key))
    if isinstance(command, SupplySuccess) and target.direction is Direction.FORWARD:
        world.model.value_said(target.run_id, target.step_id, command.value)
    run_name = world.run_name(target.run_id)
    name = f"{type(command).__name__} {target.step_id} (generation {target.generation}) of {run_name}"
    try:
        made = await world.act(
            world.gateway,
            "resolve_attempt",
            lambda tx: resolve_attempt(
                tx, workspace, target, command, key=key, by="operator", value_bytes_max=OPTIONS.value_bytes_max
            ),
        )
    except Refusal as refusal:
        world.saw(f"refused: {refusal.code}")
        return f"{name}: refused, {refusal.code}"
    if made is None:
        return f"{name}: nobody hears what came of it"
    world.saw(f"resolve: {made.record.command}{' again' if made.is_replay else ''}")
    return f"{name}: {made.record.attempt_state.value}"


def _commands(step_id: str) -> tuple[Command, ...]:
    return (
        SupplySuccess(b'"op:%s"' % step_id.encode()),
        DeclareFailure(FailureRecord(category="operator", message="declared")),
        RetryAttempt(),
    )


def unresolved(world: World) -> list[tuple[str, str, int, str, int]]:
    """Return the attempts that wait for an operator: workspace, run, direction, step and generation of each."""
    return [at for workspace in world.workspaces for at, _ in world.look().records(UNRESOLVED, workspace)]


MAKERS: Mapping[Kind, Maker] = {
    Kind.SUBMIT: submit,
    Kind.INVOKE: invoke,
    Kind.CANCEL: cancel,
    Kind.REDISCOVER: rediscover,
    Kind.RESOLVE: resolve,
}
"""The makers of these kinds of moves."""
