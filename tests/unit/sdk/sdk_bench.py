"""A bench for the worker's core: frames in, effects out, and helpers that spell them briefly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from ryusen.protocol.frames import (
    Assign,
    Complete,
    Hello,
    Outcome,
    ServerFrame,
    Start,
    StepDeclaration,
    Succeeded,
    Welcome,
    WorkerFrame,
    WorkRef,
    decode_server_frame,
    decode_worker_frame,
    encode_frame,
)
from ryusen.worker.core import WorkerCore
from ryusen.worker.effects import (
    Effect,
    RunCallback,
    Send,
)
from ryusen.worker.passes import Ended, Met, Turn
from ryusen.worker.work import WorkerIdentity

LEASE_MS, RENEW_MS, SILENCE_MS = 3_000, 1_000, 5_000
ONE = msgspec.Raw(b"1")
SUCCESS = Succeeded(value=ONE)


def welcome(**changes: Any) -> Welcome:
    given: dict[str, Any] = {
        "session": "s",
        "protocol": 1,
        "workspace": "acme",
        "lease_ms": LEASE_MS,
        "renew_every_ms": RENEW_MS,
        "silence_ms": SILENCE_MS,
        "value_bytes_max": 4_096,
        "clock_ms": 0,
    }
    return Welcome(**{**given, **changes})


def ref(kind: Any = "callback", step: str | None = "pay", run: str = "run-1", token: str = "t") -> WorkRef:
    return WorkRef(
        kind=kind,
        item="i",
        token=token,
        run=run,
        attempt=1,
        generation=1,
        operation="op",
        step=None if kind == "discovery" else step,
    )


def assign(request: str, kind: Any = "callback", *, timeout_ms: int | None = None, **changes: Any) -> Assign:
    return Assign(
        request=request,
        ref=ref(kind, **changes),
        function="fulfil",
        input=ONE,
        memo=[],
        event="e",
        event_name="n",
        timeout_ms=timeout_ms,
    )


@dataclass(frozen=True)
class FakeCall:
    declaration: StepDeclaration
    compensate: Callable[..., object] | None = print
    callback: Callable[..., object] | None = print


def met(step: str = "pay", compensate: Callable[..., object] | None = print) -> Turn:
    return Met(FakeCall(StepDeclaration(id=step), compensate))  # type: ignore[arg-type]


ENDED = Ended(Complete(value=ONE))


@dataclass
class Bench:
    """Drives a core and sorts its effects; checks that what it sends is what the other side can read."""

    capacity: int = 2
    undo_capacity: int = 0
    now_ms: float = 0.0
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        identity = WorkerIdentity(
            "orders", "instance-1", ("fulfil",), self.capacity, "r1", "test", undo_capacity=self.undo_capacity
        )
        self.core = WorkerCore(identity)

    def took(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Send):
                assert decode_worker_frame(encode_frame(effect.frame)) == effect.frame
        self.effects = effects
        return effects

    def up(self, **changes: Any) -> Bench:
        self.took(self.core.connected(self.now_ms))
        self.get(welcome(**changes))
        return self

    def down(self) -> list[Effect]:
        return self.took(self.core.disconnected(self.now_ms))

    def get(self, *frames: ServerFrame) -> list[Effect]:
        effects: list[Effect] = []
        for frame in frames:
            assert decode_server_frame(encode_frame(frame)) == frame
            effects += self.core.received(self.core.session, frame, self.now_ms)
        return self.took(effects)

    def turn(self, request: str, turn: Turn, *failed_met: str) -> list[Effect]:
        return self.took(self.core.pass_turn(request, turn, failed_met, self.now_ms))

    def ended(self, request: str, outcome: Outcome = SUCCESS) -> list[Effect]:
        return self.took(self.core.callback_ended(request, outcome, self.now_ms))

    def after(self, delay_ms: float) -> list[Effect]:
        self.now_ms += delay_ms
        return self.took(self.core.tick(self.now_ms))

    def sent(self) -> list[WorkerFrame]:
        return [effect.frame for effect in self.effects if isinstance(effect, Send)]

    def running(self, request: str = "q1", kind: Any = "callback", **changes: Any) -> Bench:
        """Bring a callback or a compensator to where its user code runs."""
        self.get(assign(request, kind, **changes))
        self.turn(request, met())
        self.get(Start(request=request))
        assert RunCallback(request, 4_096) in self.effects
        return self

    def hello(self) -> Hello:
        (effect,) = self.took(self.core.connected(self.now_ms))
        assert isinstance(effect, Send)
        assert isinstance(effect.frame, Hello)
        return effect.frame
