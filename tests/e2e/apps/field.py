"""The application of the end-to-end tests: every step marks its begin and its end in a ledger; some behave badly.

An event's payload says how: `work_ms` is how long each step works, `gate` a file that the gated step waits for.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ryusen import App, Context, NonRetryable, Retry, StepFailed, current_attempt

app = App("field")
EXIT_KILLED = 137
UNDO_MS = 20
GATE_LOOK_S = 0.02

Request = dict[str, Any]


@app.function(on="field.steady")
async def steady(ctx: Context, request: Request) -> int:
    total = 0
    for step in ("first", "second", "third"):
        total += await ctx.step.run(step, work, request, total)
    return total


@app.function(on="field.effects")
async def effects(ctx: Context, request: Request) -> int:
    """One step of each class; a run whose request says so fails in the end, and both that can be undone are."""
    total = await ctx.step.run("default", work, request, 0, compensate=undo_work)
    total = await ctx.step.run(
        "idempotent", work, request, total, idempotent=True, compensate=undo_work, compensate_idempotent=True
    )
    total = await ctx.step.run("last", work, request, total)
    if request["fails"]:
        raise RuntimeError("all of it is to be undone")
    return total


@app.function(on="field.once")
async def once(ctx: Context, request: Request) -> int:
    return await ctx.step.run("only", work, request, 0)


@app.function(on="field.sleepy")
async def sleepy(ctx: Context, request: Request) -> int:
    await ctx.step.sleep("nap", f"{request['sleep_ms']}ms")
    return await ctx.step.run("only", work, request, 0)


@app.function(on="field.awaiting")
async def awaiting(ctx: Context, request: Request) -> str:
    """Waits for the event of its own order, then runs a step."""
    try:
        heard = await ctx.step.wait_for_event(
            "it", "field.heard", match={"order": request["order"]}, timeout=f"{request['wait_ms']}ms"
        )
    except StepFailed as failed:
        return failed.category
    await ctx.step.run("only", work, request, 0)
    return str(heard["said"])


@app.function(on="field.expecting")
async def expecting(ctx: Context, request: Request) -> str:
    """Waits for the payment of its own order, which starts two runs besides, and does nothing else."""
    order = {"order": str(request["order"])}
    paid = await ctx.step.wait_for_event("paid", "field.paid", match=order, timeout=f"{request['wait_ms']}ms")
    return str(paid["by"])


@app.function(on="field.paid")
async def booked(ctx: Context, request: Request) -> str:
    return "booked"


@app.function(on="field.paid")
async def thanked(ctx: Context, request: Request) -> str:
    return "thanked"


@app.function(on="field.telling")
async def telling(ctx: Context, request: Request) -> str:
    """Emits the event that starts `once`, between two steps."""
    await ctx.step.run("first", work, request, 0)
    event = await ctx.step.send_event("tell", "field.once", request, correlation={"from": ctx.run_id})
    await ctx.step.run("third", work, request, 1)
    return event


@app.function(on="field.calling")
async def calling(ctx: Context, request: Request) -> list[Any]:
    """Invokes the function that its request names behind a step of its own, and says what it came to."""
    await ctx.step.run("first", work, request, 0, compensate=undo)
    try:
        return ["returned", await ctx.step.invoke("call", request["call"], request)]
    except StepFailed as failed:
        return [failed.category]


@app.function(on="field.second-try")
async def second_try(ctx: Context, request: Request) -> int:
    """Fails once; on its way to the second attempt each process waits for a gate of its own, in code outside steps."""
    if is_open(request["tried"]):
        write_line({"mark": "pass", "run": ctx.run_id, "step": "", "attempt": 0, "operation": ""}, request)
        while not is_open(f"{request['gate']}-{os.getpid()}"):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(GATE_LOOK_S)
    return await ctx.step.run("only", fail_once, request, retry=Retry(attempts=2, initial="20ms"))


@app.function(on="field.two")
async def left(ctx: Context, request: Request) -> str:
    return "left"


@app.function(on="field.two")
async def right(ctx: Context, request: Request) -> str:
    return "right"


@app.function(on="field.gated")
async def gated(ctx: Context, request: Request) -> str:
    return await ctx.step.run("wait", wait_for_gate, request)


@app.function(on="field.repeatable")
async def repeatable(ctx: Context, request: Request) -> str:
    return await ctx.step.run("wait", wait_for_gate, request, idempotent=True)


@app.function(on="field.hurried", timeout="5s")
async def hurried(ctx: Context, request: Request) -> str:
    await ctx.step.run("first", work, request, 0, compensate=undo)
    return await ctx.step.run("wait", wait_for_gate, request, compensate=undo)


@app.function(on="field.overdue", timeout="1s")
async def overdue(ctx: Context, request: Request) -> None:
    """Waits for its next attempt when its time is over."""
    await ctx.step.run("first", work, request, 0, compensate=undo)
    await ctx.step.run("never", fail, retry=Retry(attempts=2, initial="1h", cap="1h"))


@app.function(on="field.blocking")
async def blocking(ctx: Context, request: Request) -> str:
    return await ctx.step.run("block", block, request)


@app.function(on="field.holding")
async def holding(ctx: Context, request: Request) -> str:
    return await ctx.step.run("hold", hold_the_lock, request)


@app.function(on="field.deadly-step")
async def deadly_step(ctx: Context, request: Request) -> str:
    return await ctx.step.run("die", die, request)


@app.function(on="field.deadly-code")
async def deadly_code(ctx: Context, request: Request) -> str:
    if not is_open(request["gate"]):
        os._exit(EXIT_KILLED)
    return "survived"


@app.function(on="field.odd")
async def odd(ctx: Context, request: Request) -> dict[str, list[str]]:
    """Runs every oddity as a step and returns what the function was told of each."""
    told: dict[str, list[str]] = {}
    for name in request["oddities"]:
        try:
            await ctx.step.run(name, odd_step, name, retry=Retry(attempts=1))
        except StepFailed as failed:
            told[name] = [failed.category, failed.message]
    return told


@app.function(on="field.odd-end")
async def odd_end(ctx: Context, request: Request) -> object:
    return be_odd(request["oddity"])


async def work(request: Request, total: int) -> int:
    mark("begin", request)
    await asyncio.sleep(request.get("work_ms", 0) / 1_000)
    mark("end", request)
    return total + 1


def undo(_: object) -> None:
    mark("undone", {})


def fail() -> None:
    raise RuntimeError("not now")


async def undo_work(total: int) -> None:
    mark("undo-begin", {})
    await asyncio.sleep(UNDO_MS / 1_000)
    mark("undo-end", {})


def fail_once(request: Request) -> int:
    mark("begin", request)
    if not is_open(request["tried"]):
        Path(request["tried"]).touch()
        raise RuntimeError("the first time")
    return 1


def hold_the_lock(request: Request) -> str:
    """Let no other Python code of the process run, as C code that does not release the interpreter lock would."""
    mark("begin", request)
    ctypes.PyDLL(None).poll(None, 0, request["work_ms"])
    mark("end", request)
    return "held"


def wait_for_gate(request: Request) -> str:
    mark("begin", request)
    while not is_open(request["gate"]):
        time.sleep(GATE_LOOK_S)
    mark("end", request)
    return "through"


async def block(request: Request) -> str:
    mark("begin", request)
    time.sleep(request["work_ms"] / 1_000)  # noqa: ASYNC251 - user code that blocks its loop is what is tried
    mark("end", request)
    return "awake"


async def die(request: Request) -> str:
    mark("begin", request)
    os._exit(EXIT_KILLED)


def is_open(gate: str) -> bool:
    return Path(gate).exists()


class Demanding(Exception):
    """Cannot be rebuilt from its arguments, printed or pickled."""

    def __init__(self, first: object, *, second: object) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise RuntimeError("no words")


def odd_step(name: str) -> object:
    mark("begin", {})
    return be_odd(name)


def be_odd(name: str) -> object:
    match name:
        case "demanding":
            raise Demanding(1, second=2)
        case "group":
            raise ExceptionGroup("several", [ValueError("one"), Demanding(1, second=2)])
        case "cycle":
            first, second = ValueError("first"), ValueError("second")
            first.__cause__, second.__cause__ = second, first
            raise first
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "generator":
            return _generate()
        case "lock":
            return threading.Lock()
        case "file":
            return Path(__file__).open()
        case "huge":
            return "x" * 2_000_000
        case "never again":
            raise NonRetryable("never again", details={"why": "odd"})
        case _:
            raise AssertionError(name)


def _generate() -> Iterator[int]:
    yield 1


def mark(what: str, request: Request) -> None:
    """Write down that a step's callback has begun or ended."""
    attempt = current_attempt()
    line = {
        "mark": what,
        "run": attempt.run_id,
        "step": attempt.step_id,
        "attempt": attempt.attempt,
        "operation": attempt.operation_id,
    }
    write_line(line, request)


def write_line(line: dict[str, Any], request: Request) -> None:
    """Append one line with one write, so that processes do not mix theirs."""
    line = line | {"pid": os.getpid(), "request": request.get("id", "")}
    with Path(os.environ["FIELD_LEDGER"]).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
