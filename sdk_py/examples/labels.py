"""A function that no event starts: the packing desk asks for a label again, and a second click prints no second one."""

from __future__ import annotations

from dataclasses import dataclass

from ryusen import App, Client, Context

app = App("labels")


@dataclass(frozen=True)
class Label:
    order: str
    address: str


@app.function
async def print_again(ctx: Context, label: Label) -> str:
    page = await ctx.step.run("render", render, label)
    return await ctx.step.run("print", print_page, page)


def ask(client: Client, label: Label) -> str | None:
    """Start the function for one label and return the id of its run; asked twice, it is the same run.

    None when the service knew already that no such function is deployed.
    """
    return client.invoke("labels", "print_again", label, idempotency_key=f"label-{label.order}").run


printed: list[str] = []
"""Stands for the printer."""


async def render(label: Label) -> str:
    return f"{label.order}: {label.address}"


async def print_page(page: str) -> str:
    printed.append(page)
    return page
