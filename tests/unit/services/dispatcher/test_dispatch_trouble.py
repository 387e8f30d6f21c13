"""When the store is in the way: nothing is lost, nothing spins, and it is said in a way that lets the worker try again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import pytest
from dispatch_rig import Rig, hello
from ryusen.protocol.frames import REPLAY, Assign, HeldWork, Ready, Refused, Settled, Start, Void
from ryusen.protocol.replay import first_digest
from transitions.world import World

from keyspace.keyspace import Keyspace
from keyspace.layout import EVENT_PAYLOAD
from keyspace.queue.pointers import DuePointer
from keyspace.store.errors import StoreUnavailableError
from keyspace.tx import Tx
from services.dispatcher.bucket_scans import BucketScans, ScanAsk
from services.dispatcher.options import INPUT_AT_HAND_BYTES_MAX, SHARED_SCANS_MAX
from services.lanes.duebook import Scan

T = TypeVar("T")


class Failing(Keyspace):
    """A keyspace whose named transitions fail a number of times before they reach the store, or after."""

    def __init__(self, world: World, name: str, times: int, error: Exception, *, is_after: bool = False) -> None:
        super().__init__(world.store, clock=world.clock, prefix=world.keyspace.prefix, rng=world.rng)
        self.name, self.times, self.error, self.is_after = name, times, error, is_after

    async def transact(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        if name != self.name or self.times == 0:
            return await super().transact(name, body)
        self.times -= 1
        if self.is_after:
            await super().transact(name, body)
        raise self.error


LARGE = b'"' + b"x" * INPUT_AT_HAND_BYTES_MAX + b'"'
"""An input that is not read with its lease."""


def troubled(world: World, name: str, times: int, error: Exception | None = None, *, is_after: bool = False) -> Rig:
    """Return a dispatcher whose transitions called `name` fail."""
    problem = error or StoreUnavailableError("down")
    return Rig(world, keyspace=Failing(world, name, times, problem, is_after=is_after))


async def test_a_hello_that_the_store_cannot_take_is_refused_for_now(world: World) -> None:
    """ARCHITECTURE 6: only credentials and protocol end a worker; a store that is down does not."""
    async with troubled(world, "open_session", 1).running() as rig:
        worker = rig.connect()
        worker.say(hello())
        refused = await worker.hear(Refused)
        assert (refused.code, refused.definitive) == ("store_unavailable", False)
        assert (await worker.parted())[0] == 1000
        await rig.join()


async def test_a_settlement_is_tried_again_while_the_store_is_away(world: World) -> None:
    """The worker said it once and keeps it; the dispatcher tries with growing pauses and answers when it is durable."""
    await world.start_run()
    async with troubled(world, "accept_declaration", 3).running() as rig:
        worker = await rig.join()
        assign = await worker.assigned_pass()
        async with anyio.create_task_group() as group:
            group.start_soon(rig.pass_time, 1_000)
            assert (await worker.declare(assign)).verdict == "accepted"
    await world.check()


async def test_a_store_that_stays_away_ends_the_session_so_that_the_worker_says_it_again(world: World) -> None:
    """Case 071's other side: a result is retained by its worker until it is acknowledged, in whatever session."""
    await world.start_run()
    async with troubled(world, "accept_success", 6).running() as rig:
        worker = await rig.join()
        await worker.declare(await worker.assigned_pass())
        callback = await worker.start()
        worker.succeed(callback)
        await rig.pass_time(7_000, step_ms=100)
        assert await worker.parted() == (1013, "store_unavailable")
        back = await rig.join(hello(held=[HeldWork(ref=callback.ref, request=callback.request, state="finished")]))
        back.succeed(callback)
        assert (await back.hear(Settled)).verdict == "accepted"
    await world.check()


async def test_a_settlement_that_fails_for_another_reason_costs_no_session(world: World) -> None:
    """Case 008, the whole kind: one damaged run must not take its worker from session to session for ever."""
    await world.start_run()
    async with troubled(world, "complete_run", 1, AssertionError("damage")).running() as rig:
        worker = await rig.join()
        worker.complete(await worker.assigned_pass())
        await rig.until_settled()
        assert worker.heard() == []
        assert worker.closed is None
        assert rig.metric("settle_failures_total", kind="answer") == 1
        await world.start_run(payload=b"2")
        worker.complete(await worker.assigned_pass())
        assert (await worker.hear(Settled)).verdict == "accepted"


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_start_whose_authorization_nobody_knows_is_taken_back(world: World, is_after: bool) -> None:
    """HOUSE 8: an unknown outcome is resolved by reading, never guessed: the start is not sent, the attempt stays whole."""
    run = await world.start_run()
    async with troubled(world, "authorize_start", 1, is_after=is_after).running() as rig:
        worker = await rig.join()
        await worker.declare(await worker.assigned_pass())
        assign = await worker.hear(Assign)
        worker.say(Ready(request=assign.request))
        await worker.hear(Void)
        await rig.pass_time(500)
        worker.succeed(await worker.start())
        assert (await worker.hear(Settled)).verdict == "accepted"
        step = await world.step(run.run_id, "s1")
        assert (step.ordinal, step.failure_count) == (1, 0)
        assert not [frame for frame in worker.heard() if isinstance(frame, Start)]
    await world.check()


