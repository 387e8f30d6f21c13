"""An application in two releases: `EVOLVING_CODE` says which code this process runs. Steps mark the ledger as `field` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
from field import mark
from ryusen import App, Context, Retry, StepFailed

app = App("evolving")
IS_NEW = os.environ.get("EVOLVING_CODE") == "new"
GATE_LOOK_S = 0.02

Request = dict[str, Any]


@app.function(on="evolving.reordered")
async def reordered(ctx: Context, request: Request) -> list[str]:
    """One step inserted, one removed, two swapped, display names changed."""
    if not IS_NEW:
        told = [await ctx.step.run(step, say, request, step, name=f"the step {step}") for step in ("one", "two")]
        told.append(await ctx.step.run("gate", pass_gate, request))
        return told + [await ctx.step.run(step, say, request, step) for step in ("three", "four")]
    told = [await ctx.step.run("zero", say, request, "zero")]
    told.append(await ctx.step.run("one", say, request, "one anew", name="another name"))
    told.append(await ctx.step.run("gate", pass_gate, request))
    return told + [await ctx.step.run(step, say, request, step) for step in ("four", "three")]


@app.function(on="evolving.removed")
async def removed(ctx: Context, request: Request) -> str:
    """A step that awaits its next attempt is gone in the new code, and is there again after a rollback."""
    if not IS_NEW:
        await ctx.step.run("shaky", fail_until_gate, request, retry=Retry(attempts=50, initial="1500ms", coefficient=1))
    return await ctx.step.run("hold", pass_gate, request)


@app.function(on="evolving.retried")
async def retried(ctx: Context, request: Request) -> int:
    """The new code would try nine times; the policy that was recorded says two."""
    try:
        await ctx.step.run("hopeless", fail, request, retry=Retry(attempts=9 if IS_NEW else 2, initial="5s"))
    except StepFailed as failed:
        return failed.attempts
    return 0


@app.function(on="evolving.doubled")
async def doubled(ctx: Context, request: Request) -> list[str]:
    """The old code uses one id twice, by mistake."""
    told = [await ctx.step.run("one", say, request, "one", compensate=unsay)]
    return [*told, await ctx.step.run("two" if IS_NEW else "one", say, request, "two")]


async def unsay(word: str) -> None:
    mark("undo", {"word": word})


async def say(request: Request, word: str) -> str:
    mark("begin", request)
    return word


async def pass_gate(request: Request) -> str:
    mark("begin", request)
    while not Path(request["gate"]).exists():  # noqa: ASYNC110, ASYNC240 - the gate is a file that another process makes
        await anyio.sleep(GATE_LOOK_S)
    return "gate"


async def fail_until_gate(request: Request) -> str:
    mark("begin", request)
    if not Path(request["gate"]).exists():  # noqa: ASYNC240
        raise ValueError("the gate is shut")
    return "went through"


async def fail(request: Request) -> None:
    mark("begin", request)
    raise ValueError("never")
