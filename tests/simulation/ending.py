"""The end of a scenario: faults stop, and every run must end, or wait visibly for somebody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from keyspace.layout import ITEM
from keyspace.lifecycle import Phase
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.blockers import blocker_key
from keyspace.waiting import waiting_for
from simulation.callers import resolve, unresolved
from simulation.code import mended
from simulation.dispatching import OPTIONS
from simulation.fleet import SimWorker
from simulation.flowing import end_worker, go_on, recover_leases
from simulation.invoking import must_have_answered_invocations
from simulation.model import Broken, RunLook
from simulation.scenario import Draws
from simulation.world import EVENTS, World, as_broken, instant_of

__all__ = ["Tell", "finish"]

ROUNDS_MAX = 400
"""Rounds of the end; a scenario needs a tenth of it."""
FLOW_STEPS_MAX = 200
RESOLUTIONS_MAX = 60
"""Unknown attempts an operator settles at the end; a retry may be lost in its turn, so there is no exact number."""
Tell = Callable[[int, str, str], None]


async def finish(world: World, tell: Tell) -> None:
    """Stop the faults; then every run must end, or wait visibly; and end when the code is mended and an operator decides."""
    world.ids.begin(world.seed, 1_000_000)
    world.faults.arm(())
    try:
        for process in (world.gateway, *(one.process for one in world.dispatchers)):
            await process.store.land()
        _staff(world, "end")
        await _rest(world, is_mended=False)
        await world.check_all()
        _must_rest(world)
        _must_have_started(world)
        must_have_answered_invocations(world)
        await _mend(world)
        await _settle_unknown(world)
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing expected it, and the trace tells of it
        world.broken.append(as_broken(error))
    ends = ", ".join(f"{world.run_name(look.run.run_id)} {look.run.status}" for _, look in world.runs())
    tell(0, "faults stop, everything comes to rest", ends)


def _staff(world: World, name: str) -> None:
    """Start a worker of the newest code in each workspace; the older ones stay as they are."""
    for workspace in world.workspaces:
        instance = Draws(world.seed, f"{name}/{workspace}").bytes(16).hex()
        world.workers.append(SimWorker(f"w-{name}-{workspace}", workspace, world.versions[-1], instance, 4))


async def _mend(world: World) -> None:
    """Deploy code without duplicate step ids and send all others away: blocked runs must go on by themselves."""
    if world.broken or not any(look.run.phase is Phase.DEFINITION_BLOCKED for _, look in world.runs()):
        return
    world.versions.append(replace(mended(world.versions[-1]), release="mended"))
    for worker in list(world.workers):
        end_worker(world, worker)
    _staff(world, f"mended{len(world.versions)}")
    await _rest(world, is_mended=True)
    for _, look in world.runs():
        if not world.broken and look.run.phase is Phase.DEFINITION_BLOCKED:
            sentence = f"{world.run_name(look.run.run_id)} is still blocked, and its code is mended"
            world.broken.append(Broken("a blocked run goes on when its code is mended", sentence))


def _must_rest(world: World) -> None:
    """Every run has ended, or waits visibly for somebody."""
    for workspace, look in world.runs():
        if not world.broken and not _may_rest(world, workspace, look):
            sentence = f"{world.run_name(look.run.run_id)} is {look.run.phase.value} and waits for nobody"
            world.broken.append(Broken("every run ends or waits visibly", sentence))


def _must_have_started(world: World) -> None:
    """Every acknowledged event has started each function that it names, once (FILLED-IN 10, C1 and C2)."""
    started = sorted((look.run.event_id, look.run.function) for _, look in world.runs() if look.run.parent is None)
    for event_id, (_, event) in world.accepted.items():
        functions = [function for run_event_id, function in started if run_event_id == event_id]
        if functions != sorted(EVENTS[event]):
            world.broken.append(Broken("an acknowledged event starts its runs", f"{event} {event_id}: {functions}"))


async def _settle_unknown(world: World) -> None:
    """Let an operator settle what is unknown, one after the other; then every run must end."""
    for number in range(RESOLUTIONS_MAX):
        if world.broken or not unresolved(world):
            break
        await resolve(world, Draws(world.seed, f"end/{number}"))
        await _rest(world, is_mended=False)
        await _mend(world)
    for _, look in world.runs():
        if not world.broken and look.run.phase is not Phase.TERMINAL:
            sentence = f"{world.run_name(look.run.run_id)} is {look.run.phase.value} when all is settled"
            world.broken.append(Broken("every run ends", sentence))


async def _rest(world: World, *, is_mended: bool) -> None:
    """Let time pass until nothing is left to do; without mended code, probes of blocked runs are left for later."""
    for _ in range(ROUNDS_MAX):
        done = await go_on(world, FLOW_STEPS_MAX, is_forced=True)
        if world.broken:
            return
        left = _work_left(world, is_mended)
        if done < FLOW_STEPS_MAX and not left:
            return
        instants = [at_ms for item in left if (at_ms := instant_of(item)) is not None]
        now_ms = world.clock.now_ms()
        next_ms = min((at_ms for at_ms in instants if at_ms > now_ms), default=now_ms + OPTIONS.renew_every_ms)
        world.clock.advance(_patience_ms(world, next_ms - now_ms))
        for worker in list(world.workers):
            world.tick_worker(worker)
        for session in world.sessions():
            if session.is_open:
                world.tick_session(session)
        await recover_leases(world)
    left_text = ", ".join(f"{item.kind.value} {item.state.value}" for item in _work_left(world, is_mended))
    world.broken.append(
        Broken("everything comes to rest", f"work is left after {ROUNDS_MAX} rounds: {left_text or 'frames'}")
    )


def _patience_ms(world: World, wanted_ms: int) -> int:
    """Return how long may pass at once: from renewal to renewal while somebody holds a lease, else to the next instant."""
    return max(1, min(wanted_ms, OPTIONS.renew_every_ms) if world.leased_shards() else wanted_ms)


def _work_left(world: World, is_mended: bool) -> list[ItemRecord]:
    items = [item for workspace in world.workspaces for _, item in world.look().records(ITEM, workspace)]
    return [item for item in items if is_mended or item.kind is not WorkKind.DEFINITION_PROBE]


def _may_rest(world: World, workspace: str, look: RunLook) -> bool:
    if look.run.phase is Phase.TERMINAL:
        return True
    look_now = world.look()
    item = None if look.run.item_id is None else look_now.record(ITEM.at(workspace, look.run.item_id))
    blocker = look_now.record(blocker_key(workspace, look.run.run_id))
    waiting = waiting_for(look.run, item, world.clock.now_ms(), blocker=blocker)
    return waiting is not None and waiting.word in ("operator", "fix", "child")
