"""Playing a scenario: each kind of move as a function, then the end, when faults stop and everything must come to rest."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
from ryusen.protocol.frames import (
    Answer,
    Complete,
    Failed,
    Failure,
    GiveBack,
    Hello,
    NotFound,
    Ready,
    Renew,
    Result,
    Succeeded,
    WorkRef,
    decode_worker_frame,
    encode_frame,
)

from keyspace.errors import Refusal
from keyspace.layout import DUE_APP, ITEM, UNRESOLVED, shard_of_workspace
from keyspace.lifecycle import Phase
from keyspace.limits import BUCKET_MS, RENEW_ITEMS_MAX
from keyspace.queue.leases import expired_leases
from keyspace.queue.pointers import clear_due_pointer, due_in_application, due_in_shard
from keyspace.records.run import FailureRecord
from keyspace.records.work import Direction, ItemRecord, Lane, LaneKind, WorkKind
from keyspace.transitions.accept_event import Submission, accept_event
from keyspace.transitions.blockers import blocker_key
from keyspace.transitions.expand_event import Expanded, expand_event
from keyspace.transitions.lose_lease import lose_lease
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
from keyspace.tx import Tx
from keyspace.waiting import waiting_for
from services.dispatcher.effects import Renewal
from services.dispatcher.server_handlers import server_handlers
from services.lanes.duebook import LaneOf
from services.lanes.handlers import Handler, Handlers
from services.lanes.turn import find_items
from simulation.code import APPLICATION, PAIRS, mended
from simulation.coverage import edges_noticed
from simulation.dispatching import OPTIONS, SimSession
from simulation.fleet import Line, SimWorker
from simulation.invoking import invoke, must_have_answered_invocations
from simulation.model import FORGED, Broken, RunLook, stop_stands
from simulation.scenario import Draws, Kind, Move, Scenario
from simulation.world import EVENTS, World, as_broken, instant_of

__all__ = ["Played", "TraceLine", "play"]

ROUNDS_MAX = 400
"""Rounds of the end; a scenario needs a tenth of it."""
FLOW_STEPS_MAX = 200
RESOLUTIONS_MAX = 60
"""Unknown attempts an operator settles at the end; a retry may be lost in its turn, so there is no exact number."""
JUMPS_MS = (20, 300, 1_000, 5_000, OPTIONS.lease_ms + 1_000, 60_000)
STARTING = (*EVENTS, "placed", "returned", "placed", "returned")
SERVER_HANDLERS = server_handlers(value_bytes_max=OPTIONS.value_bytes_max)
SETS_MS = (-400, -150, 150, 400, -5_000, 5_000)


@dataclass(frozen=True)
class TraceLine:
    """One step as a person reads it."""

    number: int
    at_ms: int
    move: str
    happened: str


@dataclass
class Played:
    """What came of a scenario.

    Attributes:
        scenario: what was played.
        broken: the first rule that was found broken, or None.
        trace: the steps, as far as it was played.
        digest: of the trace and of everything written: equal for equal scenarios.
        seen: rare things, counted.
        commits: how many transactions landed.
    """

    scenario: Scenario
    broken: Broken | None = None
    trace: list[TraceLine] = field(default_factory=list)
    digest: str = ""
    seen: Counter[str] = field(default_factory=Counter)
    commits: int = 0


async def play(scenario: Scenario) -> Played:
    """Play a scenario to its end, or to the first rule that does not hold."""
    world = World(scenario.seed)
    played = Played(scenario, seen=world.seen)
    begun_ms = world.clock.now_ms()

    def tell(number: int, move: str, happened: str) -> None:
        notes = "; ".join(part for part in (happened, *world.notes, *world.faults.struck) if part)
        played.trace.append(TraceLine(number, world.clock.now_ms() - begun_ms, move, notes))
        world.notes.clear()

    with edges_noticed(world.seen):
        try:
            await world.set_up()
            for move in scenario.moves:
                await _step(world, move, tell)
                if world.broken:
                    break
            if not world.broken:
                await _finish(world, tell)
        finally:
            world.tear_down()
    if world.broken:
        played.broken = world.broken[0]
        tell(0, "", f"BROKEN {world.broken[0].rule}: {world.broken[0].sentence}")
    text = "\n".join(f"{line.number} {line.at_ms} {line.move} {line.happened}" for line in played.trace)
    played.digest = hashlib.sha256(f"{text}\n{world.engine.digest}".encode()).hexdigest()
    played.commits = world.engine.commit_count
    return played


Tell = Callable[[int, str, str], None]


async def _step(world: World, move: Move, tell: Tell) -> None:
    world.ids.begin(world.seed, move.number)
    world.faults.arm(move.faults)
    draws = Draws(world.seed, str(move.number))
    happened = ""
    try:
        happened = await MAKERS[move.kind](world, draws)
        await _calm(world)
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing expected it, and the trace tells of it
        world.broken.append(as_broken(error))
    tell(move.number, move.text, happened)


async def _calm(world: World) -> None:
    """End the move: its faults are over, and what nobody has an end of is forgotten."""
    world.faults.arm(())
    world.forget_gone()
    await world.check_sometimes()


# -- the kinds of moves

Maker = Callable[[World, Draws], Awaitable[str]]
MAKERS: dict[Kind, Maker] = {}


def makes(kind: Kind) -> Callable[[Maker], Maker]:
    """Declare the function that makes a kind of move."""

    def declare(maker: Maker) -> Maker:
        MAKERS[kind] = maker
        return maker

    return declare


@makes(Kind.SUBMIT)
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


makes(Kind.INVOKE)(invoke)


@makes(Kind.FLOW)
async def flow(world: World, draws: Draws) -> str:
    """Let everything that can go on do so for a while, in order, as on a quiet day."""
    limit = draws.number(3, 40)
    return f"{await go_on(world, limit)} steps"


@makes(Kind.LEASE)
async def lease(world: World, draws: Draws) -> str:
    """Let a dispatcher lease work of a lane that a due pointer names."""
    workspace = draws.one_of(world.workspaces)
    lanes = _due_lanes(world, workspace)
    server = sorted(_server_items(world, workspace))
    if server and (not lanes or draws.chance(0.3)):
        return await _serve(world, workspace, draws.choose(server, str))
    if not lanes:
        return "nothing to lease"
    lane = draws.choose(lanes, str)
    sessions = _takers(world, workspace, lane)
    if not sessions:
        return "nobody has a place"
    first = draws.choose(sessions, lambda one: one.name)
    same = [one for one in sessions if one.process is first.process]
    return await _lease(world, workspace, lane, [first, draws.choose(same, lambda one: f"second {one.name}")])


@makes(Kind.TO_WORKER)
async def to_worker(world: World, draws: Draws) -> str:
    """Let the oldest frame on its way to some worker arrive."""
    workers = [one for one in world.workers if one.line is not None and _has_mail(one.line)]
    if not workers:
        return "nothing is on its way"
    worker = draws.choose(workers, lambda one: one.name)
    return _deliver(world, worker)


@makes(Kind.TO_SERVER)
async def to_server(world: World, draws: Draws) -> str:
    """Let the oldest frame of some connection reach its dispatcher."""
    lines = [line for line in world.lines if line.to_server]
    if not lines:
        return "nothing is on its way"
    return await world.server_hears(draws.choose(lines, lambda one: one.name))


@makes(Kind.DISPATCHER)
async def dispatcher(world: World, draws: Draws) -> str:
    """Let some session do one of the things it has to do."""
    busy = [one for one in world.sessions() if one.pending or not one.is_open]
    cut = [one for one in world.sessions() if one.is_open and one.line.is_cut]
    if cut and (not busy or draws.chance(0.3)):
        return world.server_notices(draws.choose(cut, lambda one: one.name))
    if not busy:
        sessions = world.sessions()
        return world.tick_session(draws.choose(sessions, lambda one: one.name)) if sessions else "nothing to do"
    return await world.session_does(draws.choose(busy, lambda one: one.name), draws)


@makes(Kind.WORKER)
async def worker_move(world: World, draws: Draws) -> str:
    """Let some worker go on: user code, a lost connection, the time."""
    if not world.workers:
        return "there is no worker"
    worker = draws.choose(world.workers, lambda one: one.name)
    tasks = world.ready_tasks(worker)
    if worker.line is None:
        world.open_line(worker, draws.choose(world.dispatchers, lambda one: one.process.name))
        return f"{worker.name} connects"
    if worker.line.is_cut and (not tasks or draws.chance(0.5)):
        return world.notice_cut(worker)
    if tasks:
        return world.worker_does(worker, draws.choose(tasks, lambda one: one.name))
    return world.tick_worker(worker)


@makes(Kind.TIME)
async def time_passes(world: World, draws: Draws) -> str:
    """Let time pass: a little, or until the next thing is due by itself."""
    next_ms = world.next_instant_ms()
    delta_ms = draws.one_of(JUMPS_MS)
    if next_ms is not None and draws.chance(0.5):
        delta_ms = next_ms - world.clock.now_ms()
    world.clock.advance(delta_ms)
    for worker in world.workers:
        world.tick_worker(worker)
    return f"{delta_ms} ms pass"


@makes(Kind.HEARTBEAT)
async def heartbeat(world: World, draws: Draws) -> str:
    """Let the time between two renewals pass, and every worker renew what it holds."""
    world.clock.advance(OPTIONS.renew_every_ms + 1)
    for worker in world.workers:
        world.tick_worker(worker)
    for line in list(world.lines):
        while line.to_server and not line.is_cut:
            await world.server_hears(line)
    for session in world.sessions():
        for effect in [one for one in session.pending if isinstance(one, Renewal)]:
            await world.guard(session.process, partial(session.do, effect))
    return "every worker renews"


@makes(Kind.CLOCK_SET)
async def clock_set(world: World, draws: Draws) -> str:
    """Set the wall clock forward or back, as a bad correction would."""
    delta_ms = draws.one_of(SETS_MS)
    world.clock.step(delta_ms)
    return f"the clock is set by {delta_ms} ms"


@makes(Kind.RECOVER)
async def recover(world: World, draws: Draws) -> str:
    """Let a dispatcher look for expired leases."""
    return f"{await _recover(world)} leases recovered"


@makes(Kind.CUT)
async def cut(world: World, draws: Draws) -> str:
    """Break a connection; part of what had left a session may never arrive."""
    lines = [line for line in world.lines if not line.is_cut]
    if not lines:
        return "there is no connection"
    line = draws.choose(lines, lambda one: one.name)
    session = line.session
    if session is not None:
        for _ in range(draws.number(0, len(session.outbox))):
            session.send_one()
    if draws.chance(0.7):
        line.to_worker.clear()
    if draws.chance(0.5):
        line.to_server.clear()
    line.is_cut = True
    return f"{line.name} breaks"


@makes(Kind.HURRY)
async def hurry(world: World, draws: Draws) -> str:
    """Let a worker give its connection up and open another, while what it sent by the former one is still on its way."""
    workers = [one for one in world.workers if one.line is not None]
    if not workers:
        return "nobody is connected"
    worker = draws.choose(workers, lambda one: one.name)
    assert worker.line is not None
    former = worker.line
    former.is_cut = True
    world.notice_cut(worker)
    world.open_line(worker, draws.choose(world.dispatchers, lambda one: one.process.name))
    return f"{worker.name} leaves {former.name} with {len(former.to_server)} frames under way and connects anew"


@makes(Kind.START_WORKER)
async def start_worker(world: World, draws: Draws) -> str:
    """Start a worker process with the newest code, or with older."""
    if len(world.workers) >= 4:
        return "there are enough"
    code = world.deploy(draws)
    name = f"w{draws.number(10, 99)}{code.release or 'x'}"
    worker = SimWorker(
        name, draws.one_of(world.workspaces), code, draws.bytes(16).hex(), draws.number(1, 3), draws.number(0, 1)
    )
    world.workers.append(worker)
    world.open_line(worker, draws.choose(world.dispatchers, lambda one: one.process.name))
    return f"{name} starts in {worker.workspace}"


@makes(Kind.KILL_WORKER)
async def kill_worker(world: World, draws: Draws) -> str:
    """Kill a worker process; what it had sent may still arrive."""
    if not world.workers:
        return "there is no worker"
    worker = draws.choose(world.workers, lambda one: one.name)
    _end(world, worker)
    return f"{worker.name} is killed"


@makes(Kind.LOSE)
async def lose(world: World, draws: Draws) -> str:
    """Kill or cut off a worker that runs something, until its leases have run out and are recovered."""
    running = [one for one in world.workers if any(task.is_callback for task in one.tasks)]
    if not running or draws.chance(0.4):
        running = [one for one in world.workers if one.tasks or (one.line is not None and _is_busy(one.line))]
    if not running:
        return "nothing runs"
    worker = draws.choose(running, lambda one: one.name)
    word = "is killed" if draws.chance(0.4) else "is cut off"
    if word == "is killed":
        _end(world, worker)
    elif worker.line is not None:
        worker.line.is_cut = True
        worker.line.to_server.clear()
        worker.line.to_worker.clear()
        session = worker.line.session
        if session is not None and draws.chance(0.6):
            # What is on its way out has left; so nothing tells the dispatcher that it never arrived.
            while session.outbox:
                session.send_one()
            worker.line.to_worker.clear()
    world.clock.advance(OPTIONS.lease_ms + 2 * BUCKET_MS)
    return f"{worker.name} {word} for long, {await _recover(world)} leases recovered"


@makes(Kind.DRAIN_WORKER)
async def drain_worker(world: World, draws: Draws) -> str:
    """Tell a worker to leave when its work is done."""
    if not world.workers:
        return "there is no worker"
    worker = draws.choose(world.workers, lambda one: one.name)
    effects = worker.core.drain(world.clock.monotonic_ms(), 60_000)
    worker.perform(effects, lambda ref: world.begin_effect(worker, ref))
    if worker.is_gone:
        worker.line = None
    return f"{worker.name} drains"


@makes(Kind.STOP_DISPATCHER)
async def stop_dispatcher(world: World, draws: Draws) -> str:
    """Kill a dispatcher and start it again."""
    chosen = draws.choose(world.dispatchers, lambda one: one.process.name)
    await world.restart(chosen.process)
    return f"{chosen.process.name} is killed"


@makes(Kind.LEAVE)
async def leave(world: World, draws: Draws) -> str:
    """Let a session tell its worker to go elsewhere."""
    sessions = [one for one in world.sessions() if one.is_open]
    if not sessions:
        return "there is no session"
    session = draws.choose(sessions, lambda one: one.name)
    session.perform(session.core.leave())
    return f"{session.name} sends its worker away"


@makes(Kind.CANCEL)
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


@makes(Kind.REDISCOVER)
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


@makes(Kind.RESOLVE)
async def resolve(world: World, draws: Draws) -> str:
    """Let an operator settle an Unknown attempt, sometimes with a wrong idea of it."""
    if world.resolutions and draws.chance(0.3):
        workspace, target, command, key = draws.choose(world.resolutions, str)
        command = draws.one_of(_commands(target.step_id)) if draws.chance(0.5) else command
    elif not _unresolved(world):
        return "nothing is unresolved"
    else:
        workspace, run_id, direction, step_id, generation = draws.choose(_unresolved(world), str)
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


# -- hostile and late frames


@makes(Kind.DUPLICATE)
async def duplicate(world: World, draws: Draws) -> str:
    """Let a frame that a worker has sent before come once more by its present connection."""
    workers = [one for one in world.workers if one.line is not None and one.said and not one.line.is_cut]
    if not workers:
        return "nobody has said anything"
    worker = draws.choose(workers, lambda one: one.name)
    frames = [data for data in worker.said if not isinstance(decode_worker_frame(data), Hello)]
    if not frames or worker.line is None:
        return "nobody has said anything"
    data = draws.choose(frames, lambda one: one.decode())
    worker.line.to_server.append(data)
    return f"{worker.name}: {type(decode_worker_frame(data)).__name__.lower()} again"


@makes(Kind.REORDER)
async def reorder(world: World, draws: Draws) -> str:
    """Let the frames of a connection arrive in another order."""
    lines = [line for line in world.lines if len(line.to_server) > 1 and line.has_hello]
    if not lines:
        return "no two frames are on their way"
    line = draws.choose(lines, lambda one: one.name)
    frames = sorted(line.to_server, key=lambda data: hashlib.blake2b(data + draws.bytes(4)).digest())
    line.to_server.clear()
    line.to_server.extend(frames)
    return f"{len(frames)} frames of {line.name} are mixed"


@makes(Kind.FORGE)
async def forge(world: World, draws: Draws) -> str:
    """Let a worker send a frame that names work it was never given: something said before, with one part changed."""
    senders = [one for one in world.workers if one.line is not None and not one.line.is_cut and one.line.has_hello]
    refs = sorted({ref for worker in world.workers for ref in worker.refs()}, key=str)
    said = [
        data for worker in world.workers for data in worker.said if isinstance(decode_worker_frame(data), FORGEABLE)
    ]
    if not senders or not (refs or said):
        return "nothing to forge from"
    sender = draws.choose(senders, lambda one: one.name)
    assert sender.line is not None
    part = draws.one_of(("token", "item", "run", "step", "generation"))
    if refs and (draws.chance(0.7) or not said):
        ref = _changed(draws.choose(refs, str), part, draws)
        forged = draws.one_of(_frames_about(ref, draws.bytes(16).hex()))
    else:
        forged = _twisted(decode_worker_frame(draws.choose(said, lambda one: one.decode())), part, draws)
    sender.line.to_server.append(encode_frame(forged))
    return f"{sender.name} forges the {part} of a {type(forged).__name__.lower()}"


Forgeable = Result | Answer | NotFound | GiveBack | Ready | Renew
FORGEABLE = (Result, Answer, NotFound, GiveBack, Ready, Renew)


def _changed(ref: WorkRef, part: str, draws: Draws) -> WorkRef:
    stranger = draws.bytes(16).hex()
    if part == "step":
        return msgspec.structs.replace(ref, step=None if ref.step is None else "elsewhere", token=stranger)
    if part == "generation":
        return msgspec.structs.replace(ref, generation=ref.generation + 1)
    return msgspec.structs.replace(ref, **{part: stranger})


def _frames_about(ref: WorkRef, request: str) -> list[Forgeable]:
    """Everything a worker might say of a delivery, with values that give it away."""
    success, failure = (
        Succeeded(value=msgspec.Raw(FORGED)),
        Failed(failure=Failure(category="forged", message="forged")),
    )
    return [
        Result(request=request, ref=ref, outcome=success),
        Result(request=request, ref=ref, outcome=failure),
        Result(request=request, ref=ref, outcome=success, following=f"{request}+"),
        Answer(request=request, ref=ref, ending=Complete(value=msgspec.Raw(FORGED))),
        NotFound(request=request, ref=ref),
        GiveBack(request=request, ref=ref),
    ]


def _twisted(frame: object, part: str, draws: Draws) -> Forgeable:
    """Return something that was said, about other work."""
    stranger = draws.bytes(16).hex()
    if isinstance(frame, Renew):
        return Renew(requests=[*frame.requests, stranger][:RENEW_ITEMS_MAX])
    if isinstance(frame, Ready):
        return Ready(request=stranger)
    assert isinstance(frame, Result | Answer | NotFound | GiveBack)
    ref = _changed(frame.ref, part, draws)
    if isinstance(frame, Result):
        return Result(request=stranger, ref=ref, outcome=Succeeded(value=msgspec.Raw(FORGED)))
    return msgspec.structs.replace(frame, ref=ref, request=stranger)


@makes(Kind.CLEAR)
async def clear(world: World, draws: Draws) -> str:
    """Let a dispatcher clear a due pointer of a second that is over."""
    workspace = draws.one_of(world.workspaces)
    bucket = world.clock.now_ms() // BUCKET_MS
    pointers = await world.act(
        world.gateway,
        "due_in_application",
        lambda tx: due_in_application(tx, workspace, APPLICATION, from_bucket=0, to_bucket=bucket - 1, limit=50),
    )
    if not pointers:
        return "no pointer is over"
    due, _, lane = draws.choose(pointers, str)
    gone = await world.act(world.gateway, "clear_due_pointer", lambda tx: clear_due_pointer(tx, workspace, lane, due))
    return f"cleared: {gone}"


# -- what moves and the end share


def _has_mail(line: Line) -> bool:
    return bool(line.to_worker) or (line.session is not None and line.session.is_open and bool(line.session.outbox))


def _is_busy(line: Line) -> bool:
    return bool(line.to_server) or _has_mail(line)


def _deliver(world: World, worker: SimWorker) -> str:
    line = worker.line
    assert line is not None
    if not line.to_worker and line.session is not None:
        line.session.send_one()
    return world.worker_hears(worker)


def _end(world: World, worker: SimWorker) -> None:
    if worker.line is not None:
        worker.line.is_cut = True
        worker.line = None
    world.workers.remove(worker)


def _takers(world: World, workspace: str, lane: Lane) -> list[SimSession]:
    """Return the sessions with a place for the lane's work; compensation has places of its own."""
    is_undo = lane.direction is Direction.COMPENSATION
    takers = [
        one
        for one in world.sessions()
        if one.is_open and one.workspace == workspace and one.core.free_count(one.now_ms(), is_undo=is_undo) > 0
    ]
    if is_undo and any(one.core.free_count(one.now_ms()) == 0 for one in takers):
        world.saw("leased: compensation in a reserved place")
    return takers


