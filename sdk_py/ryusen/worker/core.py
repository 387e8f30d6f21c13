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

from collections.abc import Iterable

from ryusen.context import StepCall
from ryusen.errors import DeclarationRefused
from ryusen.failures import TIMEOUT
from ryusen.protocol.frames import (
    PROTOCOL_VERSION,
    Answer,
    Assign,
    Bye,
    Cancel,
    Complete,
    Declare,
    Drain,
    Failed,
    Failure,
    GiveBack,
    HeldWork,
    NeedReplay,
    NotFound,
    Outcome,
    Proceed,
    Refused,
    Renewed,
    Result,
    Resume,
    ServerFrame,
    Settled,
    Start,
    Succeeded,
    Void,
    Welcome,
    WorkRef,
)
from ryusen.worker.chain import drop_following, follow, forget_joint, take_pass, take_step
from ryusen.worker.connection import Connection
from ryusen.worker.effects import (
    CancelCallback,
    ClosePass,
    ContinuePass,
    Effect,
    Effects,
    Exit,
    ResumePass,
    RunCallback,
    Send,
    StartPass,
    Warn,
)
from ryusen.worker.holdings import Holdings
from ryusen.worker.passes import Ended, Turn
from ryusen.worker.refusals import instead_of
from ryusen.worker.replay import ReplayCache
from ryusen.worker.work import (
    EXIT_REFUSED,
    EXIT_UNFINISHED,
    HELD_EXTRA_MAX,
    PASS_MS_MAX,
    REFUSALS_MAX,
    Link,
    State,
    Work,
    WorkerIdentity,
)

__all__ = ["WorkerCore"]


