"""One workflow tells others: a parcel that leaves is an event, and whoever listens acts on it in a run of its own."""

from __future__ import annotations

from dataclasses import dataclass

from ryusen import App, Context

app = App("parcels")


@dataclass(frozen=True)
class Parcel:
    order: str
    weight_g: int


@dataclass(frozen=True)
class Shipped:
    order: str
    tracking: str


@app.function(on="parcel.packed")
async def ship(ctx: Context, parcel: Parcel) -> str:
    tracking = await ctx.step.run("hand over", hand_over, parcel)
    shipped = Shipped(parcel.order, tracking)
    # Accepted once, whatever happens to this run; it does not wait for those who listen.
    return await ctx.step.send_event("tell", "parcel.shipped", shipped, correlation={"order": parcel.order})


@app.function(on="parcel.shipped")
async def notify(ctx: Context, shipped: Shipped) -> str:
    return await ctx.step.run("write", write_to_customer, shipped)


async def hand_over(parcel: Parcel) -> str:
    return f"parcel-{parcel.order}"


async def write_to_customer(shipped: Shipped) -> str:
    return f"order {shipped.order} is on its way: {shipped.tracking}"