def _due_lanes(world: World, workspace: str) -> list[Lane]:
    now_bucket = world.clock.now_ms() // BUCKET_MS
    lanes: dict[Lane, None] = {}
    for (_, kind, application, bucket, function, direction), _ in world.look().records(DUE_APP, workspace):
        if bucket <= now_bucket:
            lanes[Lane(LaneKind(kind), application, function, Direction(direction))] = None
    return list(lanes)


async def _lease(world: World, workspace: str, lane: Lane, sessions: list[SimSession]) -> str:
    process = sessions[0].process
    chosen = next(one for one in world.dispatchers if one.process is process)
    return str(await world.guard(process, lambda: chosen.lease(workspace, lane, sessions)))


def _server_items(world: World, workspace: str) -> list[str]:
    """Return the items of server lanes that have vested."""
    now_ms = world.clock.now_ms()
    return [
        at[1]
        for at, item in world.look().records(ITEM, workspace)
        if item.where.kind.is_server and item.vesting_ms <= now_ms
    ]


async def _serve(world: World, workspace: str, item_id: str) -> str:
    """Let a server process handle one of its items, found as it finds them."""
    item = world.look().record(ITEM.at(workspace, item_id))
    if item is None:
        return "work that is done"
    lane, bucket, shard = item.where, world.clock.now_ms() // BUCKET_MS, shard_of_workspace(workspace)
    pointers = await world.act(
        world.gateway,
        "due_in_shard",
        lambda tx: due_in_shard(tx, lane.kind, shard, from_bucket=0, to_bucket=bucket, limit=50),
    )
    if not any(pointer[1] == workspace for pointer in pointers or ()):
        world.broken.append(Broken("server work is found", f"no pointer leads to {item.kind.value} {item_id}"))
        return "work that nothing leads to"
    key = LaneOf(workspace, lane)
    found = await world.act(world.gateway, "find_items", lambda tx: find_items(tx, key, limit=50))
    if found is None or item_id not in [one.item_id for one in found.items]:
        return f"{item.kind.value} is not found now"
    handler = _handlers(world)[item.kind]
    outcome = await world.act(world.gateway, handler.transition, lambda tx: handler.handle(tx, workspace, item))
    word = getattr(outcome, "value", "") or ("nobody hears" if outcome is None else "done")
    world.saw(f"served: {item.kind.value} {word}")
    return f"{item.kind.value}: {word}"


