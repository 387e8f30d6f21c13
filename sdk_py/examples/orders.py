"""Three steps for a placed order: reserve the stock, charge the card, ship the parcel.

The outside world is a ledger, a file named by ORDERS_LEDGER to which each step appends one line, so that anybody can count
what really happened. Run it with `python -m ryusen worker orders:app`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ryusen import App, Context, NonRetryable, Retry, StepFailed, current_attempt

app = App("orders")


@dataclass(frozen=True)
class Line:
    sku: str
    quantity: int
    price_cents: int


@dataclass(frozen=True)
class Order:
    id: str
    customer: str
    lines: list[Line]

    @property
    def total_cents(self) -> int:
        return sum(line.quantity * line.price_cents for line in self.lines)


@dataclass(frozen=True)
class Reservation:
    order: str
    parcels: int


@dataclass(frozen=True)
class Charge:
    order: str
    amount_cents: int
    reference: str


@dataclass(frozen=True)
class Receipt:
    order: str
    tracking: str | None
    charged_cents: int


@app.function(on="order.placed")
async def fulfil(ctx: Context, order: Order) -> Receipt:
    reservation = await ctx.step.run("reserve", reserve_stock, order)
    try:
        charge = await ctx.step.run(
            "charge", charge_card, order, retry=Retry(attempts=5, initial="200ms"), timeout="30s"
        )
    except StepFailed:
        # The customer is told by other means; the run itself ends well.
        return Receipt(order=order.id, tracking=None, charged_cents=0)
    tracking = await ctx.step.run("ship", ship, order, reservation, name="ship the parcels")
    return Receipt(order=order.id, tracking=tracking, charged_cents=charge.amount_cents)


def reserve_stock(order: Order) -> Reservation:
    """Plain functions run in a thread: blocking is fine here."""
    _work()
    write_down("reserve", order.id, skus=[line.sku for line in order.lines])
    return Reservation(order=order.id, parcels=len(order.lines))


async def charge_card(order: Order) -> Charge:
    if order.total_cents <= 0:
        raise NonRetryable("an order without an amount cannot be charged", details={"order": order.id})
    await asyncio.sleep(_work_s())
    # What a payment service would take as its idempotency key: the same for every attempt of this step.
    reference = current_attempt().operation_id
    write_down("charge", order.id, amount_cents=order.total_cents)
    return Charge(order=order.id, amount_cents=order.total_cents, reference=reference)


async def ship(order: Order, reservation: Reservation) -> str:
    await asyncio.sleep(_work_s())
    write_down("ship", order.id, parcels=reservation.parcels)
    return f"parcel-{order.id}"


def write_down(effect: str, order: str, **facts: object) -> None:
    """Append one line to the ledger, with one write, so that processes do not mix theirs."""
    ledger = os.environ.get("ORDERS_LEDGER")
    if not ledger:
        return
    attempt = current_attempt()
    line = {"effect": effect, "order": order, **facts, **asdict(attempt), "at_ms": time.time_ns() // 1_000_000}
    with Path(ledger).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def _work_s() -> float:
    return float(os.environ.get("ORDERS_WORK_S", "0"))


def _work() -> None:
    time.sleep(_work_s())
