"""The worker's core under arbitrary sequences of frames, turns, losses and time: what must hold whatever happens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from ryusen.protocol.frames import (
    Cancel,
    Drain,
    GiveBack,
    Hello,
    Ready,
    Refused,
    Renewed,
    Result,
    ServerFrame,
    Settled,
    Start,
    Void,
)
from ryusen.worker.effects import (
    CancelCallback,
    Close,
    ClosePass,
    Effect,
    Exit,
    ResumePass,
    RunCallback,
    Send,
    StartPass,
)
from ryusen.worker.work import HELD_EXTRA_MAX
from sdk_bench import ENDED, SUCCESS, Bench, assign, met, welcome

SLOTS = 4
CAPACITY = 2

ABOUT: dict[str, Callable[[str], ServerFrame]] = {
    "discovery": lambda request: assign(request, "discovery"),
    "callback": lambda request: assign(request, timeout_ms=700),
    "compensation": lambda request: assign(request, "compensation"),
    "start": lambda request: Start(request=request),
    "void": lambda request: Void(request=request, reason="x"),
    "settled": lambda request: Settled(request=request, verdict="accepted"),
    "stale": lambda request: Settled(request=request, verdict="stale"),
    "refused": lambda request: Settled(request=request, verdict="refused", code="c"),
    "lost": lambda request: Renewed(requests=[], lost=[request]),
    "cancel": lambda request: Cancel(request=request, reason="x"),
    "drain": lambda request: Drain(),
    "busy": lambda request: Refused(code="busy", message="m", definitive=False),
    "welcome": lambda request: welcome(silence_ms=10_000),
}


def draw(rng: random.Random) -> tuple[str, int, Any]:
    """Return a move: mostly one that brings a delivery on, often enough one that nobody expects."""
    slot = rng.randrange(SLOTS)
    kind = rng.choices(["advance", "frame", "turn", "wait", "lose"], [60, 15, 10, 10, 1])[0]
    if kind == "frame":
        return kind, slot, rng.choices(list(ABOUT), [1 if name in ("drain", "busy") else 5 for name in ABOUT])[0]
    if kind == "turn":
        return kind, slot, rng.choice([met(), met("other"), ENDED])
    return kind, slot, rng.choice([1, 200, 500, 6_000])


class Oracle:
    """What user code and the dispatcher have seen so far, and what may therefore not happen."""

    def __init__(self) -> None:
        self.bench = Bench(capacity=CAPACITY)
        self.incarnations = [0] * SLOTS
        self.is_open = False
        self.passes: set[str] = set()
        self.parked: set[str] = set()
        self.running: set[str] = set()
        self.ran: set[str] = set()
        self.readied: set[str] = set()
        self.allowed: set[str] = set()
        self.has_exited = False
        self.must_reconnect = False
        self.overran: set[str] = set()

    def request(self, slot: int) -> str:
        """Return the slot's delivery; once one is forgotten and over, the slot gets a new one."""
        request = f"q{slot}.{self.incarnations[slot]}"
        if request in self.bench.core._works._recent and request not in self.running:
            self.incarnations[slot] += 1
            return self.request(slot)
        return request

    def move(self, name: str, slot: int = 0, what: Any = None) -> None:
        bench, request = self.bench, self.request(slot)
        if name == "advance":
            name, what = self.next_of(request)
        if name == "connect":
            self.is_open = True
            self.see(bench.took(bench.core.connected(bench.now_ms)))
            self.see(bench.get(welcome(silence_ms=10_000)))
        elif name == "lose":
            self.is_open = False
            self.see(bench.down())
            self.move("connect")
        elif name == "frame":
            self.frame(ABOUT[what](request))
        elif name == "turn" and request in self.passes - self.parked:
            self.parked.add(request)
            self.see(bench.turn(request, what))
        elif name == "ended" and request in self.running:
            self.ended(request)
        elif name == "wait":
            self.see(bench.after(what))
        elif name == "drain":
            self.see(bench.took(bench.core.drain(bench.now_ms, 3_000)))
        if self.must_reconnect:
            self.must_reconnect = False
            self.move("lose")

    def ended(self, request: str) -> None:
        self.running.discard(request)
        self.see(self.bench.ended(request, SUCCESS))
        results = [frame.request for frame in self.bench.sent() if isinstance(frame, Result)]
        assert results == ([] if request in self.overran else [request]), "what has run is told, once"

    def next_of(self, request: str) -> tuple[str, Any]:
        """Return the move that brings a delivery on, so that sequences reach the deep states."""
        if request in self.running:
            return "ended", None
        if request in self.ran:
            return "frame", "settled"
        if request in self.readied:
            return "frame", "start"
        if request in self.passes:
            return "turn", met()
        return "frame", "callback"

    def frame(self, frame: ServerFrame) -> None:
        if isinstance(frame, Start):
            self.allowed.add(frame.request)
        self.see(self.bench.get(frame))
        if isinstance(frame, Start):
            self.allowed.discard(frame.request)

    def see(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartPass):
                assert effect.request not in self.passes, "a pass under way is not started again"
                assert not self.has_exited
                self.passes.add(effect.request)
                self.parked.discard(effect.request)
            elif isinstance(effect, ClosePass):
                self.passes.discard(effect.request)
                self.parked.discard(effect.request)
            elif isinstance(effect, ResumePass):
                assert effect.request in self.parked
                self.parked.discard(effect.request)
            elif isinstance(effect, RunCallback):
                self.run(effect.request)
            elif isinstance(effect, CancelCallback):
                self.overran.add(effect.request)
            elif isinstance(effect, Close):
                self.must_reconnect = True
            elif isinstance(effect, Exit):
                self.has_exited = True
            elif isinstance(effect, Send):
                self.sent(effect.frame)
        assert len(self.running) <= CAPACITY
        assert len(self.bench.core._works) <= CAPACITY + HELD_EXTRA_MAX

    def run(self, request: str) -> None:
        assert request in self.allowed, "user code runs only when its start has come"
        assert request in self.readied, "and only after it was said to be ready"
        assert request in self.parked, "and only where its pass is parked"
        assert request not in self.ran, "and never twice for one delivery"
        self.ran.add(request)
        self.running.add(request)

    def sent(self, frame: Any) -> None:
        assert self.is_open
        if isinstance(frame, Ready):
            self.readied.add(frame.request)
        elif isinstance(frame, GiveBack):
            assert frame.request not in self.running, "what runs is never given back"
        elif isinstance(frame, Hello):
            held = {work.request for work in frame.held}
            assert self.running - held <= self.forgotten(), "what runs is listed, unless its outcome was settled"

    def forgotten(self) -> set[str]:
        return self.ran - set(self.bench.core._works.requests())


@pytest.mark.case(14)
@pytest.mark.parametrize("seed", range(100))
def test_nothing_runs_twice_or_unasked_whatever_the_order(seed: int) -> None:
    """Case 014 and all its kin: repeated, late, crossing and lost frames in any order."""
    rng, oracle = random.Random(seed), Oracle()
    oracle.move("connect")
    for _ in range(300):
        oracle.move(*draw(rng))
    assert oracle.ran, "sequences reach user code"
    oracle.move("drain")
    for _ in range(rng.randrange(30)):
        oracle.move(*draw(rng))
    oracle.move("wait", 0, 6_000)
    assert oracle.has_exited, "a worker that was told to leave leaves"