def _handlers(world: World) -> Handlers:
    """Return what server processes do with each kind of work, the dispatcher's own table and fan-out's line."""

    async def expand(tx: Tx, workspace: str, item: ItemRecord) -> Expanded:
        return await expand_event(
            tx, workspace, item.target, item.item_id, run_timeout_default_ms=world.default_timeout_ms
        )

    return {**SERVER_HANDLERS, WorkKind.FANOUT: Handler("expand_event", expand)}


async def _recover(world: World) -> int:
    process = world.dispatchers[0].process
    bucket = world.clock.now_ms() // BUCKET_MS
    count = 0
    for shard in world.leased_shards():
        entries = await world.act(
            process,
            "scan_leases",
            lambda tx, s=shard: expired_leases(tx, s, before_bucket=bucket, limit=50),  # type: ignore[misc]
        )
        for entry in entries or ():
            await world.act(process, "lose_lease", lambda tx, e=entry: lose_lease(tx, e.workspace, e.item_id))  # type: ignore[misc]
            count += 1
    return count


async def go_on(world: World, limit: int, *, is_forced: bool = False) -> int:
    """Do what can be done without letting time pass, at most `limit` steps; return how many were done."""
    count = 0
    while count < limit:
        done = await _round(world, limit - count, is_forced)
        if not done or world.broken:
            return count
        count += done
    return count


