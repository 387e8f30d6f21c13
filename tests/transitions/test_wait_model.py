"""Waits by a model: under every interleaving that was drawn, the model, the rules and the store agree."""

from __future__ import annotations

import random

import pytest
from operator_verbs import cancel
from server_steps import ONCE, fire
from wait_model import RUN_MS, End, Model, Move, Play, broken_rules, moves
from world import EagerClock, World, work_of

from keyspace.errors import Refusal
from keyspace.layout import HISTORY, ITEM, MATCH, WAIT_INDEX
from keyspace.lifecycle import StepState
from keyspace.store.api import KeyRange
from keyspace.transitions import wait_page
from keyspace.transitions.declaration import WaitTerms
from keyspace.transitions.work import Accepted

DRAWN = 20_000
STORED = 2_010
"""Interleavings on the store, at least the 2,000 that the documents state."""
BATCH = 30
LONG = 14
SEED = 20_261_130
HURRIED = {"application": "haste", "function": "hurry"}


def played(drawn: list[Move]) -> Play:
    model = Model()
    for move in drawn:
        model.take(move)
    return model.play


@pytest.mark.case(31)
def test_the_model_keeps_the_rules_under_every_interleaving() -> None:
    """RFD 2, "The registration commit is the registration boundary" and "A registration may be settled by a match only"."""
    rng = random.Random(SEED)
    ends: dict[End | None, int] = {}
    for _ in range(DRAWN):
        drawn = moves(rng, LONG)
        play = played(drawn)
        assert list(broken_rules(play)) == [], drawn
        for wait in play.waits:
            ends[wait.end] = ends.get(wait.end, 0) + 1
    assert set(ends) == {None, *End} and min(ends.values()) > DRAWN / 100, ends


@pytest.mark.parametrize("rule", ["boundary", "pairs", "time", "left", "timeout"])
def test_the_rules_see_what_breaks_them(rule: str) -> None:
    """Would catch a rule that is never broken: each is broken here by hand."""
    drawn: list[Move] = [("register", 5, 1), ("submit", 1, 0), ("chunk", 0, 0)]
    play = played(drawn)
    (wait,), (event,) = play.waits, play.events
    assert wait.end is End.MATCHED and list(broken_rules(play)) == []
    if rule == "boundary":
        event.seq = 0
    elif rule == "pairs":
        event.pairs = {"a": "2"}
    elif rule == "time":
        wait.ended_ms = wait.due_ms
    elif rule == "left":
        wait.end = None
    else:
        wait.end, wait.ended_ms = End.TIMED_OUT, 0
    assert len(list(broken_rules(play))) == 1


class Stage:
    """Takes the same moves on a store; each interleaving has an event name of its own."""

    def __init__(self) -> None:
        self.world = World(clock=EagerClock())
        self.name = ""
        self.waits: list[tuple[str, dict[str, str]]] = []
        self.events: list[str] = []

    async def open(self) -> None:
        await self.world.begin()
        await self.world.publish({"hurry": ["order.hurried"]}, application="haste", timeout_ms=RUN_MS)
        await self.world.hello()

    async def take(self, move: Move, model: Model) -> None:
        """Take a move that the model has taken."""
        world, (verb, first, _) = self.world, move
        if verb == "register":
            await self._register(model)
        elif verb == "submit":
            pairs = model.play.events[-1].pairs
            self.events.append((await world.submit(self.name, b"1", correlation=pairs)).event_id)
        elif verb == "tick":
            world.clock.advance(1 + first % 8)
        elif verb == "chunk":
            event_id = self.events[first % len(self.events)]
            if (await world.expansion(event_id)).item_id is not None:
                await world.expand_chunk(event_id)
        else:
            run_id, _ = self.waits[first % len(self.waits)]
            if verb == "stop":
                await self._stop(run_id)
            else:
                await self._fire(run_id)
        if model.play.waits and any(wait.ended_seq == model.play.seq for wait in model.play.waits):
            await self._finish()

    async def _register(self, model: Model) -> None:
        wait, now_ms = model.play.waits[-1], model.play.now_ms
        at = HURRIED if wait.deadline_ms == now_ms + RUN_MS else {}
        started = (await self.world.submit("order.hurried" if at else "order.placed")).event_id
        await self.world.expand_chunk(started)
        (match,) = await self._below(MATCH.span("acme", started))
        terms = WaitTerms(event=self.name, match=wait.match, timeout_ms=wait.due_ms - now_ms)
        passed = await self.world.lease_pass(**at)
        assert await self.world.declare(passed, "it", retry=ONCE, terms=terms) == Accepted()
        self.waits.append((MATCH.codec.decode(match).run_id, at))

    async def _stop(self, run_id: str) -> None:
        try:
            await cancel(self.world, run_id)
        except Refusal as refused:
            assert refused.code == "stop_conflict", "its own time had ended it before"

    async def _fire(self, run_id: str) -> None:
        step = await self.world.step(run_id, "it")
        if step.server is not None and step.server.item_id is not None:
            item = await self.world.read(lambda tx: tx.load(ITEM.at("acme", step.server.item_id)))
            assert item is not None
            await fire(self.world, item)

    async def _finish(self) -> None:
        """End the run whose wait has just been settled, so that the next pass in its lane is the next registration's."""
        for at in ({}, HURRIED):
            for delivery in await self.world.lease_many(1, **at):
                await self.world.complete(work_of(delivery))

    async def ends(self) -> list[tuple[End | None, int | None]]:
        found: list[tuple[End | None, int | None]] = []
        for run_id, _ in self.waits:
            step = await self.world.step(run_id, "it")
            by = step.server.event_id if step.server is not None else None
            how = {
                StepState.WAITING: None,
                StepState.COMPLETED: End.MATCHED,
                StepState.FAILED: End.TIMED_OUT,
                StepState.OBSOLETE: End.STOPPED if await self._was_stopped(run_id) else End.TIMED_OUT,
            }[step.state]
            found.append((how, None if by is None else self.events.index(by)))
        return found

    async def left(self) -> int:
        """Return how many registrations of this interleaving are in the index."""
        return len(await self._below(WAIT_INDEX.span("acme", self.name)))

    async def _below(self, span: KeyRange) -> list[bytes]:
        rows = await self.world.read(lambda tx: tx.page(span, limit=100, snapshot=True))
        return [value for _, value in rows]

    async def _was_stopped(self, run_id: str) -> bool:
        entries = await self._below(HISTORY.span("acme", run_id))
        return any(HISTORY.codec.decode(entry).kind == "step-fenced" for entry in entries)


@pytest.mark.case(31)
@pytest.mark.case(32)
@pytest.mark.parametrize("batch", range(max(1, STORED // BATCH)))
async def test_the_store_does_what_the_model_does(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """RFD 2's five paragraphs on waits: registration, event, page, timeout, stop and clock in any order, pages of one."""
    monkeypatch.setattr(wait_page, "WAIT_PAGE_ITEMS", 1)
    rng = random.Random(SEED + batch)
    stage = Stage()
    await stage.open()
    for number in range(BATCH):
        drawn, model = moves(rng, LONG), Model()
        stage.name, stage.waits, stage.events = f"it {number}", [], []
        for move in drawn:
            model.take(move)
            await stage.take(move, model)
        expected = [(wait.end, wait.ended_by) for wait in model.play.waits]
        assert await stage.ends() == expected, drawn
        done = [event.done_seq is not None for event in model.play.events]
        assert [(await stage.world.expansion(event)).item_id is None for event in stage.events] == done, drawn
        left = await stage.left()
        assert left == sum(end is None for end, _ in expected), drawn
    await stage.world.check()
