"""A basket that nobody ordered: remind its owner after a day, and give the goods back when the shop closes it.

Nothing runs while it waits: the run is a row in the service until its time comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ryusen import App, Context

app = App("baskets")


@dataclass(frozen=True)
class Basket:
    id: str
    owner: str
    closes_at: datetime


@app.function(on="basket.filled")
async def follow_up(ctx: Context, basket: Basket) -> str:
    await ctx.step.sleep("a day", "1d")
    if await ctx.step.run("is ordered", is_ordered, basket.id):
        return "ordered"
    await ctx.step.run("remind", remind, basket)
    await ctx.step.sleep_until("closing time", basket.closes_at)
    if await ctx.step.run("is ordered at last", is_ordered, basket.id):
        return "ordered after a reminder"
    await ctx.step.run("give back", give_back, basket.id)
    return "closed"


ordered: set[str] = set()
"""Stands for the shop's own database."""
reminded: list[str] = []
given_back: list[str] = []


async def is_ordered(basket: str) -> bool:
    return basket in ordered


async def remind(basket: Basket) -> None:
    reminded.append(basket.owner)


async def give_back(basket: str) -> None:
    given_back.append(basket)