class WorkerCore:
    """One worker process's protocol machine. Times are milliseconds of one monotonic clock."""

    def __init__(self, identity: WorkerIdentity) -> None:
        """Start disconnected, with no work."""
        self._identity = identity
        self._connection = Connection(identity)
        self._works = Holdings(identity.capacity, identity.undo_capacity)
        self._replays = ReplayCache()
        self._exit_due_ms: float | None = None
        self._has_exited = False

    @property
    def session(self) -> int:
        """Which connection the present one is, from 1; frames carry the number of the connection they came by."""
        return self._connection.number

    @property
    def is_up(self) -> bool:
        """Whether a session stands."""
        return self._connection.is_up

    # ---- the connection

    def connected(self, now_ms: float) -> list[Effect]:
        """A connection is open: say hello."""
        return [Send(self._connection.open([self._held(work) for work in self._works], now_ms))]

    @staticmethod
    def _held(work: Work) -> HeldWork:
        state = "finished" if work.state is State.ENDED else "running"
        return HeldWork(ref=work.ref, request=work.request, state=state)  # type: ignore[arg-type]

    def disconnected(self, now_ms: float) -> list[Effect]:
        """The connection is gone: forget what has not started, keep the rest for the next session."""
        self._connection.lost()
        effects = Effects()
        for work in self._works.unstarted_callbacks():
            self._works.forget(work, effects)
        # A pass cannot outlive its session; what it would answer is found again from the queue.
        for work in self._works:
            if work.follows:
                self._works.forget(work, effects)
        for work in self._works:
            drop_following(self._works, work, effects)
        self._maybe_exit(effects)
        return effects.items

    def received(self, session: int, frame: ServerFrame, now_ms: float) -> list[Effect]:
        """A frame came by connection number `session`; those of earlier connections are dropped."""
        if session != self.session or self._connection.link in (Link.DOWN, Link.CLOSING):
            return []
        self._connection.heard(now_ms)
        effects = Effects()
        if self._connection.link is Link.GREETING:
            self._greeted(frame, now_ms, effects)
        elif isinstance(frame, Assign):
            self._assigned(frame, now_ms, effects)
        elif isinstance(frame, Proceed):
            self._proceed(frame, now_ms, effects)
        elif isinstance(frame, Resume):
            self._resume(frame, now_ms, effects)
        elif isinstance(frame, Renewed):
            self._renewed(frame, effects)
        elif isinstance(frame, Drain):
            self._give_back_unstarted("the dispatcher is leaving", effects)
            self._connection.close("the dispatcher is leaving", effects)
        elif isinstance(frame, Refused):
            self._refused(frame, effects)
        elif not isinstance(frame, Welcome | Cancel):  # a cancel is a notice: the outcome is wanted all the same
            self._about_work(frame, now_ms, effects)
        self._maybe_exit(effects)
        return effects.items

    def _greeted(self, frame: ServerFrame, now_ms: float, effects: Effects) -> None:
        if isinstance(frame, Refused):
            self._refused(frame, effects)
        elif not isinstance(frame, Welcome):
            self._connection.close("the first frame was no welcome", effects)
        elif frame.protocol != PROTOCOL_VERSION:
            self._connection.close(f"the dispatcher speaks protocol {frame.protocol}", effects)
        else:
            self._connection.stand(frame, now_ms)
            if self._exit_due_ms is not None:
                effects.add(Send(Drain()))
            effects.add(*(Send(work.frame) for work in self._works if work.frame is not None))

    def _refused(self, frame: Refused, effects: Effects) -> None:
        if frame.definitive:
            self._exit(EXIT_REFUSED, f"the service refused this worker: {frame.code}: {frame.message}", effects)
        else:
            self._connection.close(f"no session for now: {frame.code}: {frame.message}", effects)

    # ---- frames about work

    def _assigned(self, frame: Assign, now_ms: float, effects: Effects) -> None:
        request = frame.request
        if self._works.knows(request):
            return
        reason = self._reason_to_decline(frame)
        if reason:
            effects.add(Send(GiveBack(request=request, ref=frame.ref, reason=reason)))
            return
        full = self._replays.complete(frame)
        if full is None:
            effects.add(Send(NeedReplay(request=request)))
            return
        work = Work(request, frame.ref, frame.function, frame.timeout_ms, now_ms)
        self._works.add(work)
        effects.add(StartPass(request, full, self._connection.value_bytes_max))

    def _reason_to_decline(self, frame: Assign) -> str:
        if self._exit_due_ms is not None:
            return "the worker is leaving"
        if frame.function not in self._identity.functions:
            return "the function is not served here"
        if len(self._works) >= self._identity.capacity + self._identity.undo_capacity + HELD_EXTRA_MAX:
            return "the worker holds all it may"
        return ""

    def _about_work(self, frame: Start | Void | Settled, now_ms: float, effects: Effects) -> None:
        work = self._works.get(frame.request)
        if work is None:
            return  # late or repeated: the work is gone, and nothing starts without it
        if isinstance(frame, Start):
            if work.state is State.READY:
                self._start(work, now_ms, effects)
        elif isinstance(frame, Void):
            if work.state is not State.RUNNING:  # what runs has its outcome still wanted
                self._works.forget(work, effects)
                self._offer_slots(effects)
        elif work.state is State.ENDED:
            self._settled(work, frame, now_ms, effects)
            self._offer_slots(effects)

    def _start(self, work: Work, now_ms: float, effects: Effects) -> None:
        work.state = State.RUNNING
        work.since_ms = now_ms
        work.deadline_ms = None if work.timeout_ms is None else now_ms + work.timeout_ms
        effects.add(RunCallback(work.request, self._connection.value_bytes_max))

    def _settled(self, work: Work, frame: Settled, now_ms: float, effects: Effects) -> None:
        forget_joint(self._works, frame.joint, effects)
        if frame.verdict != "refused":
            self._works.forget(work, effects)
            if isinstance(work.frame, Answer) and isinstance(work.frame.ending, Complete):
                self._replays.forget(work.ref.run)
            if frame.verdict == "stale":
                drop_following(self._works, work, effects)  # a pass from a result that lost is void
            return
        drop_following(self._works, work, effects)
        kept = work.frame
        refusal = DeclarationRefused(frame.code, frame.field, frame.limit, frame.message)
        work.refusals += 1
        if isinstance(kept, Answer) and isinstance(kept.ending, Declare) and work.refusals <= REFUSALS_MAX:
            work.state, work.frame, work.since_ms = State.PASSING, None, now_ms
            effects.add(ResumePass(work.request, refusal))
            return
        instead = instead_of(kept, refusal)
        if instead is not None:
            self._end(work, instead, effects)
        else:
            effects.add(Warn(f"the service refused a failure ({refusal}): {work.label}"))
            self._works.forget(work, effects)

    def _renewed(self, frame: Renewed, effects: Effects) -> None:
        for request in frame.lost:
            work = self._works.get(request)
            # After `ready` the start may be on its way all the same; that work ends by `start` or `void`.
            if work is not None and not work.is_discovery and work.state in (State.PASSING, State.WAITING):
                self._works.forget(work, effects)
        self._offer_slots(effects)

    # ---- what user code did

    def pass_turn(self, request: str, turn: Turn, failed_met: Iterable[str], now_ms: float) -> list[Effect]:
        """A pass met an unresolved step or ended."""
        work = self._works.get(request)
        effects = Effects()
        if work is None or work.state is not State.PASSING:
            return []
        if work.is_discovery:
            ending = turn.ending if isinstance(turn, Ended) else Declare(steps=[turn.call.declaration])
            answer = Answer(request=request, ref=work.ref, ending=ending, failed_met=list(failed_met))
            self._end(work, answer, effects)
        elif isinstance(turn, Ended) or not _is_target(turn.call, work.ref):
            self._end(work, NotFound(request=request, ref=work.ref), effects)
        else:
            self._works.wait_for_slot(work, now_ms)
            self._offer_slots(effects)
        self._maybe_exit(effects)
        return effects.items

    def callback_ended(self, request: str, outcome: Outcome, now_ms: float) -> list[Effect]:
        """A callback has truly ended: its slot is free; its outcome counts unless its timeout was reported."""
        effects = Effects()
        self._works.free_slot(request)
        work = self._works.get(request)
        is_wanted = work is not None and work.state is State.RUNNING
        if work is not None and is_wanted and isinstance(outcome, Succeeded) and self._may_continue(work):
            # Reported before any other user code runs; then its pass goes on here, in its slot.
            result = follow(self._works, work, outcome, now_ms)
            self._end(work, result, effects)
            effects.add(ContinuePass(request, result.following, bytes(outcome.value)))
        else:
            effects.add(ClosePass(request))
            if work is not None and is_wanted:
                self._end(work, Result(request=request, ref=work.ref, outcome=outcome), effects)
        self._offer_slots(effects)
        self._maybe_exit(effects)
        return effects.items

    def _may_continue(self, work: Work) -> bool:
        return work.ref.kind == "callback" and self._connection.continues and self._exit_due_ms is None

    def _proceed(self, frame: Proceed, now_ms: float, effects: Effects) -> None:
        """The step that the answer declared is authorized here: its callback runs in the same pass."""
        forget_joint(self._works, frame.joint, effects)
        step = take_step(self._works, frame, now_ms, effects, is_leaving=self._exit_due_ms is not None)
        if step is not None:
            self._start(step, now_ms, effects)
        self._offer_slots(effects)

    def _resume(self, frame: Resume, now_ms: float, effects: Effects) -> None:
        """The step that the answer declared is settled already: its pass goes on here."""
        forget_joint(self._works, frame.joint, effects)
        take_pass(self._works, frame, now_ms, effects)
        self._offer_slots(effects)

    def _end(self, work: Work, frame: Result | Answer | NotFound, effects: Effects) -> None:
        work.state, work.frame, work.deadline_ms = State.ENDED, frame, None
        if self._connection.is_up:
            effects.add(Send(frame))

    def _offer_slots(self, effects: Effects) -> None:
        if self._connection.is_up:
            self._works.offer_slots(effects)

    def _give_back_unstarted(self, reason: str, effects: Effects) -> None:
        for work in self._works.unstarted_callbacks():
            # After `ready` the start may be on its way; only the dispatcher can call that work off.
            if work.state is not State.READY:
                self._give_back(work, reason, effects)

    def _give_back(self, work: Work, reason: str, effects: Effects) -> None:
        if self._connection.is_up:
            effects.add(Send(GiveBack(request=work.request, ref=work.ref, reason=reason)))
        self._works.forget(work, effects)

    # ---- time

    def next_due_ms(self) -> float | None:
        """Return the instant of the next `tick` that will do something, or None."""
        if self._has_exited:
            return None
        dues = [due for due in (*(work.due_ms for work in self._works), self._connection.due_ms()) if due is not None]
        dues += self._works.overrun_dues_ms()
        if self._exit_due_ms is not None:
            dues.append(self._exit_due_ms)
        return min(dues, default=None)

    def tick(self, now_ms: float) -> list[Effect]:
        """Do what has become due: renewals, timeouts, silence, the end of a grace."""
        effects = Effects()
        for work in self._works:
            if work.due_ms is not None and work.due_ms <= now_ms:
                self._work_due(work, now_ms, effects)
        self._works.warn_of_overruns(now_ms, effects)
        self._connection.tick(self._works.requests(), now_ms, effects)
        if self._exit_due_ms is not None and self._exit_due_ms <= now_ms:
            left = [work.label for work in self._works if work.state is not State.ENDED]
            message = f"the grace is over; unfinished: {', '.join(left[:10]) or 'results not delivered'}"
            self._exit(EXIT_UNFINISHED, message, effects)
        return effects.items

    def _work_due(self, work: Work, now_ms: float, effects: Effects) -> None:
        if work.state is State.RUNNING:
            message = f"the attempt took longer than its timeout of {work.timeout_ms} ms"
            outcome = Failed(failure=Failure(category=TIMEOUT, message=message))
            self._works.overrun(work, now_ms)
            effects.add(CancelCallback(work.request))
            self._end(work, Result(request=work.request, ref=work.ref, outcome=outcome), effects)
        elif work.is_discovery:
            # Unanswered, the lease runs out and the delivery counts as lost: it comes back later, with growing delay.
            effects.add(Warn(f"a pass took longer than {PASS_MS_MAX} ms outside steps and is dropped: {work.label}"))
            self._works.forget(work, effects)
            self._offer_slots(effects)
        else:
            reason = "no slot became free" if work.state is State.WAITING else "the pass took too long"
            self._give_back(work, reason, effects)

    # ---- leaving

    def drain(self, now_ms: float, grace_ms: float) -> list[Effect]:
        """Take no more work, give back what has not started, and exit when the rest is delivered or the grace is over."""
        effects = Effects()
        if self._exit_due_ms is None:
            self._exit_due_ms = now_ms + grace_ms
            if self._works and self._connection.is_up:
                # Before anything goes back, so that none of it is assigned here again.
                effects.add(Send(Drain()))
            self._give_back_unstarted("the worker is leaving", effects)
            for work in self._works:
                if work.follows and work.state is State.PASSING:
                    self._give_back(work, "the worker is leaving", effects)
            self._maybe_exit(effects)
        return effects.items

    def _maybe_exit(self, effects: Effects) -> None:
        if self._exit_due_ms is not None and not self._works and not self._has_exited:
            if self._connection.is_up:
                effects.add(Send(Bye()))
            self._exit(0, "all work is delivered", effects)

    def _exit(self, code: int, message: str, effects: Effects) -> None:
        if not self._has_exited:
            self._has_exited = True
            effects.add(Exit(code, message))


def _is_target(call: StepCall, ref: WorkRef) -> bool:
    """Whether a pass has come to what a delivery is for: its step, or the compensator of its step."""
    wanted = call.callback if ref.kind == "callback" else call.compensate
    return call.declaration.id == ref.step and wanted is not None
