"""What every event comes to, wherever a run and the work it is about stand: the whole of RFD 1 and RFD 2 as one table.

`lifecycle.py` says which edges there are; this says which one is taken, or why none is. Each transition decides for itself,
from its own records; a test builds every situation on the store, lets every event happen to it, and compares. So the table
is complete (a pair that is missing fails the test), true, and printed into keyspace/README.md.

Two tables: `ATTEMPTS`, of a physical attempt in either direction, and `PASSES`, of a discovery pass. A key is the situation
of the run, the standing of the work and the event; the value is a `Decision`. What cannot stand so is in `IMPOSSIBLE`, with
the rule that excludes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import product
from typing import NamedTuple

from keyspace.lifecycle import AttemptState
from keyspace.records.work import Direction

__all__ = [
    "ATTEMPTS",
    "IMPOSSIBLE",
    "IMPOSSIBLE_PASSES",
    "MEANINGS",
    "PASSES",
    "Decision",
    "Event",
    "Follows",
    "PassEvent",
    "PassStanding",
    "Situation",
    "Standing",
]


class Situation(StrEnum):
    """The phase of the run with what decides besides: why it stops, and whether its deadline has passed."""

    RUNNING = "Running"
    OVERDUE = "Running, deadline passed"
    BLOCKED = "DefinitionBlocked"
    BLOCKED_OVERDUE = "DefinitionBlocked, deadline passed"
    CANCELLED = "Cancelling (Cancelled)"
    CANCELLED_OVERDUE = "Cancelling (Cancelled), deadline passed"
    TIMED_OUT = "Cancelling (TimedOut)"
    UNWINDING = "Compensating"
    UNWINDING_OVERDUE = "Compensating, deadline passed"
    ENDED = "Terminal"


class Standing(StrEnum):
    """The state of an attempt with what decides besides: its lease, its class, its losses."""

    QUEUED = "queued"
    LEASED = "leased"
    EFFECTFUL = "authorized, effectful"
    REPEATABLE = "authorized, repeatable"
    REPEATABLE_LAST = "authorized, repeatable, lost twice"
    REDELIVERED = "queued after a loss, nobody leased it since"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FENCED = "fenced"
    RETRY_AUTHORIZED = "retry_authorized"


class Event(StrEnum):
    """What a worker, its session, an operator or the clock does to an attempt, or to its run meanwhile."""

    AUTHORIZE = "authorize its start"
    SUCCESS = "success"
    FAILURE = "failure, retry allowed"
    LAST_FAILURE = "failure, the last"
    TARGET_NOT_FOUND = "target_not_found"
    LEASE_LOST = "lease lost"
    NOT_STARTED = "proven not started"
    SUPPLY_SUCCESS = "operator: success"
    DECLARE_FAILURE = "operator: failure, retry allowed"
    AUTHORIZE_RETRY = "operator: retry"
    CANCEL = "cancel"
    TIMER = "deadline's timer"


class PassStanding(StrEnum):
    """Where a discovery pass stands."""

    QUEUED = "queued"
    AUTHORIZED = "authorized"
    REDELIVERED = "queued after a loss, nobody leased it since"
    SUPERSEDED = "leased by another since"
    ANSWERED = "answered"
    DISCARDED = "discarded by a stop"


class PassEvent(StrEnum):
    """What a pass answers, and what happens to it."""

    DECLARE = "declares a step"
    COMPLETE = "completes the function"
    FAIL = "fails the function"
    BLOCK = "definition_blocked"
    LEASE_LOST = "lease lost"
    CANCEL = "cancel"
    TIMER = "deadline's timer"


class Follows(StrEnum):
    """What the run goes on with; `MEANINGS` says it in full."""

    SAME = "–"
    RUNS = "runs"
    DISCOVERY = "pass"
    CALLBACK = "first attempt"
    SUCCESSOR = "delayed attempt"
    NEXT = "next attempt"
    AGAIN = "again"
    OPERATOR = "operator"
    SETTLES = "settles"
    UNWINDS = "unwinds"
    TARGET = "next target"
    UNDO_FAILS = "CompensationFailed"
    BLOCKS = "blocks"
    COMPLETES = "Completed"


MEANINGS: Mapping[Follows, str] = {
    Follows.SAME: "nothing changes",
    Follows.RUNS: "the callback or compensator may begin",
    Follows.DISCOVERY: "discovery work, ready now",
    Follows.CALLBACK: "the declared step's first attempt is queued",
    Follows.SUCCESSOR: "the attempt's successor is queued: next generation and ordinal, after its backoff",
    Follows.NEXT: "the same, ready now",
    Follows.AGAIN: "the same attempt, or pass, is in its lane again",
    Follows.OPERATOR: "no work: a late result, a proof or an operator goes on",
    Follows.SETTLES: "Cancelling, until its outcome is known",
    Follows.UNWINDS: "the last token is settled: Compensating, or Terminal when no step had completed",
    Follows.TARGET: "the next completed step is undone, or the unwind ends",
    Follows.UNDO_FAILS: "Terminal, CompensationFailed",
    Follows.BLOCKS: "DefinitionBlocked, without work until somebody looks again",
    Follows.COMPLETES: "Terminal, Completed",
}
"""The words of `Follows` in full."""


class Decision(NamedTuple):
    """What an event comes to.

    `answer` is what its author is told: `accepted`, `replayed`, a word, or the code of a stale answer or a refusal. `attempt`
    is the state that the attempt moves to; None when it stays.
    """

    answer: str
    follows: Follows = Follows.SAME
    attempt: AttemptState | None = None


Cell = tuple[Direction, Situation, Standing, Event]
PassCell = tuple[Situation, PassStanding, PassEvent]

_S, _F, _A = Standing, Follows, AttemptState
_RUNNING = (Situation.RUNNING, Situation.OVERDUE)
_BLOCKED = (Situation.BLOCKED, Situation.BLOCKED_OVERDUE)
_STOPPING = (Situation.CANCELLED, Situation.CANCELLED_OVERDUE, Situation.TIMED_OUT)
_UNWINDING = (Situation.UNWINDING, Situation.UNWINDING_OVERDUE)
_FORWARD_ENDS = (Situation.OVERDUE, *_STOPPING)
"""Where an accepted forward outcome schedules nothing forward: under a stop, or where it commits the deadline's first."""
_AUTHORIZED = (_S.EFFECTFUL, _S.REPEATABLE, _S.REPEATABLE_LAST)
_SETTLED = (_S.SUCCEEDED, _S.FAILED, _S.FENCED, _S.RETRY_AUTHORIZED)
_OPEN = tuple(standing for standing in Standing if standing not in _SETTLED)
_RESULTS = (Event.SUCCESS, Event.FAILURE, Event.LAST_FAILURE)
_COMMANDS = (Event.SUPPLY_SUCCESS, Event.DECLARE_FAILURE, Event.AUTHORIZE_RETRY)
_NOTHING = Decision("nothing")