async def _round(world: World, limit: int, is_forced: bool) -> int:
    """Let everybody do one thing."""
    count = 0
    for worker in list(world.workers):
        count += _worker_round(world, worker, is_forced)
        if worker.is_gone:
            worker.line = None
    world.forget_gone()
    for line in list(world.lines):
        if line.to_server and count < limit:
            await world.server_hears(line)
            count += 1
    for session in world.sessions():
        if count >= limit:
            break
        if session.is_open and session.line.is_cut and not session.line.to_server:
            world.server_notices(session)
            count += 1
        elif session.pending or not session.is_open:
            await world.session_does(session)
            count += 1
    world.forget_gone()
    if count:
        return count
    return await _queue_round(world)


def _worker_round(world: World, worker: SimWorker, is_forced: bool) -> int:
    line = worker.line
    if worker.is_gone:
        return 0
    if line is None:
        world.open_line(worker, world.dispatchers[0])
        return 1
    if _has_mail(line):
        _deliver(world, worker)
        return 1
    if line.is_cut:
        world.notice_cut(worker)
        return 1
    tasks = world.ready_tasks(worker, is_forced=is_forced)
    if tasks:
        world.worker_does(worker, tasks[0])
        return 1
    return 0


async def _queue_round(world: World) -> int:
    """Lease what is ready, when nobody has anything else to do."""
    count = 0
    for workspace in world.workspaces:
        for item_id in _server_items(world, workspace):
            await _serve(world, workspace, item_id)
            count += 1
        for lane in _due_lanes(world, workspace):
            sessions = _takers(world, workspace, lane)
            if not sessions:
                continue
            before = world.engine.commit_count
            mates = [one for one in sessions if one.process is sessions[0].process]
            await _lease(world, workspace, lane, mates[:2])
            count += world.engine.commit_count - before
    return count


# -- the end


async def _finish(world: World, tell: Tell) -> None:
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
        _end(world, worker)
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
        if world.broken or not _unresolved(world):
            break
        await resolve(world, Draws(world.seed, f"end/{number}"))
        await _rest(world, is_mended=False)
        await _mend(world)
    for _, look in world.runs():
        if not world.broken and look.run.phase is not Phase.TERMINAL:
            sentence = f"{world.run_name(look.run.run_id)} is {look.run.phase.value} when all is settled"
            world.broken.append(Broken("every run ends", sentence))


def _unresolved(world: World) -> list[tuple[str, str, int, str, int]]:
    return [at for workspace in world.workspaces for at, _ in world.look().records(UNRESOLVED, workspace)]


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
        await _recover(world)
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
