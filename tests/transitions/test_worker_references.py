"""What a worker may name: its own work only, and a pass that it declined as little as a callback."""

from __future__ import annotations

import pytest
from transitions.world import World, work_of

from keyspace.lifecycle import ItemState
from keyspace.transitions.work import Accepted, Stale


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