def _impossible() -> Iterator[tuple[tuple[Direction, Situation, Standing], str]]:
    for situation, standing in product(Situation, Standing):
        forward, undo = (Direction.FORWARD, situation, standing), (Direction.COMPENSATION, situation, standing)
        if situation in _BLOCKED and standing in _OPEN:
            yield forward, "a blocker is what a pass reports, and a pass exists only while no step is outstanding"
        if situation in _STOPPING and standing in (_S.QUEUED, _S.LEASED, _S.REDELIVERED):
            yield forward, "a stop fences what has not begun, and makes Unknown what may not begin again"
        if situation in _UNWINDING and standing in _OPEN:
            yield forward, "an unwind begins after every settlement token is settled"
        if situation is Situation.ENDED and standing in _OPEN:
            yield forward, "C4: a terminal run owns no work"
            yield undo, "C4: a terminal run owns no work"
        if situation not in (*_UNWINDING, Situation.ENDED):
            yield undo, "only an unwind undoes"


IMPOSSIBLE: Mapping[tuple[Direction, Situation, Standing], str] = dict(_impossible())
"""Attempts that cannot stand so, and why."""


# -- what is refused, wherever the run stands: nothing changes, a result is kept as a diagnostic

_REFUSED: dict[Standing, dict[tuple[Event, ...], str]] = {
    _S.QUEUED: {(Event.AUTHORIZE, *_RESULTS, Event.TARGET_NOT_FOUND): "lease_lost"},
    _S.LEASED: {_RESULTS: "lease_lost"},
    _S.EFFECTFUL: {(Event.TARGET_NOT_FOUND,): "attempt_not_queued", (Event.AUTHORIZE,): "replayed"},
    _S.REPEATABLE: {(Event.TARGET_NOT_FOUND,): "attempt_not_queued", (Event.AUTHORIZE,): "replayed"},
    _S.REPEATABLE_LAST: {(Event.TARGET_NOT_FOUND,): "attempt_not_queued", (Event.AUTHORIZE,): "replayed"},
    _S.REDELIVERED: {(Event.AUTHORIZE,): "lease_expired"},
    _S.UNKNOWN: {(Event.AUTHORIZE, Event.TARGET_NOT_FOUND): "lease_lost"},
    _S.SUCCEEDED: {_RESULTS: "attempt_settled", (Event.AUTHORIZE, Event.TARGET_NOT_FOUND): "lease_lost"},
    _S.FAILED: {_RESULTS: "attempt_settled", (Event.AUTHORIZE, Event.TARGET_NOT_FOUND): "lease_lost"},
    _S.FENCED: {(Event.AUTHORIZE, *_RESULTS): "lease_lost", (Event.TARGET_NOT_FOUND,): "replayed"},
    _S.RETRY_AUTHORIZED: {
        _RESULTS: "attempt_not_authorized",
        (Event.AUTHORIZE, Event.TARGET_NOT_FOUND): "lease_lost",
    },
}