async def test_claims_wait_while_the_store_is_away_and_go_on_by_themselves(world: World) -> None:
    """No hot loop, no item deferred: the trouble is the store's."""
    await world.start_run()
    async with troubled(world, "lease_items", 4).running() as rig:
        worker = await rig.join()
        await rig.until_settled()
        assert worker.heard() == []
        await rig.pass_time(1_500)
        assert (await worker.assigned_pass()).delivery == 1
        assert rig.metric("claim_failures_total") == 0


async def test_an_assignment_that_cannot_be_read_goes_back_as_a_loss(world: World) -> None:
    """Case 008: a damaged run comes back later each time instead of going round in a hot loop."""
    run = await world.start_run(payload=LARGE)
    async with troubled(world, "load_assignment", 1, AssertionError("damage")).running() as rig:
        worker = await rig.join()
        assert (await worker.assigned_pass()).delivery == 2
        assert (await world.kinds(run.run_id)).count("pass-lost") == 1
    await world.check()


@pytest.mark.parametrize("payload", [b"1", LARGE])
async def test_an_input_is_assigned_as_it_is_wherever_it_was_read(world: World, payload: bytes) -> None:
    """A small one is read with the lease, a large one by itself; the worker sees no difference, then or in its next pass."""
    await world.start_run(payload=payload)
    async with Rig(world).running() as rig:
        worker = await rig.join(hello(features=[REPLAY]))
        first = await worker.assigned_pass()
        assert (bytes(first.input), first.memo, first.base) == (payload, [], 0)
        loads = rig.keyspace.meter.snapshot().get("load_assignment")
        assert (loads is None) == (payload != LARGE)
        await worker.declare(first)
        worker.succeed(await worker.start())
        await worker.hear(Settled)
        second = await worker.assigned_pass()
        assert [memo.id for memo in second.memo] == ["s1"]
        assert second.base_digest == first_digest(first.ref.run, payload)


async def test_an_input_that_is_damaged_costs_no_claim(world: World) -> None:
    """Case 008: what is read along with a lease must not fail the leases of others."""
    damaged = await world.start_run()
    await world.run("damage", lambda tx: _without_input(tx, damaged.event_id))
    sound = await world.start_run(payload=b"2")
    async with Rig(world).running() as rig:
        worker = await rig.join()
        assert (await worker.assigned_pass()).ref.run == sound.run_id
        assert rig.metric("claim_failures_total") == 0
        assert (await world.kinds(damaged.run_id)).count("pass-lost") >= 1


async def _without_input(tx: Tx, event_id: str) -> None:
    tx.remove_range(EVENT_PAYLOAD.span("acme", event_id))


class ScriptedPump:
    """An application whose scan is always due."""

    def __init__(self, number: int) -> None:
        self.ask = ScanAsk(f"ws-{number}", "shop", Scan(0, 5, is_full=False))
        self.taken: list[list[DuePointer]] = []

    def due_scan(self, now_ms: int) -> ScanAsk:
        return self.ask

    def take_in(self, ask: ScanAsk, pointers: list[DuePointer], reason: str) -> None:
        assert (ask, reason) == (self.ask, "bucket")
        self.taken.append(pointers)


async def test_a_page_of_scans_that_fails_holds_up_no_other(world: World) -> None:
    """What could not be read in this bucket is read in the next one."""
    pumps = [ScriptedPump(number) for number in range(SHARED_SCANS_MAX + 1)]
    scans = BucketScans(
        Failing(world, "scan_due", 1, StoreUnavailableError("down")), asyncio.Semaphore(4), lambda: pumps
    )
    await scans.scan()
    assert [len(pump.taken) for pump in pumps] == [0] * SHARED_SCANS_MAX + [1]
    await scans.scan()
    assert [len(pump.taken) for pump in pumps] == [1] * SHARED_SCANS_MAX + [2]
