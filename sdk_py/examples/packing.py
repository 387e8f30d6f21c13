"""A workflow that starts others: an order is sent as one parcel an item, each packed by a run of its own.

    python -m ryusen worker packing:app --url ws://127.0.0.1:8080
    ryusen events submit packing.ordered --payload '{"id": "o-1", "items": ["lamp", "chair"]}'

A parcel is a workflow like any other, with steps, retries and compensators; the order sees only what it came to.
"""

from __future__ import annotations

from dataclasses import dataclass

from ryusen import App, Context, NonRetryable, StepFailed

app = App("packing")


@dataclass(frozen=True)
class Order:
    """What the event carries."""

    id: str
    items: list[str]


@dataclass(frozen=True)
class Parcel:
    """What is to be packed."""

    order: str
    item: str


def reserve(item: str) -> str:
    """Take an item out of stock; there is no chair."""
    if item == "chair":
        raise NonRetryable("there is no chair in stock")
    return f"{item}-1"


def put_back(stock: str) -> None:
    """Undo `reserve`."""


def label(order: str, stock: str) -> str:
    """Print a label."""
    return f"{order}/{stock}"


@app.function
async def pack(ctx: Context, parcel: Parcel) -> str:
    """Pack one parcel and return its label."""
    stock = await ctx.step.run("reserve", reserve, parcel.item, compensate=put_back)
    return await ctx.step.run("label", label, parcel.order, stock)


@app.function(on="packing.ordered")
async def send(ctx: Context, order: Order) -> dict[str, str]:
    """Send every item of an order that can be sent."""
    labels = {}
    for item in order.items:
        try:
            labels[item] = await ctx.step.invoke(f"pack-{item}", pack, Parcel(order.id, item), timeout="1h")
        except StepFailed as exc:
            # The parcel has undone what it had done by now.
            labels[item] = f"not sent: {exc.category}"
    return labels
