"""Direct invocations: callers who start one function, by a name that may be of nothing, with a key that may have been used.

RFD 2, "An operator or a tool may start one function directly with an input": one invocation, one run of the one function that it
names, or a durable answer that says what is missing; and no wait ever meets the event behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from keyspace.errors import Refusal
from keyspace.layout import EXPANSION
from keyspace.records.event import ExpansionState, NoMatch
from keyspace.transitions.invoke_function import Invocation, check_invocation, invoke_function, invoked_run_id
from keyspace.transitions.names import INVOKE_BINDING
from simulation.code import APPLICATION, FUNCTIONS
from simulation.model import Broken
from simulation.scenario import Draws
from simulation.world import World

__all__ = ["Invoked", "invoke", "must_have_answered_invocations"]

TARGETS = (
    *((APPLICATION, function) for function in FUNCTIONS),
    *((APPLICATION, function) for function in FUNCTIONS),
    (APPLICATION, "withdrawn"),
    ("warehouse", FUNCTIONS[0]),
)
"""Whom callers name: mostly what there is, sometimes a function or an application that no manifest declares."""


@dataclass(frozen=True)
class Invoked:
    """What a caller asked for, and the id of the event that its first try would have become."""

    workspace: str
    event_id: str
    asked: Invocation

    @property
    def claim(self) -> str:
        """What the model knows the event by. An operation of its own: an event may have been submitted with the same key."""
        return f"invoke {self.asked.key or self.event_id}"


async def invoke(world: World, draws: Draws) -> str:
    """Invoke a function, or invoke again what was invoked before, perhaps with another input."""
    again = [one for one in world.invocations if one.asked.key is not None]
    is_other = False
    if again and draws.chance(0.45):
        former = draws.choose(again, lambda one: one.event_id)
        is_other = draws.chance(0.4)
        asked = former.asked._replace(payload=former.asked.payload[:-1] + b'+"') if is_other else former.asked
        invoked = Invoked(former.workspace, world.gateway.keyspace.mint(), asked)
    else:
        invoked = _new(world, draws)
        world.invocations.append(invoked)
    return await _call(world, invoked, is_other=is_other)


def _new(world: World, draws: Draws) -> Invoked:
    workspace, event_id = draws.one_of(world.workspaces), draws.bytes(16).hex()
    application, function = draws.one_of(TARGETS)
    key = f"key-{event_id[:6]}" if draws.chance(0.6) else None
    taken = [key for ws, _, key, _ in world.submissions if key is not None and ws == workspace]
    used = {one.asked.key for one in world.invocations}
    free = [key for key in taken if key not in used]
    if key is not None and free and draws.chance(0.3):
        key = draws.choose(free, str)
    return Invoked(workspace, event_id, Invocation(application, function, b'"%s"' % event_id[:6].encode(), None, key))


async def _call(world: World, invoked: Invoked, *, is_other: bool) -> str:
    asked = invoked.asked
    check_invocation(asked)
    is_known = invoked.claim in world.model.events
    name = f"{asked.application}.{asked.function}"
    try:
        accepted = await world.act(
            world.gateway,
            "invoke_function",
            lambda tx: invoke_function(tx, invoked.workspace, asked, event_id=invoked.event_id, accepted_by="sim"),
        )
    except Refusal as refusal:
        world.saw(f"invoke: {refusal.code}")
        if not is_other and invoked.claim not in world.contested:
            world.broken.append(Broken("an invocation is not refused", f"{name}: {refusal.code}"))
        return f"{name}: refused, {refusal.code}"
    if accepted is None:
        if is_other:
            world.contested.add(invoked.claim)
        return f"{name}: nobody hears whether it was accepted"
    if is_other:
        if is_known:
            world.broken.append(Broken("one key one content", f"{name}: {asked.key} was accepted with another input"))
        # Nobody heard of the first one, and so it never was: this one holds the key.
        world.invocations[:] = [one for one in world.invocations if one.claim != invoked.claim]
        world.invocations.append(invoked)
    world.saw(f"invoke: {'again' if accepted.is_replay else 'accepted'}")
    world.broken += world.model.event_acknowledged(invoked.claim, accepted.event_id)
    world.invoked[accepted.event_id] = invoked
    return f"{name} {accepted.event_id[:6]} accepted"


def must_have_answered_invocations(world: World) -> None:
    """Every acknowledged invocation has its one run, or says durably what is missing."""
    look = world.look()
    for event_id, invoked in world.invoked.items():
        asked = invoked.asked
        runs = [run.run for _, run in world.runs() if run.run.event_id == event_id and run.run.parent is None]
        expansion = look.record(EXPANSION.at(invoked.workspace, event_id))
        found = None if expansion is None or expansion.state is not ExpansionState.COMPLETE else expansion
        missing = _missing(asked)
        world.saw(f"invoke: no {missing.value}" if missing else "invoke: its run")
        expected_id = invoked_run_id(invoked.workspace, event_id, asked.application)
        started = [(run.run_id, run.application, run.function, run.binding) for run in runs]
        expected = [] if missing else [(expected_id, asked.application, asked.function, INVOKE_BINDING)]
        if found is None or found.missing is not missing or started != expected:
            sentence = f"{asked.application}.{asked.function} {event_id}: {started}, {found}"
            world.broken.append(Broken("an acknowledged invocation is answered", sentence))


def _missing(asked: Invocation) -> NoMatch | None:
    if asked.application != APPLICATION:
        return NoMatch.APPLICATION
    return None if asked.function in FUNCTIONS else NoMatch.FUNCTION
