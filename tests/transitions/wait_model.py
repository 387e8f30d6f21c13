"""Waits and events in small: a model that takes the same moves as the store, and the rules as sentences about what happened.

The model walks: it has an index, pages of one registration, and a cursor. The sentences know of none of these: they look at
what was registered, sent and settled, and when. So each can be held against the other, and the store against both.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from keyspace.transitions.correlation import pair_of_registration, pairs_of_event

__all__ = ["End", "Model", "Move", "Play", "Sent", "Wait", "broken_rules", "moves"]

PAIRS: tuple[dict[str, str], ...] = ({}, {"a": "1"}, {"a": "2"}, {"b": "1"}, {"a": "1", "b": "1"})
TIMEOUTS_MS = (0, 1, 5, 5, 20, 1_000)
RUN_MS = 12
"""How long a hurried run may take."""
NEVER_MS = 2**60
Move = tuple[str, int, int]
"""A verb and two numbers, whose meaning is the verb's."""
VERBS = ("register", "submit", "chunk", "chunk", "chunk", "fire", "fire", "stop", "tick")


class End(StrEnum):
    """What became of a wait."""

    MATCHED = "matched"
    TIMED_OUT = "timed out"
    STOPPED = "stopped"


@dataclass
class Wait:
    """A registration: its place among the commits, what it asks for, until when, and what became of it at which move."""

    match: dict[str, str]
    seq: int
    due_ms: int
    deadline_ms: int = NEVER_MS
    end: End | None = None
    ended_by: int | None = None
    ended_seq: int = -1
    ended_ms: int = -1


@dataclass
class Sent:
    """An event: its place among the commits, what it carries, when it was accepted, and when its expansion was complete."""

    pairs: dict[str, str]
    seq: int
    at_ms: int
    cursor: tuple[int, int] = (-1, -1)
    done_seq: int | None = None
    done_ms: int = -1


@dataclass
class Play:
    """What has happened: the moves are numbered by `seq`, which is the order of their commits."""

    now_ms: int = 0
    seq: int = 0
    waits: list[Wait] = field(default_factory=list)
    events: list[Sent] = field(default_factory=list)
    fired: list[tuple[int, int, int]] = field(default_factory=list)
    """Deliveries of a wait's timeout: the wait, the move, the instant."""

    def end(self, wait: Wait, how: End, by: int | None = None) -> None:
        wait.end, wait.ended_by, wait.ended_seq, wait.ended_ms = how, by, self.seq, self.now_ms


def moves(rng: random.Random, count: int) -> list[Move]:
    """Return moves drawn at random, beginning with a registration and an event."""
    verbs = ["register", "submit"] + [rng.choice(VERBS) for _ in range(count - 2)]
    return [(verb, rng.randrange(30), rng.randrange(30)) for verb in verbs]


class Model:
    """Takes moves, one page of one registration at a time."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.play = Play()

    def take(self, move: Move) -> None:
        """Let one move happen."""
        play = self.play
        play.seq += 1
        verb, first, second = move
        if verb == "register":
            deadline_ms = play.now_ms + RUN_MS if second % 3 == 0 else NEVER_MS
            due_ms = play.now_ms + TIMEOUTS_MS[first % len(TIMEOUTS_MS)]
            play.waits.append(Wait(PAIRS[second % len(PAIRS)], play.seq, due_ms, deadline_ms))
        elif verb == "submit":
            play.events.append(Sent(PAIRS[first % len(PAIRS)], play.seq, play.now_ms))
        elif verb == "tick":
            play.now_ms += 1 + first % 8
        elif verb == "chunk":
            self._chunk(first % len(play.events))
        else:
            self._meet(verb, first % len(play.waits))

    def _meet(self, verb: str, number: int) -> None:
        play, wait = self.play, self.play.waits[number]
        if verb == "fire":
            play.fired.append((number, play.seq, play.now_ms))
        if wait.end is not None:
            return
        if verb == "stop":
            play.end(wait, End.STOPPED)
        elif play.now_ms >= wait.due_ms:
            play.end(wait, End.STOPPED if play.now_ms >= wait.deadline_ms else End.TIMED_OUT)

    def _chunk(self, number: int) -> None:
        play, event = self.play, self.play.events[number]
        if event.done_seq is not None:
            return
        ranges = pairs_of_event(event.pairs)
        left = []
        for wait in play.waits:
            pair = pair_of_registration(wait.match)
            if wait.end is None and wait.seq < event.seq and pair in ranges:
                place = (ranges.index(pair), wait.seq)
                if place > event.cursor:
                    left.append((place, wait))
        left.sort(key=lambda one: one[0])
        if left:
            event.cursor, wait = left[0]
            carried = wait.match.items() <= event.pairs.items()
            if carried and event.at_ms < wait.due_ms and play.now_ms < min(wait.due_ms, wait.deadline_ms):
                play.end(wait, End.MATCHED, number)
        if len(left) <= 1:
            event.done_seq, event.done_ms = play.seq, play.now_ms


def broken_rules(play: Play) -> Iterator[str]:
    """Yield a sentence for each rule of RFD 2 that what has happened breaks."""
    for number, wait in enumerate(play.waits):
        last_ms = min(wait.due_ms, wait.deadline_ms)
        if wait.end is End.MATCHED:
            assert wait.ended_by is not None
            event = play.events[wait.ended_by]
            if event.seq <= wait.seq:
                yield f"wait {number} was settled by an event of before its registration"
            if not wait.match.items() <= event.pairs.items():
                yield f"wait {number} was settled by an event without its pairs"
            if event.at_ms >= wait.due_ms or wait.ended_ms >= last_ms:
                yield f"wait {number} was settled when its time was over"
        if wait.end is End.TIMED_OUT and not wait.due_ms <= wait.ended_ms < wait.deadline_ms:
            yield f"wait {number} timed out early, or in a run whose own time was over"
        for event in play.events:
            if event.done_seq is None or wait.seq > event.seq or not wait.match.items() <= event.pairs.items():
                continue
            still = wait.end is None or wait.ended_seq > event.done_seq
            if still and event.at_ms < wait.due_ms and event.done_ms < last_ms:
                yield f"wait {number} was left by an event that satisfies it"
    for number, seq, at_ms in play.fired:
        wait = play.waits[number]
        still = wait.end is None or wait.ended_seq > seq
        if still and at_ms >= wait.due_ms:
            yield f"wait {number} outlived the delivery of its timeout"
