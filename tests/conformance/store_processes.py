"""Processes of their own on a store, and how a test talks with them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from store_steps import DEADLINE_S

WORKER = Path(__file__).with_name("store_worker.py")
Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@contextlib.asynccontextmanager
async def workers(address: str, prefix: str) -> AsyncIterator[Start]:
    """Start workers on the store at `address`; those still running at the end are killed and awaited."""
    started: list[asyncio.subprocess.Process] = []

    async def start_one(*arguments: object) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            address,
            prefix,
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        started.append(process)
        return process

    try:
        yield start_one
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode().strip()


async def expect(process: asyncio.subprocess.Process, wanted: str) -> None:
    while (line := await line_of(process)) != wanted:
        assert line, f"the worker ended before it said {wanted!r}"


async def finish(process: asyncio.subprocess.Process) -> list[str]:
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out
    return out.decode().splitlines()
