"""The three-step workflow as an engine sees it: seven transactions a run, about six reads and eight writes of 200 bytes each.

Keys have the shapes of the real keyspace: a run's records share a prefix, the ready index is filled and cleared, history
and the event list grow at stamps, a bell is rung.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from keyspace.store.api import Store, Transaction
from keyspace.store.errors import RetryableError

__all__ = ["TRANSACTIONS_A_RUN", "Figures", "drive"]

TRANSACTIONS_A_RUN = 7
ATTEMPTS_MAX = 1_000
_BODY = bytes(range(200))
_BLANK_STAMP = bytes(10)


@dataclass
class Figures:
    """What one process did."""

    run_count: int = 0
    conflict_count: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    commit_ms: list[float] = field(default_factory=list)


async def drive(store: Store, *, process: int, concurrency: int, duration_s: float) -> Figures:
    """Run workflows in `concurrency` lanes for `duration_s` seconds."""
    figures = Figures()
    started_s, started_cpu_s = time.perf_counter(), time.process_time()

    async def lane(index: int) -> None:
        number = 0
        while time.perf_counter() - started_s < duration_s:
            await _run(store, f"{process}/{index}/{number:06d}".encode(), figures)
            figures.run_count += 1
            number += 1

    await asyncio.gather(*(lane(index) for index in range(concurrency)))
    figures.elapsed_s = time.perf_counter() - started_s
    figures.cpu_s = time.process_time() - started_cpu_s
    return figures


async def _run(store: Store, name: bytes, figures: Figures) -> None:
    for step in range(TRANSACTIONS_A_RUN):
        for attempt in range(1, ATTEMPTS_MAX):
            transaction = store.begin()
            try:
                await _step(transaction, name, step)
                began_s = time.perf_counter()
                await transaction.commit()
                figures.commit_ms.append((time.perf_counter() - began_s) * 1e3)
                break
            except RetryableError as error:
                figures.conflict_count += 1
                await store.backoff(error, attempt)


async def _step(transaction: Transaction, name: bytes, step: int) -> None:
    run = b"ws/run/" + name
    ready = b"ws/ready/lane/%03d/" % (hash(name) % 8)
    reads = [
        transaction.get(run),
        transaction.get(run + b"/step/%d" % (step // 2)),
        transaction.get(run + b"/attempt/%d" % step),
        transaction.get(b"ws/receipt/" + name + b"/%d" % step),
        transaction.get(b"ws/function/fulfil"),
    ]
    await transaction.get_range(ready, ready + b"\xff", limit=4, snapshot=True)
    for read in reads:
        await read
    transaction.set(run, _BODY)
    transaction.set(run + b"/step/%d" % (step // 2), _BODY)
    transaction.set(run + b"/attempt/%d" % step, _BODY)
    transaction.set(b"ws/receipt/" + name + b"/%d" % step, _BODY)
    history = run + b"/history/"
    transaction.set_versionstamped_key(history + _BLANK_STAMP, len(history), _BODY)
    transaction.set(ready + name + b"/%d" % step, b"")
    if step:
        transaction.clear(ready + name + b"/%d" % (step - 1))
    transaction.add(b"ws/bell/" + name[:3], 1)