def _refusals(direction: Direction, situation: Situation, standing: Standing) -> Iterator[tuple[Event, Decision]]:
    for events, code in _REFUSED[standing].items():
        yield from ((event, Decision(code)) for event in events)
    if situation is Situation.TIMED_OUT and standing not in _AUTHORIZED:
        # Nobody's lease stands any more: the late start is told what it would have been told at the deadline.
        yield Event.AUTHORIZE, Decision("deadline_elapsed")
    yield from ((event, Decision("stale_attempt")) for event in _COMMANDS)
    yield from ((event, _NOTHING) for event in (Event.LEASE_LOST, Event.NOT_STARTED))
    yield Event.CANCEL, Decision(_CANCEL_WORDS.get(situation, "accepted"))
    yield Event.TIMER, Decision("not_due" if situation in (Situation.RUNNING, Situation.BLOCKED) else "gone")


_CANCEL_WORDS: dict[Situation, str] = {
    Situation.CANCELLED: "repeated",
    Situation.CANCELLED_OVERDUE: "repeated",
    Situation.TIMED_OUT: "stop_conflict",
    Situation.UNWINDING: "already_ending",
    Situation.UNWINDING_OVERDUE: "already_ending",
    Situation.ENDED: "already_terminal",
}


# -- what is accepted


def _stops(situation: Situation, standing: Standing) -> Iterator[tuple[Event, Decision]]:
    """A stop committed now: what has begun is waited for, what has not is fenced, and nothing is left to wait for else."""
    if standing in (_S.QUEUED, _S.LEASED):
        follows, attempt = _F.UNWINDS, _A.FENCED
    elif standing is _S.REDELIVERED:
        follows, attempt = _F.SETTLES, _A.UNKNOWN
    else:
        follows, attempt = _F.SETTLES if standing in _OPEN else _F.UNWINDS, None
    yield Event.CANCEL, Decision("accepted", follows, attempt)
    if situation in (Situation.OVERDUE, Situation.BLOCKED_OVERDUE):
        yield Event.TIMER, Decision("stopped", follows, attempt)


