"""The dispatcher's side: the real session core, its effects done one at a time by the real transactions, in scripted order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry
from ryusen.protocol.frames import (
    CONTINUATION,
    PROTOCOL_VERSION,
    Hello,
    Proceed,
    Refused,
    ServerFrame,
    Settled,
    Start,
    Welcome,
    encode_frame,
)

from keyspace.errors import Refusal
from keyspace.keyspace import Keyspace
from keyspace.queue.items import Seat
from keyspace.records.work import Lane
from keyspace.store.errors import StoreError
from keyspace.store.fault import FaultStore
from keyspace.transitions.hold import Hold
from keyspace.transitions.lease_items import Delivery
from services.dispatcher.assigning import load_assign
from services.dispatcher.claiming import Claimer
from services.dispatcher.effects import (
    Authorize,
    Close,
    CloseSession,
    Effect,
    Leaving,
    Load,
    Lose,
    Renewal,
    Return,
    Send,
    Settle,
    Unstart,
    Wait,
)
from services.dispatcher.greeting import greet, hello_fault
from services.dispatcher.metrics import DispatcherMetrics
from services.dispatcher.options import DispatcherOptions
from services.dispatcher.replays import Replays
from services.dispatcher.session_core import SessionCore
from services.dispatcher.settlement import settle
from services.dispatcher.work_effects import WorkEffects
from services.lanes.duebook import LaneOf

if TYPE_CHECKING:
    from simulation.fleet import Line

__all__ = ["METRICS", "OPTIONS", "Process", "SimDispatcher", "SimSession", "Witnesses"]

OPTIONS = DispatcherOptions(value_bytes_max=4_096)
METRICS = DispatcherMetrics(CollectorRegistry())
"""Nobody reads them here; one set serves all simulated processes."""


class Witnesses(Protocol):
    """Who hears of what was refused and of what a store kept from being known."""

    def saw(self, what: str) -> None:
        """Count a rare thing."""
        ...


class Process:
    """A server process: its connection to the store, which ends with it."""

    def __init__(self, name: str, store: FaultStore, keyspace: Keyspace) -> None:
        """Start."""
        self.name = name
        self.store = store
        self.keyspace = keyspace


class SimSession:
    """One session and what it still has to do. As `services.dispatcher.session.WorkerSession`, without tasks."""

    def __init__(self, process: Process, line: Line, core: SessionCore, workspace: str, saw: Witnesses) -> None:
        """Stand on a connection."""
        self.process = process
        self.line = line
        self.core = core
        self.workspace = workspace
        self.pending: list[Effect] = []
        self.outbox: deque[ServerFrame] = deque()
        self.is_open = True
        self.is_cleaning = False
        self.heard_ms = process.keyspace.clock.monotonic_ms()
        self._saw = saw
        self._replays = Replays() if core.keeps_replays else None
        self._work = WorkEffects(process.keyspace, workspace, OPTIONS, METRICS)

    @property
    def is_gone(self) -> bool:
        """Whether it has ended and nothing is left to be done for it."""
        return not self.is_open and self.is_cleaning and not self.pending

    @property
    def name(self) -> str:
        """What choices know it by."""
        return f"{self.process.name}/{self.line.name}"

    def now_ms(self) -> float:
        """Return monotonic time."""
        return self.process.keyspace.clock.monotonic_ms()

    # -- what `Claimer` asks of a session

    def deliver(self, delivery: Delivery) -> bool:
        """Take a lease made for this session; says whether it could."""
        if not self.is_open:
            return False
        self.perform(self.core.assigned(delivery, self.now_ms()))
        return True

    # -- life

    def perform(self, effects: Iterable[Effect]) -> None:
        """Send what is to be sent; what takes a transaction is done later, one at a time."""
        for effect in effects:
            if isinstance(effect, Send):
                if self.is_open:
                    self.outbox.append(effect.frame)
            elif isinstance(effect, Close):
                self.close()
            elif not isinstance(effect, Leaving):
                self.pending.append(effect)

    def close(self) -> None:
        """End the session: nothing is sent any more, and what is under way may finish."""
        self.is_open = False
        self.line.is_cut = True
        self.outbox.clear()

    def clean_up(self) -> str:
        """Nothing is under way any more: what was held goes back by what is known of it."""
        self.is_cleaning = True
        self.pending = list(self.core.ended())
        return f"{self.name} is over, {len(self.pending)} things go back"

    def send_one(self) -> ServerFrame:
        """Hand the oldest frame to the transport."""
        frame = self.outbox.popleft()
        if isinstance(frame, Start):
            self.core.start_leaves(frame.request)
        elif isinstance(frame, Proceed):
            self.core.start_leaves(frame.following)
        self.line.to_worker.append(encode_frame(frame))
        return frame

    # -- effects

    async def do(self, effect: Effect) -> str:
        """Do one effect and return what came of it."""
        self.pending.remove(effect)
        if isinstance(effect, Load):
            return await self._load(effect)
        if isinstance(effect, Wait):
            self.perform(self.core.waited(effect.following))
            return "a success has waited for its answer"
        if isinstance(effect, Settle):
            return await self._settle(effect)
        if isinstance(effect, Authorize):
            return await self._authorize(effect)
        if isinstance(effect, Renewal):
            return await self._renew(effect)
        return await self._put_back(effect)

    async def _load(self, effect: Load) -> str:
        delivery = effect.held.delivery
        assert delivery is not None
        run_id = delivery.run.run_id
        if effect.is_full and self._replays is not None:
            self._replays.forget(run_id)
        known = None if self._replays is None else self._replays.of(run_id)

        loaded = await self._work.tried(
            "an assignment cannot be read",
            lambda: load_assign(self.process.keyspace, delivery, effect.held.request, known),
        )
        effects = self.core.loaded(effect.held, None if loaded is None else loaded[0])
        if loaded is not None and self._replays is not None and any(isinstance(one, Send) for one in effects):
            self._replays.remember(run_id, loaded[1])
        self.perform(effects)
        return f"assigns {delivery.item.kind.value} {delivery.item.step_id or ''}"

    def _hold(self) -> Hold:
        core = self.core
        return Hold(Seat(core.session, core.instance, core.release, self.process.keyspace.mint()), OPTIONS.lease_ms)

    async def _settle(self, effect: Settle) -> str:
        what = type(effect.frame).__name__.lower() + (" with its answer" if effect.joint is not None else "")
        try:
            outcome = await settle(
                self.process.keyspace,
                self.workspace,
                effect.frame,
                value_bytes_max=OPTIONS.value_bytes_max,
                joint=effect.joint,
                hold=self._hold() if effect.may_hold else None,
            )
        except StoreError as error:
            if not self.is_cleaning:
                self.perform(self.core.settled(effect, None, self.now_ms()))
                self.close()
            return f"settles {what}: {type(error).__name__}"
        frame = outcome.frame
        verdict = f"{frame.verdict} {frame.code}" if isinstance(frame, Settled) else "proceeds"
        self._saw.saw(f"settled: {verdict}")
        if not self.is_cleaning:
            self.perform(self.core.settled(effect, outcome, self.now_ms()))
        return f"settles {what}: {verdict}"

    async def _authorize(self, effect: Authorize) -> str:
        core, held = self.core, effect.held
        try:
            verdict = await self._work.authorize(
                held.work, session=core.session, instance=core.instance, release=core.release
            )
        except StoreError:
            verdict = None
        self.perform(core.authorized(held, verdict))
        word = "nobody knows" if verdict is None else f"{type(verdict).__name__} {verdict.code}"
        self._saw.saw(f"authorized: {word}")
        return f"authorizes {held.work.kind.value} {held.work.step_id}: {word}"

    async def _renew(self, effect: Renewal) -> str:
        try:
            kept = await self._work.renew(effect.held)
        except StoreError:
            return "renews: nobody knows"
        self.perform(self.core.renewed(effect, kept, self.now_ms()))
        return f"renews {sum(kept)} of {len(kept)}"

    async def _put_back(self, effect: Effect) -> str:
        work, core = self._work, self.core
        if isinstance(effect, Return):
            returned = await work.tried("a return", lambda: work.give_back(effect.item_id, effect.token))
            return f"gives back: {returned}"
        if isinstance(effect, Lose):
            lost = effect.held.work
            loss = await work.tried("a loss", lambda: work.lose(lost.item_id, lost.token))
            return f"loses {lost.kind.value}: {loss.name if loss else loss}"
        if isinstance(effect, Unstart):
            held = effect.held
            back = await work.tried("an unstart", lambda: work.unstart(held, core.instance, core.session))
            return f"takes the start of {held.work.step_id} back: {back}"
        assert isinstance(effect, CloseSession)
        closed = await work.tried("a close", lambda: work.close_session(core.instance, core.session))
        return f"forgets the instance: {closed}"


class SimDispatcher:
    """A dispatcher process and its sessions; those that have ended stay until they are cleaned up."""

    def __init__(self, process: Process, saw: Witnesses, *, continues: bool) -> None:
        """Start without sessions; `continues`: sessions may go on with a run by themselves."""
        self.process = process
        self.continues = continues
        self.sessions: list[SimSession] = []
        self._saw = saw

    async def hear_hello(self, line: Line, hello: Hello) -> str:
        """Answer a hello, as `Dispatcher.serve_peer` does."""
        refused = hello_fault(hello)
        if refused is not None:
            return self._refuse(line, refused)
        workspace = line.worker.workspace
        work = WorkEffects(self.process.keyspace, workspace, OPTIONS, METRICS)
        try:
            greeting = await greet(work, hello)
        except Refusal as refusal:
            self._saw.saw(f"refused: {refusal.code}")
            return self._refuse(line, Refused(code=refusal.code, message="", definitive=False))
        except StoreError:
            return self._refuse(line, Refused(code="store_unavailable", message="", definitive=False))
        former = self._standing(workspace, hello.instance)
        if former is not None:
            for held in greeting.adopted:
                former.core.hand_over(held.request)
            former.close()
        core = SessionCore(
            greeting.session,
            hello,
            greeting.adopted,
            lease_ms=OPTIONS.lease_ms,
            now_ms=self.process.keyspace.clock.monotonic_ms(),
            continues=self.continues and CONTINUATION in hello.features,
        )
        session = SimSession(self.process, line, core, workspace, self._saw)
        line.session = session
        self.sessions.append(session)
        session.outbox.append(self._welcome(greeting.session, workspace))
        return f"welcomes {line.worker.name}, which goes on with {len(greeting.adopted)}"

    def _standing(self, workspace: str, instance: str) -> SimSession | None:
        for session in self.sessions:
            if session.is_open and (session.workspace, session.core.instance) == (workspace, instance):
                return session
        return None

    def _welcome(self, session: str, workspace: str) -> Welcome:
        return Welcome(
            session=session,
            protocol=PROTOCOL_VERSION,
            workspace=workspace,
            lease_ms=OPTIONS.lease_ms,
            renew_every_ms=OPTIONS.renew_every_ms,
            silence_ms=OPTIONS.silence_ms,
            value_bytes_max=OPTIONS.value_bytes_max,
            clock_ms=self.process.keyspace.clock.now_ms(),
            continues=self.continues,
        )

    def _refuse(self, line: Line, refused: Refused) -> str:
        if not line.is_cut:
            line.to_worker.append(encode_frame(refused))
        return f"refuses {line.worker.name}: {refused.code}"

    async def lease(self, workspace: str, lane: Lane, sessions: list[SimSession]) -> str:
        """Lease work of a lane for sessions, one seat each time a session is named."""
        claimer = Claimer(WorkEffects(self.process.keyspace, workspace, OPTIONS, METRICS))
        claim = await claimer.claim(LaneOf(workspace, lane), sessions, skip=0)  # type: ignore[arg-type]
        direction = lane.direction.name.lower()
        return f"{self.process.name} leases {claim.leased_count} of {lane.function} {direction}"
