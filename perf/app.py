"""The application under load: a three-step pipeline, and functions whose only purpose is to be bound to an event.

At its very end the pipeline rings a bell, a datagram to the load process, so that a closed loop knows when to go on without
asking the service. Code outside steps may run again, so the load process takes the first ring only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable

from ryusen import App, Context

BELL_VARIABLE = "PERF_BELL"
"""The load process's datagram socket, a path; without it nothing rings."""
BINDINGS_MANY = 10
EVENT_OF_BINDINGS = {0: "bench.none", 1: "bench.one", BINDINGS_MANY: "bench.ten"}
PIPELINE_EVENT = "bench.run"

app = App("bench")
_sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


@app.function(on=PIPELINE_EVENT)
async def pipeline(ctx: Context, request: dict[str, str]) -> str:
    first = await ctx.step.run("first", work, request["id"], request["filling"])
    second = await ctx.step.run("second", work, request["id"], first)
    third = await ctx.step.run("third", work, request["id"], second)
    _ring(request["id"])
    return third


async def work(identifier: str, former: str) -> str:
    return former[-1:] + former[:-1]


def _ring(identifier: str) -> None:
    path = os.environ.get(BELL_VARIABLE)
    if path:
        try:
            _sender.sendto(identifier.encode(), path)
        except OSError:
            # The load process has ended or its buffer is full; it has a deadline of its own.
            return


def _bound(name: str, event: str) -> None:
    async def function(ctx: Context, request: dict[str, str]) -> None:
        return None

    register: Callable[[Callable[[Context, dict[str, str]], Awaitable[None]]], object]
    register = app.function(on=event, name=name)
    register(function)


_bound("only", EVENT_OF_BINDINGS[1])
for _index in range(BINDINGS_MANY):
    _bound(f"one-of-ten-{_index}", EVENT_OF_BINDINGS[BINDINGS_MANY])