def _forward(situation: Situation, standing: Standing) -> Iterator[tuple[Event, Decision]]:
    is_ending = situation in _FORWARD_ENDS
    if situation in (*_RUNNING, *_BLOCKED):
        yield from _stops(situation, standing)
    if standing is _S.LEASED:
        late = Decision("deadline_elapsed", _F.UNWINDS, _A.FENCED)
        yield Event.AUTHORIZE, late if is_ending else Decision("accepted", _F.RUNS, _A.AUTHORIZED)
        gone = _F.UNWINDS if is_ending else _F.DISCOVERY
        yield Event.TARGET_NOT_FOUND, Decision("accepted", gone, _A.FENCED)
        yield Event.LEASE_LOST, Decision("returned", _F.AGAIN)
    if standing is _S.REDELIVERED:
        yield Event.TARGET_NOT_FOUND, Decision("accepted", _F.SETTLES if is_ending else _F.OPERATOR, _A.UNKNOWN)
    if standing in (*_AUTHORIZED, _S.REDELIVERED, _S.UNKNOWN):
        yield Event.SUCCESS, Decision("accepted", _F.UNWINDS if is_ending else _F.DISCOVERY, _A.SUCCEEDED)
        yield Event.FAILURE, Decision("accepted", _F.UNWINDS if is_ending else _F.SUCCESSOR, _A.FAILED)
        yield Event.LAST_FAILURE, Decision("accepted", _F.UNWINDS if is_ending else _F.DISCOVERY, _A.FAILED)
    if standing in _AUTHORIZED:
        unknown = Decision("unknown", _F.SETTLES if is_ending else _F.OPERATOR, _A.UNKNOWN)
        again = standing is _S.REPEATABLE and not is_ending
        yield Event.LEASE_LOST, Decision("redelivered", _F.AGAIN, _A.QUEUED) if again else unknown
    if standing in (*_AUTHORIZED, _S.UNKNOWN):
        fenced = Decision("accepted", _F.UNWINDS, _A.FENCED)
        yield Event.NOT_STARTED, fenced if is_ending else Decision("accepted", _F.AGAIN, _A.QUEUED)
    if standing is _S.REPEATABLE_LAST and is_ending:
        # The proof is of the last delivery; an earlier one has begun.
        commits = situation is Situation.OVERDUE
        yield Event.NOT_STARTED, Decision("nothing", _F.SETTLES) if commits else _NOTHING
    if standing is _S.UNKNOWN:
        yield Event.SUPPLY_SUCCESS, Decision("accepted", _F.UNWINDS if is_ending else _F.DISCOVERY, _A.SUCCEEDED)
        yield Event.DECLARE_FAILURE, Decision("accepted", _F.UNWINDS if is_ending else _F.SUCCESSOR, _A.FAILED)
        is_cancelled = situation in (Situation.CANCELLED, Situation.CANCELLED_OVERDUE)
        refused = Decision("retry_forbidden" if is_cancelled else "deadline_elapsed")
        retried = Decision("accepted", _F.NEXT, _A.RETRY_AUTHORIZED)
        yield Event.AUTHORIZE_RETRY, refused if is_ending else retried


def _undo(situation: Situation, standing: Standing) -> Iterator[tuple[Event, Decision]]:
    """Compensation ignores the deadline and every stop: nothing cancels an undo."""
    if standing is _S.LEASED:
        yield Event.AUTHORIZE, Decision("accepted", _F.RUNS, _A.AUTHORIZED)
        yield Event.TARGET_NOT_FOUND, Decision("accepted", _F.TARGET, _A.FENCED)
        yield Event.LEASE_LOST, Decision("returned", _F.AGAIN)
    if standing is _S.REDELIVERED:
        yield Event.TARGET_NOT_FOUND, Decision("accepted", _F.OPERATOR, _A.UNKNOWN)
    if standing in (*_AUTHORIZED, _S.REDELIVERED, _S.UNKNOWN):
        yield Event.SUCCESS, Decision("accepted", _F.TARGET, _A.SUCCEEDED)
        yield Event.FAILURE, Decision("accepted", _F.SUCCESSOR, _A.FAILED)
        yield Event.LAST_FAILURE, Decision("accepted", _F.UNDO_FAILS, _A.FAILED)
    if standing in _AUTHORIZED:
        again = Decision("redelivered", _F.AGAIN, _A.QUEUED)
        unknown = Decision("unknown", _F.OPERATOR, _A.UNKNOWN)
        yield Event.LEASE_LOST, again if standing is _S.REPEATABLE else unknown
    if standing in (*_AUTHORIZED, _S.UNKNOWN):
        yield Event.NOT_STARTED, Decision("accepted", _F.AGAIN, _A.QUEUED)
    if standing is _S.UNKNOWN:
        yield Event.SUPPLY_SUCCESS, Decision("accepted", _F.TARGET, _A.SUCCEEDED)
        yield Event.DECLARE_FAILURE, Decision("accepted", _F.SUCCESSOR, _A.FAILED)
        yield Event.AUTHORIZE_RETRY, Decision("accepted", _F.NEXT, _A.RETRY_AUTHORIZED)


