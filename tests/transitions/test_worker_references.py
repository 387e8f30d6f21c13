"""What a worker may name: its own work only, and a pass that it declined as little as a callback."""

from __future__ import annotations

import pytest
from operator_verbs import cancel, start_undo
from world import World, work_of

from keyspace.lifecycle import CompensationState, ItemState, Recovery
from keyspace.transitions.continue_run import Completion
from keyspace.transitions.work import Accepted, Replayed, Stale


@pytest.mark.case(41)
async def test_a_result_that_names_the_item_of_another_run_changes_nothing(world: World) -> None:
    """Case 041: a reference mixed from two works consumed the other one's item and left its run without a way forward."""
    await world.start_run()
    mine = await world.start_step()
    other = await world.start_run(payload=b"2")
    assert other.item_id is not None
    verdict = await world.succeed(mine._replace(item_id=other.item_id))
    assert verdict == Stale("lease_lost")
    stored = await world.item(other.item_id)
    assert stored is not None and stored.state is ItemState.READY
    assert isinstance(await world.succeed(mine), Accepted)
    await world.check()


@pytest.mark.case(41)
async def test_a_start_that_names_the_lease_of_another_run_starts_nothing(world: World) -> None:
    """Case 041: under the other's lease nobody would ever lose it, and the other would have two holders."""
    await world.start_run()
    await world.start_run(payload=b"2")
    for delivery in await world.lease_many(2):
        await world.declare(work_of(delivery))
    mine, others = (work_of(delivery) for delivery in await world.lease_many(2))
    mixed = mine._replace(item_id=others.item_id, token=others.token)
    assert await world.authorize(mixed) == Stale("lease_lost")
    for work in (mine, others):
        assert await world.leased_state(work) is ItemState.LEASED
        assert isinstance(await world.authorize(work), Accepted)
    await world.check()


async def test_no_pass_follows_an_undo(world: World) -> None:
    """ARCHITECTURE 6, "whatever becomes of the answer": an undo that announces a pass is an undo, and the unwind goes on."""
    await world.start_run()
    settled = await world.run_step("s1")
    await world.run_step("s2")
    await cancel(world, settled.run_id)
    work = await start_undo(world)
    told = await world.go_on(work, Completion(b"1"))
    assert (told.result, told.answer, told.following) == (Accepted(), Stale("no_pass_of_undo"), None)
    assert (await world.step(work.run_id, "s2")).compensation is CompensationState.DONE
    assert (await world.go_on(work, Completion(b"1"))).result == Replayed()
    assert isinstance(await world.succeed(await start_undo(world)), Accepted)
    assert (await world.get_run(work.run_id)).recovery is Recovery.COMPENSATED
    await world.check()


async def test_a_declined_pass_goes_back_unharmed(world: World) -> None:
    """RFD 2, "Lease expiry before start authorization": a pass is authorized with its lease, and giving it back did nothing."""
    run = await world.start_run()
    delivery = await world.lease()
    assert await world.give_back(work_of(delivery))
    item = await world.item(delivery.item.item_id)
    assert item is not None
    assert (item.state, item.loss_count, item.ordinal) == (ItemState.READY, 0, 1)
    again = await world.lease()
    assert again.item.item_id == delivery.item.item_id
    assert again.item.delivery_count == 2
    assert not await world.give_back(work_of(delivery)), "the first lease is over"
    assert (await world.get_run(run.run_id)).item_id == again.item.item_id
    await world.check()


async def test_an_authorized_effect_cannot_be_given_back(world: World) -> None:
    """RFD 2, "A transport that proves": only a proof takes an authorized effect back."""
    await world.start_run()
    work = await world.start_step()
    assert not await world.give_back(work)
    assert await world.prove(work)
    await world.check()
