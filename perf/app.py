"""The application under load: a pipeline of as many steps as its event says, and functions whose only purpose is to be bound to an event.

At its very end the pipeline rings a bell, a datagram to the load process, so that a closed loop knows when to go on without
asking the service. Code outside steps may run again, so the load process takes the first ring only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from ryusen import App, Context

BELL_VARIABLE = "PERF_BELL"
"""The load process's datagram socket, a path; without it nothing rings."""
BINDINGS_MANY = 10
EVENT_OF_BINDINGS = {0: "bench.none", 1: "bench.one", BINDINGS_MANY: "bench.ten"}
PIPELINE_EVENT = "bench.run"

app = App("bench")
_sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


@app.function(on=PIPELINE_EVENT)
async def pipeline(ctx: Context, request: dict[str, Any]) -> str:
    value: str = request["filling"]
    for number in range(1, request["steps"] + 1):
        value = await ctx.step.run(f"step-{number}", work, value)
    _ring(request["id"])
    return value


async def work(former: str) -> str:
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
    async def function(ctx: Context, request: dict[str, Any]) -> None:
        return None

    register: Callable[[Callable[[Context, dict[str, Any]], Awaitable[None]]], object]
    register = app.function(on=event, name=name)
    register(function)


_bound("only", EVENT_OF_BINDINGS[1])
for _index in range(BINDINGS_MANY):
    _bound(f"one-of-ten-{_index}", EVENT_OF_BINDINGS[BINDINGS_MANY])
