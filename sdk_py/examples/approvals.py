"""A large order waits for somebody's decision: looked up where decisions are recorded, and heard of by an event.

An event that comes before the wait is registered is not remembered. So the event is the bell and the shop's own record is the
truth: whoever decides records the decision first and sends the event then; the run looks, waits, and looks again at the
latest after a day. Nothing is missed, whatever comes first, and nearly always it hears at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ryusen import App, Context, StepFailed

app = App("approvals")

DAYS_MAX = 7


@dataclass(frozen=True)
class Order:
    id: str
    total: int


@app.function(on="order.large")
async def approve(ctx: Context, order: Order) -> str:
    for day in range(DAYS_MAX):
        decision = await ctx.step.run(f"look on day {day}", decision_on, order.id) or await heard(ctx, order, day)
        if decision:
            return decision
    return "nobody decided"


async def heard(ctx: Context, order: Order, day: int) -> str:
    try:
        event = await ctx.step.wait_for_event(
            f"decision on day {day}", "order.decided", match={"order": order.id}, timeout="1d"
        )
    except StepFailed as failed:
        if failed.category != "sdk.timeout":
            raise
        return ""
    decision: str = event["decision"]
    return decision


decisions: dict[str, str] = {}
"""Stands for the shop's own database."""


async def decision_on(order: str) -> str:
    return decisions.get(order, "")
