"""The worker's decisions, without any input or output: events and the time come in, effects go out (ARCHITECTURE 6).

Every delivery is tracked by its request id, so that one run delivered twice is two pieces of work. The life of one:

    PASSING -> ENDED                                 discovery: the answer is kept until it is settled
    PASSING -> WAITING -> READY -> RUNNING -> ENDED  callback: target met, slot held, started, result kept until settled
    PASSING -> ENDED                                 callback: current code has no such step (not_found)
    RUNNING -> ENDED, and a following pass           callback that succeeded: its pass goes on here (continuation)

A slot is held from READY until the callback has truly ended, also past its timeout. Nothing is dropped that may have an
effect: work that has not started is forgotten when its session ends, and its absence from the next hello proves that it
never ran; work that runs or has ended is listed there, and its frame is sent again in the new session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ryusen.errors import DeclarationRefused
from ryusen.failures import INVALID_RESULT, TIMEOUT
from ryusen.protocol.frames import (
    CODEC,
    CONTINUATION,
    PROTOCOL_VERSION,
    Answer,
    Assign,
    Bye,
    Cancel,
    Complete,
    Declare,
    Drain,
    Fail,
    Failed,
    Failure,
    FunctionOffer,
    GiveBack,
    HeldWork,
    Hello,
    NotFound,
    Outcome,
    Proceed,
    Ready,
    Refused,
    Renew,
    Renewed,
    Result,
    ServerFrame,
    Settled,
    Start,
    Succeeded,
    Void,
    Welcome,
)
from ryusen.protocol.limits import VALUE_BYTES_DEFAULT
from ryusen.protocol.names import contract_digest
from ryusen.worker.effects import (
    CancelCallback,
    Close,
    ClosePass,
    ContinuePass,
    Effect,
    Exit,
    MovePass,
    ResumePass,
    RunCallback,
    Send,
    StartPass,
    Warn,
)
from ryusen.worker.passes import Ended, Turn
from ryusen.worker.work import (
    EXIT_REFUSED,
    EXIT_UNFINISHED,
    FOLLOWING,
    HELD_EXTRA_MAX,
    HELLO_MS_MAX,
    OVERRUN_WARN_MS,
    PASS_MS_MAX,
    RECENT_MAX,
    REFUSALS_MAX,
    RENEW_EVERY_MS_MIN,
    RENEW_PAGE,
    SLOT_WAIT_MS_MAX,
    UNSTARTED,
    Link,
    State,
    Work,
    WorkerIdentity,
)

__all__ = ["WorkerCore"]


@dataclass
class _Effects:
    items: list[Effect] = field(default_factory=list)

    def add(self, *effects: Effect) -> None:
        self.items.extend(effects)


class WorkerCore:
    """One worker process's protocol machine. Times are milliseconds of one monotonic clock.

    Attributes:
        session: counts connections; frames carry the number of the connection they came by.
        is_up: whether a session stands.
    """

    def __init__(self, identity: WorkerIdentity) -> None:
        """Start disconnected, with no work."""
        self._identity = identity
        self._link = Link.DOWN
        self.session = 0
        self._works: dict[str, Work] = {}
        self._busy: set[str] = set()
        self._overruns: dict[str, tuple[str, float]] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._welcome: Welcome | None = None
        self._value_bytes_max = VALUE_BYTES_DEFAULT
        self._hello_due_ms = 0.0
        self._renew_due_ms = 0.0
        self._heard_ms = 0.0
        self._exit_due_ms: float | None = None
        self._has_exited = False

    @property
    def is_up(self) -> bool:
        """Whether a session stands."""
        return self._link is Link.UP

    # ---- the connection

    def connected(self, now_ms: float) -> list[Effect]:
        """A connection is open: say hello."""
        self.session += 1
        self._link = Link.GREETING
        self._hello_due_ms = now_ms + HELLO_MS_MAX
        identity = self._identity
        offers = [
            FunctionOffer(name=n, contract=contract_digest(n, CODEC, PROTOCOL_VERSION)) for n in identity.functions
        ]
        hello = Hello(
            application=identity.application,
            instance=identity.instance,
            protocols=[PROTOCOL_VERSION],
            codecs=[CODEC],
            functions=offers,
            capacity=identity.capacity,
            release=identity.release,
            features=[CONTINUATION],
            held=[self._held(work) for work in self._works.values()],
            connection=self.session,
            sdk=identity.sdk,
        )
        return [Send(hello)]

    @staticmethod
    def _held(work: Work) -> HeldWork:
        state = "finished" if work.state is State.ENDED else "running"
        return HeldWork(ref=work.ref, request=work.request, state=state)  # type: ignore[arg-type]

    def disconnected(self, now_ms: float) -> list[Effect]:
        """The connection is gone: forget what has not started, keep the rest for the next session."""
        self._link = Link.DOWN
        effects = _Effects()
        for work in self._unstarted_callbacks():
            self._forget(work, effects)
        self._drop_following(effects)
        self._maybe_exit(effects)
        return effects.items

    def received(self, session: int, frame: ServerFrame, now_ms: float) -> list[Effect]:
        """A frame came by connection number `session`; those of earlier connections are dropped."""
        if session != self.session or self._link in (Link.DOWN, Link.CLOSING):
            return []
        self._heard_ms = now_ms
        effects = _Effects()
        if self._link is Link.GREETING:
            self._greeted(frame, now_ms, effects)
        elif isinstance(frame, Assign):
            self._assigned(frame, now_ms, effects)
        elif isinstance(frame, Proceed):
            self._proceed(frame, now_ms, effects)
        elif isinstance(frame, Renewed):
            self._renewed(frame, effects)
        elif isinstance(frame, Drain):
            self._give_back_unstarted("the dispatcher is leaving", effects)
            self._close("the dispatcher is leaving", effects)
        elif isinstance(frame, Refused):
            self._refused(frame, effects)
        elif not isinstance(frame, Welcome | Cancel):  # a cancel is a notice: the outcome is wanted all the same
            self._about_work(frame, now_ms, effects)
        self._maybe_exit(effects)
        return effects.items

    def _greeted(self, frame: ServerFrame, now_ms: float, effects: _Effects) -> None:
        if isinstance(frame, Refused):
            self._refused(frame, effects)
        elif not isinstance(frame, Welcome):
            self._close("the first frame was no welcome", effects)
        elif frame.protocol != PROTOCOL_VERSION:
            self._close(f"the dispatcher speaks protocol {frame.protocol}", effects)
        else:
            self._link = Link.UP
            self._welcome = frame
            self._value_bytes_max = frame.value_bytes_max
            self._renew_due_ms = now_ms + max(frame.renew_every_ms, RENEW_EVERY_MS_MIN)
            effects.add(*(Send(work.frame) for work in self._works.values() if work.frame is not None))

    def _refused(self, frame: Refused, effects: _Effects) -> None:
        if frame.definitive:
            self._exit(EXIT_REFUSED, f"the service refused this worker: {frame.code}: {frame.message}", effects)
        else:
            self._close(f"no session for now: {frame.code}: {frame.message}", effects)

    def _close(self, reason: str, effects: _Effects) -> None:
        self._link = Link.CLOSING
        effects.add(Close(reason))

    # ---- frames about work

    def _assigned(self, frame: Assign, now_ms: float, effects: _Effects) -> None:
        request = frame.request
        if request in self._works or request in self._recent:
            return
        reason = self._reason_to_decline(frame)
        if reason:
            effects.add(Send(GiveBack(request=request, ref=frame.ref, reason=reason)))
            return
        work = Work(request, frame.ref, frame.function, frame.timeout_ms, now_ms)
        self._works[request] = work
        if frame.ref.kind == "compensation":
            # No function of this SDK has compensators: the step's skip is settled without running any user code.
            self._end(work, NotFound(request=request, ref=frame.ref), effects)
        else:
            effects.add(StartPass(request, frame, self._value_bytes_max))

    def _reason_to_decline(self, frame: Assign) -> str:
        if self._exit_due_ms is not None:
            return "the worker is leaving"
        if frame.function not in self._identity.functions:
            return "the function is not served here"
        if len(self._works) >= self._identity.capacity + HELD_EXTRA_MAX:
            return "the worker holds all it may"
        return ""

    def _about_work(self, frame: Start | Void | Settled, now_ms: float, effects: _Effects) -> None:
        work = self._works.get(frame.request)
        if work is None:
            return  # late or repeated: the work is gone, and nothing starts without it
        if isinstance(frame, Start):
            if work.state is State.READY:
                self._start(work, now_ms, effects)
        elif isinstance(frame, Void):
            if work.state is not State.RUNNING:  # what runs has its outcome still wanted
                self._forget(work, effects)
                self._offer_slots(effects)
        elif work.state is State.ENDED:
            self._settled(work, frame, now_ms, effects)

    def _start(self, work: Work, now_ms: float, effects: _Effects) -> None:
        work.state = State.RUNNING
        work.since_ms = now_ms
        work.deadline_ms = None if work.timeout_ms is None else now_ms + work.timeout_ms
        effects.add(RunCallback(work.request, self._value_bytes_max))

    def _settled(self, work: Work, frame: Settled, now_ms: float, effects: _Effects) -> None:
        self._forget_joint(frame.joint, effects)
        if frame.verdict != "refused":
            self._forget(work, effects)
            if frame.verdict == "stale" and isinstance(work.frame, Result) and work.frame.following in self._works:
                self._forget(self._works[work.frame.following], effects)  # a pass from a result that lost is void
            return
        kept = work.frame
        refusal = DeclarationRefused(frame.code, frame.field, frame.limit, frame.message)
        work.refusals += 1
        if isinstance(kept, Answer) and isinstance(kept.ending, Declare) and work.refusals <= REFUSALS_MAX:
            work.state, work.frame, work.since_ms = State.PASSING, None, now_ms
            effects.add(ResumePass(work.request, refusal))
        elif isinstance(kept, Answer) and not isinstance(kept.ending, Fail):
            category = INVALID_RESULT if isinstance(kept.ending, Complete) else f"sdk.{refusal.code}"
            ending = Fail(failure=Failure(category=category, message=str(refusal)))
            self._end(work, msgspec.structs.replace(kept, ending=ending), effects)
        elif isinstance(kept, Result) and isinstance(kept.outcome, Succeeded):
            outcome = Failed(failure=Failure(category=INVALID_RESULT, message=str(refusal)), retryable=False)
            self._end(work, msgspec.structs.replace(kept, outcome=outcome), effects)
        else:
            effects.add(Warn(f"the service refused a failure ({refusal}): {work.label}"))
            self._forget(work, effects)

    def _renewed(self, frame: Renewed, effects: _Effects) -> None:
        for request in frame.lost:
            work = self._works.get(request)
            # After `ready` the start may be on its way all the same; that work ends by `start` or `void`.
            if work is not None and not work.is_discovery and work.state in (State.PASSING, State.WAITING):
                self._forget(work, effects)
        self._offer_slots(effects)

    # ---- what user code did

    def pass_turn(self, request: str, turn: Turn, failed_met: Iterable[str], now_ms: float) -> list[Effect]:
        """A pass met an unresolved step or ended."""
        work = self._works.get(request)
        effects = _Effects()
        if work is None or work.state is not State.PASSING:
            return []
        if work.is_discovery:
            ending = turn.ending if isinstance(turn, Ended) else Declare(steps=[turn.call.declaration])
            answer = Answer(request=request, ref=work.ref, ending=ending, failed_met=list(failed_met))
            self._end(work, answer, effects)
        elif isinstance(turn, Ended) or turn.call.declaration.id != work.ref.step:
            self._end(work, NotFound(request=request, ref=work.ref), effects)
        else:
            work.state, work.since_ms = State.WAITING, now_ms
            self._offer_slots(effects)
        self._maybe_exit(effects)
        return effects.items

    def callback_ended(self, request: str, outcome: Outcome, now_ms: float) -> list[Effect]:
        """A callback has truly ended: its slot is free; its outcome counts unless its timeout was reported."""
        effects = _Effects()
        self._busy.discard(request)
        self._overruns.pop(request, None)
        work = self._works.get(request)
        is_wanted = work is not None and work.state is State.RUNNING
        if work is not None and is_wanted and isinstance(outcome, Succeeded) and self._may_continue():
            self._continue(work, outcome, now_ms, effects)
        else:
            effects.add(ClosePass(request))
            if work is not None and is_wanted:
                self._end(work, Result(request=request, ref=work.ref, outcome=outcome), effects)
        self._offer_slots(effects)
        self._maybe_exit(effects)
        return effects.items

    def _may_continue(self) -> bool:
        is_offered = self._welcome is not None and self._welcome.continues
        return is_offered and self._link is Link.UP and self._exit_due_ms is None

    def _continue(self, work: Work, outcome: Succeeded, now_ms: float, effects: _Effects) -> None:
        """Report a success before any other user code runs, then let its pass go on here; the slot goes with it."""
        following = Work(work.request + FOLLOWING, work.ref, work.function, None, now_ms, follows=work.request)
        self._works[following.request] = following
        self._busy.add(following.request)
        frame = Result(request=work.request, ref=work.ref, outcome=outcome, following=following.request)
        self._end(work, frame, effects)
        effects.add(ContinuePass(work.request, following.request, bytes(outcome.value)))

    def _proceed(self, frame: Proceed, now_ms: float, effects: _Effects) -> None:
        """The step that the answer declared is authorized here: its callback runs in the same pass."""
        self._forget_joint(frame.joint, effects)
        work = self._works.get(frame.request)
        if work is None or work.state is not State.ENDED or not isinstance(work.frame, Answer):
            effects.add(Send(GiveBack(request=frame.following, ref=frame.ref, reason="its pass is gone")))
            return
        del self._works[work.request]
        self._remember(work.request)
        self._busy.discard(work.request)
        started = Work(frame.following, frame.ref, work.function, frame.timeout_ms, now_ms)
        self._works[started.request] = started
        self._busy.add(started.request)
        effects.add(MovePass(work.request, started.request, frame.ref))
        self._start(started, now_ms, effects)

    def _forget_joint(self, request: str, effects: _Effects) -> None:
        result = self._works.get(request)
        if result is not None and result.state is State.ENDED:
            self._forget(result, effects)

    def _drop_following(self, effects: _Effects) -> None:
        """A pass cannot outlive its session: what it would answer is found again from the queue, its result goes alone."""
        for work in [work for work in self._works.values() if work.follows]:
            self._forget(work, effects)
        for work in self._works.values():
            if isinstance(work.frame, Result) and work.frame.following:
                work.frame = msgspec.structs.replace(work.frame, following="")

    def _end(self, work: Work, frame: Result | Answer | NotFound, effects: _Effects) -> None:
        work.state, work.frame, work.deadline_ms = State.ENDED, frame, None
        if self._link is Link.UP:
            effects.add(Send(frame))

    def _offer_slots(self, effects: _Effects) -> None:
        for work in self._works.values():
            if len(self._busy) >= self._identity.capacity or self._link is not Link.UP:
                return
            if work.state is State.WAITING:
                work.state = State.READY
                self._busy.add(work.request)
                effects.add(Send(Ready(request=work.request)))

    def _remember(self, request: str) -> None:
        self._recent[request] = None
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def _forget(self, work: Work, effects: _Effects) -> None:
        del self._works[work.request]
        self._remember(work.request)
        if work.request not in self._overruns:
            self._busy.discard(work.request)
            effects.add(ClosePass(work.request))  # an overrunning callback may still use what its pass holds open

    def _unstarted_callbacks(self) -> list[Work]:
        return [work for work in self._works.values() if not work.is_discovery and work.state in UNSTARTED]

    def _give_back_unstarted(self, reason: str, effects: _Effects) -> None:
        for work in self._unstarted_callbacks():
            # After `ready` the start may be on its way; only the dispatcher can call that work off.
            if work.state is not State.READY:
                self._give_back(work, reason, effects)

    def _give_back(self, work: Work, reason: str, effects: _Effects) -> None:
        if self._link is Link.UP:
            effects.add(Send(GiveBack(request=work.request, ref=work.ref, reason=reason)))
        self._forget(work, effects)

    # ---- time

    def next_due_ms(self) -> float | None:
        """Return the instant of the next `tick` that will do something, or None."""
        if self._has_exited:
            return None
        dues = [due for due in map(self._work_due_ms, self._works.values()) if due is not None]
        dues += [since_ms + OVERRUN_WARN_MS for label, since_ms in self._overruns.values() if label]
        if self._link is Link.GREETING:
            dues.append(self._hello_due_ms)
        if self._link is Link.UP and self._welcome is not None:
            dues += [self._renew_due_ms, self._heard_ms + self._welcome.silence_ms]
        if self._exit_due_ms is not None:
            dues.append(self._exit_due_ms)
        return min(dues, default=None)

    @staticmethod
    def _work_due_ms(work: Work) -> float | None:
        if work.state is State.PASSING:
            return work.since_ms + PASS_MS_MAX
        if work.state is State.WAITING:
            return work.since_ms + SLOT_WAIT_MS_MAX
        return work.deadline_ms

    def tick(self, now_ms: float) -> list[Effect]:
        """Do what has become due: renewals, timeouts, silence, the end of a grace."""
        effects = _Effects()
        for work in list(self._works.values()):
            due_ms = self._work_due_ms(work)
            if due_ms is not None and due_ms <= now_ms:
                self._work_due(work, now_ms, effects)
        for request, (label, since_ms) in self._overruns.items():
            if label and since_ms + OVERRUN_WARN_MS <= now_ms:
                self._overruns[request] = ("", since_ms)
                effects.add(Warn(f"a callback goes on after its timeout and keeps its slot: {label}"))
        if self._link is Link.GREETING and self._hello_due_ms <= now_ms:
            self._close("no answer to hello", effects)
        elif self._link is Link.UP and self._welcome is not None:
            if self._heard_ms + self._welcome.silence_ms <= now_ms:
                self._close("the dispatcher is silent", effects)
            elif self._renew_due_ms <= now_ms:
                self._renew(self._welcome, now_ms, effects)
        if self._exit_due_ms is not None and self._exit_due_ms <= now_ms:
            left = [work.label for work in self._works.values() if work.state is not State.ENDED]
            message = f"the grace is over; unfinished: {', '.join(left[:10]) or 'results not delivered'}"
            self._exit(EXIT_UNFINISHED, message, effects)
        return effects.items

    def _work_due(self, work: Work, now_ms: float, effects: _Effects) -> None:
        if work.state is State.RUNNING:
            message = f"the attempt took longer than its timeout of {work.timeout_ms} ms"
            outcome = Failed(failure=Failure(category=TIMEOUT, message=message))
            self._overruns[work.request] = (work.label, now_ms)
            effects.add(CancelCallback(work.request))
            self._end(work, Result(request=work.request, ref=work.ref, outcome=outcome), effects)
        elif work.is_discovery:
            # Unanswered, the lease runs out and the delivery counts as lost: it comes back later, with growing delay.
            effects.add(Warn(f"a pass took longer than {PASS_MS_MAX} ms outside steps and is dropped: {work.label}"))
            self._forget(work, effects)
        else:
            reason = "no slot became free" if work.state is State.WAITING else "the pass took too long"
            self._give_back(work, reason, effects)

    def _renew(self, welcome: Welcome, now_ms: float, effects: _Effects) -> None:
        self._renew_due_ms = now_ms + max(welcome.renew_every_ms, RENEW_EVERY_MS_MIN)
        requests = list(self._works)
        # An empty one is sent too: it is the heartbeat that either side's silence is measured by.
        for start in range(0, max(1, len(requests)), RENEW_PAGE):
            effects.add(Send(Renew(requests=requests[start : start + RENEW_PAGE])))

    # ---- leaving

    def drain(self, now_ms: float, grace_ms: float) -> list[Effect]:
        """Take no more work, give back what has not started, and exit when the rest is delivered or the grace is over."""
        effects = _Effects()
        if self._exit_due_ms is None:
            self._exit_due_ms = now_ms + grace_ms
            self._give_back_unstarted("the worker is leaving", effects)
            self._maybe_exit(effects)
        return effects.items

    def _maybe_exit(self, effects: _Effects) -> None:
        if self._exit_due_ms is not None and not self._works and not self._has_exited:
            if self._link is Link.UP:
                effects.add(Send(Bye()))
            self._exit(0, "all work is delivered", effects)

    def _exit(self, code: int, message: str, effects: _Effects) -> None:
        if not self._has_exited:
            self._has_exited = True
            effects.add(Exit(code, message))