def _attempts() -> Iterator[tuple[Cell, Decision]]:
    for at in product(Direction, Situation, Standing):
        if at in IMPOSSIBLE:
            continue
        direction, situation, standing = at
        row = dict(_refusals(*at))
        row |= dict(_forward(situation, standing) if direction is Direction.FORWARD else _undo(situation, standing))
        yield from (((*at, event), decision) for event, decision in row.items())


ATTEMPTS: Mapping[Cell, Decision] = dict(_attempts())
"""What becomes of an attempt, and of its run."""


# -- passes

_P = PassStanding
_ANSWERS = (PassEvent.DECLARE, PassEvent.COMPLETE, PassEvent.FAIL, PassEvent.BLOCK)
_PASSING = (*_RUNNING, *_BLOCKED)
_ACCEPTED_ANSWERS: dict[PassEvent, Follows] = {
    PassEvent.DECLARE: _F.CALLBACK,
    PassEvent.COMPLETE: _F.COMPLETES,
    PassEvent.FAIL: _F.UNWINDS,
    PassEvent.BLOCK: _F.BLOCKS,
}


def _impossible_passes() -> Iterator[tuple[tuple[Situation, PassStanding], str]]:
    for situation, standing in product(Situation, PassStanding):
        if situation in _PASSING and standing is _P.DISCARDED:
            yield (situation, standing), "only a stop discards a pass"
        if situation not in _PASSING and standing not in (_P.ANSWERED, _P.DISCARDED):
            yield (situation, standing), "a stop discards every pass, and an answer that ends the function consumes it"
        if situation in _STOPPING and standing is _P.DISCARDED:
            yield (
                (situation, standing),
                "while a pass is outstanding nothing has to settle, so its stop ends the run at once",
            )


IMPOSSIBLE_PASSES: Mapping[tuple[Situation, PassStanding], str] = dict(_impossible_passes())
"""Passes that cannot stand so, and why."""


def _pass_row(situation: Situation, standing: PassStanding) -> dict[PassEvent, Decision]:
    code = {_P.ANSWERED: "pass_settled", _P.DISCARDED: "run_stopping"}.get(standing, "lease_lost")
    row = {event: Decision(code) for event in _ANSWERS}
    row[PassEvent.LEASE_LOST] = _NOTHING
    row[PassEvent.CANCEL] = Decision(_CANCEL_WORDS.get(situation, "accepted"))
    row[PassEvent.TIMER] = Decision("not_due" if situation in (Situation.RUNNING, Situation.BLOCKED) else "gone")
    is_overdue = situation in (Situation.OVERDUE, Situation.BLOCKED_OVERDUE)
    if situation in _PASSING:
        row[PassEvent.CANCEL] = Decision("accepted", _F.UNWINDS)
        if is_overdue:
            row[PassEvent.TIMER] = Decision("stopped", _F.UNWINDS)
    if standing in (_P.AUTHORIZED, _P.REDELIVERED):
        late = Decision("deadline_elapsed", _F.UNWINDS)
        row |= {e: late if is_overdue else Decision("accepted", follows) for e, follows in _ACCEPTED_ANSWERS.items()}
    if standing is _P.AUTHORIZED:
        row[PassEvent.LEASE_LOST] = Decision("redelivered", _F.UNWINDS if is_overdue else _F.AGAIN)
    if standing is _P.DISCARDED and situation in _UNWINDING:
        row[PassEvent.CANCEL] = Decision("repeated")
    return row


PASSES: Mapping[PassCell, Decision] = {
    (situation, standing, event): decision
    for situation, standing in product(Situation, PassStanding)
    if (situation, standing) not in IMPOSSIBLE_PASSES
    for event, decision in _pass_row(situation, standing).items()
}
"""What becomes of a pass's answer, and of its run."""
