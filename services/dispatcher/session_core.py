"""The dispatcher's side of one worker session, without input or output: events come in, effects go out (HOUSE 8).

Held deliveries and reserved seats together never exceed what the hello declared (case 013; `deliveries` counts them). A frame
about work that this session does not hold is settled from its reference alone, or ignored; none of them can harm another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ryusen.protocol.frames import (
    REPLAY,
    Answer,
    Assign,
    Bye,
    Drain,
    GiveBack,
    Hello,
    NeedReplay,
    NotFound,
    Ready,
    Renew,
    Renewed,
    Result,
    Settled,
    Start,
    Succeeded,
    Void,
    WorkerFrame,
)

from keyspace.limits import RENEW_ITEMS_MAX
from keyspace.records.work import WorkKind
from keyspace.transitions.lease_items import Delivery
from keyspace.transitions.work import Stale, Verdict
from services.dispatcher.deliveries import Deliveries
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
from services.dispatcher.held import Announced, Held, HeldState, held_item, held_pass
from services.dispatcher.options import CONTINUED_STEPS_MAX, PAUSE_MS_FIRST, PAUSE_MS_MAX
from services.dispatcher.refs import work_of
from services.dispatcher.settlement import Outcome, SettlementFrame

__all__ = ["BAD_FRAME", "NORMAL", "SUPERSEDED", "SessionCore"]

NORMAL = 1000
BAD_FRAME = 4400
SUPERSEDED = 4409

_UNSTARTED = frozenset((HeldState.LOADING, HeldState.ASSIGNED))
_MAYBE_AUTHORIZED = frozenset((HeldState.AUTHORIZING, HeldState.STARTING))


class SessionCore:
    """One session. Times are milliseconds of one monotonic clock.

    Attributes:
        session: its id.
        instance: the worker process.
        release: the release it runs.
        functions: the names of the functions it serves.
        keeps_replays: whether the worker keeps what it was sent of a run's replay.
    """

    def __init__(
        self,
        session: str,
        hello: Hello,
        adopted: Iterable[Held],
        *,
        lease_ms: int,
        now_ms: float,
        continues: bool = False,
        goes_on: Callable[[str], bool] = lambda function: True,
    ) -> None:
        """Begin a session.

        Args:
            session: its id.
            hello: a sound one.
            adopted: the work that the hello listed as running.
            lease_ms: how long a lease lasts.
            now_ms: monotonic time.
            continues: whether it may go on with a run by itself.
            goes_on: says of a function whether its runs may stay here: no newer release is live that would rather have them,
                and no work of a higher priority waits for a seat.
        """
        self.session = session
        self._lease_ms = lease_ms
        self.instance = hello.instance
        self.release = hello.release
        self.functions = frozenset(offer.name for offer in hello.functions)
        self.keeps_replays = REPLAY in hello.features
        self._held = Deliveries(hello.capacity, hello.undo_capacity, adopted)
        for held in self._held:
            held.lease_until_ms = now_ms + lease_ms
        self._settling: set[str] = set()
        self._announced: dict[str, Announced] = {}
        self._continues = continues
        self._goes_on = goes_on
        self._paused_until_ms = now_ms
        self._pause_ms = PAUSE_MS_FIRST
        self._is_leaving = False
        self._is_draining = False
        self._is_bye = False

    # -- capacity

    @property
    def _takes_work(self) -> bool:
        return not self._is_leaving and not self._is_draining

    @property
    def held_count(self) -> int:
        """How many deliveries the session holds."""
        return len(self._held)

    def free_count(self, now_ms: float, *, is_undo: bool = False) -> int:
        """How many more deliveries may be leased for this session now; `is_undo`: of compensation, which has places of its own."""
        if not self._takes_work or now_ms < self._paused_until_ms:
            return 0
        return self._held.undo_free_count if is_undo else self._held.free_count

    def paused_for_ms(self, now_ms: float) -> float | None:
        """How long the session is still passed over because it gave work back; None when it is not."""
        delay_ms = self._paused_until_ms - now_ms
        return delay_ms if delay_ms > 0 and self._takes_work else None

    def reserve(self, token: str, *, is_undo: bool = False) -> None:
        """Keep a place for a lease under `token` that is being made."""
        self._held.keep_seat(token, is_undo=is_undo)

    def release_seat(self, token: str) -> None:
        """Free a place that no lease took."""
        self._held.free_seat(token)

    def leave(self) -> list[Effect]:
        """The dispatcher is leaving: take no more work, tell the worker to go elsewhere."""
        self._is_leaving = True
        return [Send(Drain())]

    def hand_over(self, request: str) -> Held | None:
        """Give up a delivery that a newer session of the same instance has adopted."""
        return self._held.remove(request)

    # -- work

    def assigned(self, delivery: Delivery, now_ms: float) -> list[Effect]:
        """A lease was made for this session."""
        held = held_item(delivery.item, HeldState.LOADING, now_ms + self._lease_ms, delivery.run.function)
        held.delivery = delivery
        self._held.add(held)
        return [Load(held)]

    def loaded(self, held: Held, frame: Assign | None) -> list[Effect]:
        """The assignment was read; None when it cannot be: the work goes back, later each time."""
        if self._held.get(held.request) is not held:
            return []
        if frame is None:
            self._held.remove(held.request)
            return [Lose(held)]
        held.state = HeldState.ASSIGNED
        return [Send(frame)]

    def authorized(self, held: Held, verdict: Verdict | None) -> list[Effect]:
        """An authorization ended; None when nobody knows how."""
        if self._held.get(held.request) is not held:
            return [Unstart(held)]
        if verdict is None or held.is_returned:
            self._held.remove(held.request)
            return [Unstart(held), Send(Void(request=held.request, reason="not_authorized"))]
        if not isinstance(verdict, Stale):
            held.state = HeldState.STARTING
            return [Send(Start(request=held.request))]
        self._held.remove(held.request)
        effects: list[Effect] = [Send(Void(request=held.request, reason=verdict.code)), Lose(held)]
        if verdict.code == "session_superseded":
            effects.append(Close(SUPERSEDED, "session_superseded"))
        return effects

    def may_hold(self, frame: SettlementFrame) -> bool:
        """Whether this session goes on with the run that `frame` is about by itself; behind an undo no pass follows."""
        held = self._held.get(frame.request)
        chain_count, function = (0, "") if held is None else (held.chain_count, held.function)
        if not self._continues or not self._takes_work or chain_count >= CONTINUED_STEPS_MAX:
            return False
        # What was said of work of a former session takes a place of its own.
        has_place = held is not None or self._held.free_count > 0
        return has_place and frame.ref.kind != "compensation" and self._goes_on(function)

    def start_leaves(self, request: str) -> None:
        """The start frame goes to the transport now: from here on the effect may have begun."""
        held = self._held.get(request)
        if held is not None and held.state is HeldState.STARTING:
            held.state, held.was_started = HeldState.STARTED, True

    def settled(self, effect: Settle, outcome: Outcome | None, now_ms: float) -> list[Effect]:
        """A settlement has ended; None when it failed and the worker must keep what it has."""
        frame, joint = effect.frame, effect.joint
        self._settling.discard(frame.request)
        self._held.free_seat(frame.request)
        held = self._held.get(frame.request)
        chain_count, function = (0, "") if held is None else (held.chain_count, held.function)
        announced = self._announced.pop(frame.following, None) if isinstance(frame, Result) else None
        if outcome is None:
            return []
        if held is not None and held.ref == frame.ref:
            said = outcome.frame
            if isinstance(said, Settled) and said.verdict == "refused" and said.request == frame.request:
                held.state = HeldState.STARTED if held.was_started else HeldState.ASSIGNED
            else:
                self._held.remove(frame.request)
        if outcome.is_open and isinstance(frame, Result) and frame.following and effect.may_hold:
            until_ms = now_ms + self._lease_ms
            self._held.add(held_pass(frame, until_ms, chain_count=chain_count, function=function))
        if outcome.following is not None:
            state = HeldState.ASSIGNED if outcome.following.kind is WorkKind.DISCOVERY else HeldState.STARTING
            following = held_item(outcome.following, state, now_ms + self._lease_ms, function)
            following.chain_count = chain_count + 1
            self._held.add(following)
        self._pause_ms = PAUSE_MS_FIRST
        effects: list[Effect] = [Send(outcome.frame)]
        if announced is not None and announced.is_given_back:
            its_pass = self._held.remove(announced.result.following)
            if its_pass is not None:
                effects.append(Return(its_pass.work.item_id, its_pass.work.token))
        elif announced is not None and announced.answer is not None and joint is None:
            effects += self._said(announced.answer)
        return effects

    def renewed(self, renewal: Renewal, kept: list[bool], now_ms: float) -> list[Effect]:
        """A renewal is done; `kept` says of each lease whether it goes on."""
        lost = list(renewal.unknown)
        for held, goes_on in zip(renewal.held, kept, strict=True):
            if goes_on:
                held.lease_until_ms = now_ms + self._lease_ms
                continue
            lost.append(held.request)
            held.has_lease = False
            # What runs keeps its place: the worker's slot is taken for as long as the callback runs.
            if not held.was_started and held.state in _UNSTARTED and self._held.get(held.request) is held:
                self._held.remove(held.request)
        requests = [held.request for held, goes_on in zip(renewal.held, kept, strict=True) if goes_on]
        return [Send(Renewed(requests=requests, lost=lost))]

    def tick(self, now_ms: float) -> list[Effect]:
        """Let go of what the worker neither renewed nor began: the queue has it back, and its place here is free again.

        What runs keeps its place, and the late answer of a pass is still settled from its reference.
        """
        effects: list[Effect] = []
        for held in self._held:
            if held.state is HeldState.ASSIGNED and not held.was_started and held.lease_until_ms <= now_ms:
                self._held.remove(held.request)
                if not held.is_discovery:
                    effects.append(Send(Void(request=held.request, reason="lease_expired")))
        return effects

    # -- frames

    def received(self, frame: WorkerFrame, now_ms: float) -> list[Effect]:
        """A frame came from the worker."""
        if isinstance(frame, Ready):
            return self._ready(frame)
        if isinstance(frame, Result | Answer | NotFound):
            return self._said(frame)
        if isinstance(frame, Renew):
            return self._renew(frame)
        if isinstance(frame, GiveBack):
            return self._given_back(frame, now_ms)
        if isinstance(frame, NeedReplay):
            return self._load_again(frame)
        if isinstance(frame, Drain):
            self._is_draining = True
            return [Leaving()]
        if isinstance(frame, Bye):
            self._is_leaving = self._is_bye = True
            return [CloseSession(), Close(NORMAL, "bye")]
        return [Close(BAD_FRAME, "unexpected_hello")]

    def _load_again(self, frame: NeedReplay) -> list[Effect]:
        held = self._held.get(frame.request)
        if held is None or held.state is not HeldState.ASSIGNED or held.delivery is None:
            return []
        held.state = HeldState.LOADING
        return [Load(held, is_full=True)]

    def _ready(self, frame: Ready) -> list[Effect]:
        held = self._held.get(frame.request)
        if held is None:
            return [Send(Void(request=frame.request, reason="unknown_request"))]
        if held.is_discovery or held.state is not HeldState.ASSIGNED:
            return []  # repeated, or about work that needs no start
        held.state = HeldState.AUTHORIZING
        return [Authorize(held)]

    def _said(self, frame: SettlementFrame) -> list[Effect]:
        if frame.request in self._settling:
            return []  # repeated while the first one is under way; its answer answers both
        if isinstance(frame, Answer) and frame.request in self._announced:
            return self._answered(self._announced[frame.request], frame)
        held = self._held.get(frame.request)
        if held is not None:
            if held.ref != frame.ref:
                return [Send(Settled(request=frame.request, verdict="stale", code="ref_mismatch"))]
            if held.state in _MAYBE_AUTHORIZED or held.state is HeldState.LOADING:
                return [Close(BAD_FRAME, "result_before_start")]
            held.state = HeldState.SETTLING
        self._settling.add(frame.request)
        may_hold = self.may_hold(frame) and not (isinstance(frame, Result) and self._is_taken(frame.following))
        if may_hold and held is None:
            self._held.keep_seat(frame.request, is_undo=False)
        if isinstance(frame, Result) and frame.following and isinstance(frame.outcome, Succeeded) and may_hold:
            self._announced[frame.following] = Announced(frame, 0 if held is None else held.chain_count)
            return [Wait(frame.following)]
        return [Settle(frame, may_hold=may_hold)]

    def _is_taken(self, following: str) -> bool:
        return following in self._announced or following in self._held

    def _answered(self, announced: Announced, answer: Answer) -> list[Effect]:
        """The answer that an announced success waits for, or one that came while that was being settled alone."""
        if answer.ref != announced.result.ref:
            return [Send(Settled(request=answer.request, verdict="stale", code="ref_mismatch"))]
        if announced.is_settling:
            announced.answer = answer
            return []
        announced.is_settling = True
        return [Settle(announced.result, joint=answer, may_hold=self._takes_work)]

    def is_waiting(self, following: str) -> bool:
        """Whether an announced success still waits for the answer behind it."""
        announced = self._announced.get(following)
        return announced is not None and not announced.is_settling

    def waited(self, following: str) -> list[Effect]:
        """An announced success has waited long enough for its answer: it is settled alone."""
        announced = self._announced.get(following)
        if announced is None or announced.is_settling:
            return []
        announced.is_settling = True
        return [Settle(announced.result, may_hold=self._takes_work)]

    def _renew(self, frame: Renew) -> list[Effect]:
        if len(frame.requests) > RENEW_ITEMS_MAX:
            return [Close(BAD_FRAME, "too_many_renewals")]
        ours = [self._held.get(request) for request in dict.fromkeys(frame.requests)]
        known = tuple(held for held in ours if held is not None and held.has_lease)
        known_requests = {held.request for held in known}
        unknown = tuple(request for request in dict.fromkeys(frame.requests) if request not in known_requests)
        if not known:
            return [Send(Renewed(requests=[], lost=list(unknown)))]
        return [Renewal(known, unknown)]

    def _given_back(self, frame: GiveBack, now_ms: float) -> list[Effect]:
        self._paused_until_ms = now_ms + self._pause_ms
        self._pause_ms = min(PAUSE_MS_MAX, 2 * self._pause_ms)
        announced = self._announced.get(frame.request)
        if announced is not None:
            return self._pass_given_back(announced)
        held = self._held.get(frame.request)
        if held is None:
            work = work_of(frame.ref)
            if work is None or work.token in self._held:
                return []  # names nothing, or work that is held under its own request id
            return [Return(work.item_id, work.token)]
        if held.state is HeldState.AUTHORIZING:
            held.is_returned = True
            return []
        if held.state is HeldState.SETTLING:
            return []
        self._held.remove(frame.request)
        if held.state in _UNSTARTED and not held.was_started:
            return [Return(held.work.item_id, held.work.token)]
        return [Unstart(held)]

    def _pass_given_back(self, announced: Announced) -> list[Effect]:
        """The worker does not go on behind its success after all: it is settled alone, and the pass left to the queue."""
        announced.is_given_back = True
        if announced.is_settling:
            return []
        announced.is_settling = True
        return [Settle(announced.result)]

    # -- the end

    def ended(self) -> list[Effect]:
        """The connection is gone and nothing is under way any more: say what becomes of everything held.

        What runs keeps its lease, because its worker may come back and go on; its lease runs out if not.
        """
        is_orderly = self._is_leaving
        effects: list[Effect] = [
            Settle(announced.result) for announced in self._announced.values() if not announced.is_settling
        ]
        for held in self._held:
            if held.state in _MAYBE_AUTHORIZED:
                effects.append(Unstart(held))
            elif held.was_started or not held.has_lease:
                continue
            elif is_orderly:
                effects.append(Return(held.work.item_id, held.work.token))
            else:
                effects.append(Lose(held))
        self._held.clear()
        self._is_leaving = True
        return effects
