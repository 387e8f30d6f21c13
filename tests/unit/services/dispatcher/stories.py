"""Workflows whose every turn is told by their final states: what they meet is the same on every way to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ryusen import App, Context, NonRetryable, Retry, StepFailed
from whole_rig import effect

__all__ = ["STORIES", "new_app"]

AGAIN = Retry(attempts=2, initial="1s")
ONCE = Retry(attempts=1)


async def give(value: Any) -> Any:
    effect()
    return value


async def fail_once() -> str:
    if effect()[2] == 1:
        raise RuntimeError("not yet")
    return "at last"


async def fail() -> None:
    effect()
    raise NonRetryable("never")


def new_app(name: str) -> App:
    """Return the application that tells the story `name`, with nothing left of an earlier telling."""
    app = App("shop")
    app.function(on="order.placed", name="fulfil")(STORIES[name]())
    return app


def plain() -> Any:
    async def story(ctx: Context) -> Any:
        first = await ctx.step.run("one", give, {"items": [1, 2]})
        first["items"].append(3)
        second = await ctx.step.run("two", give, first)
        return await ctx.step.run("three", give, [first, second])

    return story


def empty() -> Any:
    async def story(ctx: Context) -> str:
        return "nothing to do"

    return story


def retried() -> Any:
    async def story(ctx: Context) -> Any:
        await ctx.step.run("one", give, 1)
        await ctx.step.run("two", fail_once, retry=AGAIN)
        return await ctx.step.run("three", give, 3)

    return story


def caught() -> Any:
    async def story(ctx: Context) -> Any:
        await ctx.step.run("one", give, 1)
        try:
            await ctx.step.run("two", fail, retry=AGAIN)
        except StepFailed as failed:
            return await ctx.step.run("instead", give, failed.step_id)

    return story


def uncaught() -> Any:
    async def story(ctx: Context) -> Any:
        await ctx.step.run("one", give, 1)
        await ctx.step.run("two", fail_once, retry=ONCE)

    return story


def oversized() -> Any:
    async def story(ctx: Context) -> Any:
        await ctx.step.run("one", give, 1)
        try:
            await ctx.step.run("two", give, "x" * 300_000)
        except StepFailed:
            return await ctx.step.run("three", give, "too large")

    return story


def odd_output() -> Any:
    async def story(ctx: Context) -> Any:
        await ctx.step.run("one", give, 1)
        return {1, 2}

    return story


def refused() -> Any:
    """Declares a step more than the service takes, three steps here, and goes on from the refusal."""

    async def story(ctx: Context) -> Any:
        for name in ("one", "two", "three"):
            await ctx.step.run(name, give, name)
        try:
            await ctx.step.run("four", give, "four")
        except Exception as refusal:  # noqa: BLE001 - whatever it is, the story goes on
            return type(refusal).__name__

    return story


def together() -> Any:
    async def story(ctx: Context) -> Any:
        return await asyncio.gather(*(ctx.step.run(name, give, name) for name in ("one", "two")))

    return story


def changed() -> Any:
    """The code that declared `old` is replaced before its retry: it is met no more."""
    is_new: list[bool] = []

    async def old_fails() -> None:
        effect()
        is_new.append(True)
        raise RuntimeError("a bug")

    async def story(ctx: Context) -> Any:
        await ctx.step.run("one", give, 1)
        if is_new:
            return await ctx.step.run("new", give, 2)
        return await ctx.step.run("old", old_fails, retry=AGAIN)

    return story


def telling() -> Any:
    """Emits events between callbacks, two in a row, and once at the very beginning."""

    async def story(ctx: Context) -> Any:
        first = await ctx.step.send_event("tell", "told", {"n": 1})
        value = await ctx.step.run("one", give, 1)
        return [first, value, await ctx.step.send_event("tell again", "told", {"n": 2}, correlation={"n": "2"})]

    return story


STORIES: dict[str, Callable[[], Any]] = {
    one.__name__: one
    for one in (plain, empty, retried, caught, uncaught, oversized, odd_output, refused, together, changed, telling)
}
