"""Case 034: what was acknowledged is expanded and settles its wait, whoever dies while it comes in.

Every order has a run that waits for its payment; a payment starts two runs besides. Two processes of each role are
killed in turn while payments come in at a steady rate, some from callers that do not ask again when nobody answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e_world import SHORT_LEASES, Site, World, open_world, submit_surely
from eventually import eventually
from ryusen import ApiError, AsyncClient, Unreachable
from sizes import at_scale

from topology.tables import Role

CALLERS = 16
WAIT_MS = 24 * 3_600_000
IMPATIENT_EACH = 5
"""Of so many payments one is sent once, whatever becomes of it."""
ONE_OF_EACH = [(role, 0) for role in (Role.GATEWAY, Role.FANOUT, Role.DISPATCHER, Role.WORKER)]
THRICE_EACH = 3 * [(role, index) for index in (0, 1) for role, _ in ONE_OF_EACH]
SETTLE_S_MAX = 1_200.0
PAGE_ITEMS = 500


@dataclass
class Payments:
    """What became of each order's payment, as far as its caller knows."""

    world: World
    clients: list[AsyncClient]
    count: int
    victims: list[tuple[Role, int]]
    waiting: dict[int, str] = field(default_factory=dict)
    """The run of each order."""
    acknowledged: dict[int, str] = field(default_factory=dict)
    """The event of each payment that was answered."""
    unanswered: set[int] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)

    async def each(self, act: Callable[[int], Awaitable[None]]) -> None:
        """Do something for each order, for several at once."""
        limiter = anyio.CapacityLimiter(CALLERS)

        async def one(number: int) -> None:
            async with limiter:
                await act(number)

        async with anyio.create_task_group() as group:
            for number in range(self.count):
                group.start_soon(one, number)

    def client_of(self, number: int) -> AsyncClient:
        return self.clients[number % len(self.clients)]

    async def order(self, number: int) -> None:
        """Start the run of an order."""
        request = {"order": str(number), "wait_ms": WAIT_MS}
        event = await submit_surely(self.clients, "field.expecting", request, f"order-{number}")
        (self.waiting[number],) = await self.world.runs_of(event)

    async def until_registered(self, number: int) -> None:
        """Wait until an order's run waits for its payment."""

        async def look() -> bool:
            found = await self.client_of(number).run(self.waiting[number])
            return found["waiting"] is not None and found["waiting"]["word"] == "event"

        await eventually(look, "the run waits", seconds_max=SETTLE_S_MAX)

    async def pay(self, number: int) -> None:
        """Send a payment: again and again until it is acknowledged, or once."""
        if number % IMPATIENT_EACH:
            self.acknowledged[number] = await self.pay_surely(number)
            return
        try:
            receipt = await self.client_of(number // IMPATIENT_EACH).submit(
                "field.paid", _paid_by(number), idempotency_key=f"pay-{number}", correlation={"order": str(number)}
            )
            self.acknowledged[number] = receipt.event
        except (Unreachable, ApiError):
            self.unanswered.add(number)

    async def pay_surely(self, number: int) -> str:
        return await submit_surely(
            self.clients, "field.paid", _paid_by(number), f"pay-{number}", correlation={"order": str(number)}
        )

    async def kill_each(self) -> None:
        """Kill the processes one after another, evenly over the payments, and start each again."""
        for place, (role, index) in enumerate(self.victims, 1):
            due = place * self.count // (len(self.victims) + 1)

            async def is_due(due: int = due) -> bool:
                return len(self.acknowledged) + len(self.unanswered) >= due

            await eventually(is_due, f"{due} payments were sent", seconds_max=SETTLE_S_MAX)
            self.killed.append((await self.world.launcher.kill(role, index)).name)
            await self.world.launcher.restart(role, index)

    async def judge(self, number: int) -> None:
        """Hold an acknowledged payment against what must have come of it: all of it, once."""
        client, event = self.client_of(number), self.acknowledged[number]

        async def is_complete() -> dict[str, Any] | None:
            found = await client.event(event)
            return found if found["expansion"]["state"] == "complete" else None

        found = await eventually(is_complete, "the payment is expanded", seconds_max=SETTLE_S_MAX)
        expansion = found["expansion"]
        counts = [expansion[f"{what}_count"] for what in ("evaluated", "matched", "inspected", "settled")]
        assert counts == [2, 2, 1, 1], found
        assert Counter(match["function"] for match in found["matches"]["items"]) == {"booked": 1, "thanked": 1}

        async def is_over() -> dict[str, Any] | None:
            run = await client.run(self.waiting[number])
            return run if run["phase"] == "terminal" else None

        ended = await eventually(is_over, "the order's run has ended", seconds_max=SETTLE_S_MAX)
        assert (ended["status"], ended["output"]) == ("completed", str(number))
        (step,) = (await client.steps(self.waiting[number])).items
        assert (step["state"], step["event"]) == ("completed", event)

    async def judge_unanswered(self) -> None:
        """What nobody acknowledged exists wholly or not at all: the same key finds it, or makes it now."""
        kept = await self._events("field.paid")
        for number in self.unanswered:
            event = await self.pay_surely(number)
            existed = event in kept
            receipt = await self.clients[0].submit(
                "field.paid", _paid_by(number), idempotency_key=f"pay-{number}", correlation={"order": str(number)}
            )
            assert (receipt.event, receipt.replayed) == (event, True)
            self.acknowledged[number] = event
            print(f"payment {number} was not acknowledged and {'exists' if existed else 'never was'}")
        assert set(self.acknowledged.values()) == await self._events("field.paid"), "one event a payment, and no other"

    async def _events(self, name: str) -> set[str]:
        """Return every event of a name."""
        found: set[str] = set()
        cursor: str | None = None
        for _ in range(2 * self.count // PAGE_ITEMS + 2):
            page = await self.clients[0].events(limit=PAGE_ITEMS, cursor=cursor)
            found |= {item["event"] for item in page.items if item["name"] == name}
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise AssertionError("there are more events than were ever sent")


def _paid_by(number: int) -> dict[str, str]:
    return {"by": str(number)}


@pytest.mark.case(2)
@pytest.mark.case(34)
@pytest.mark.parametrize(
    ("count", "victims"),
    [pytest.param(60, ONE_OF_EACH, id="60"), at_scale(10_000, THRICE_EACH, name="10000")],
)
async def test_each_acknowledged_payment_settles_its_wait(
    count: int, victims: list[tuple[Role, int]], site: Site, tmp_path: Path
) -> None:
    """Case 034, "10,000 events, each with one waiting run and two trigger bindings": each acknowledged one is Complete with both
    its runs and its wait settled by it; one that was never acknowledged exists wholly or not at all."""
    async with (
        open_world("pairs", tmp_path, site, settings=SHORT_LEASES) as world,
        world.clients() as clients,
    ):
        payments = Payments(world, clients, count, victims)
        await payments.each(payments.order)
        await payments.each(payments.until_registered)
        print(f"\n{count:,} runs wait")
        async with anyio.create_task_group() as group:
            group.start_soon(payments.kill_each)
            await payments.each(payments.pay)
        print(f"killed {', '.join(payments.killed)}; {len(payments.acknowledged):,} acknowledged")
        assert len(payments.killed) == len(victims)
        await payments.judge_unanswered()
        await payments.each(payments.judge)
    await world.check()
