"""A run's history: pages of it, and a stream that follows it until the run has ended.

The stream is server-sent events. Each entry is an event whose id is its ordinal, so a reader that lost its connection goes on
after the last one it saw; `end` says that the history is complete. The stream watches the run's record, which every
transition of the run writes, and reads again after a while in case a notice was lost.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple

import anyio
import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from keyspace.errors import Refusal
from keyspace.layout import HISTORY, RUN
from keyspace.lifecycle import Phase
from keyspace.limits import HISTORY_PAGE_ITEMS_MAX, LIST_PAGE_ITEMS_DEFAULT
from keyspace.store.api import KeyRange, Watch
from keyspace.store.errors import StoreError
from keyspace.tx import Tx
from services.gateway.endpoints import Answer, Call
from services.gateway.pages import read_integer
from services.gateway.problems import ApiProblem
from services.gateway.run_types import HistoryEntry, HistoryPage
from services.gateway.runs import load_run

__all__ = ["REREAD_MS", "follow_history", "get_history"]

log = logging.getLogger(__name__)

REREAD_MS = 5_000
"""How long a stream believes that nothing happened; also how often it says that it lives."""
STREAM_PAGE_ITEMS = 200
SEND_MS_MAX = 30_000
"""How long a reader may leave its buffers full before its stream is given to others."""
REVOKED_SEND_MS_MAX = 1_000
"""How long what is on its way to a reader may still take when its key was revoked."""
ORDINAL_MAX = 2**53
_encoder = msgspec.json.Encoder()


class _Look(NamedTuple):
    """What one look at a run saw; the watch is live and must be cancelled when it is not waited for."""

    entries: list[HistoryEntry]
    is_complete: bool
    watch: Watch | None


async def get_history(call: Call) -> Answer:
    """Answer the entries after an ordinal."""
    after = read_integer(call.query, "after", 0, 0, ORDINAL_MAX)
    limit = read_integer(call.query, "limit", LIST_PAGE_ITEMS_DEFAULT, 1, HISTORY_PAGE_ITEMS_MAX)

    async def page(tx: Tx) -> HistoryPage:
        run = await load_run(tx, call.workspace, call.parts["run"])
        entries = await _entries(tx, call.workspace, run.run_id, after, limit)
        last = entries[-1].ordinal if entries else after
        is_whole = last >= run.history_count
        return HistoryPage(
            items=entries,
            next_after=None if is_whole else last,
            is_complete=is_whole and run.phase is Phase.TERMINAL,
        )

    return Answer(await call.transact("get_history", page))


async def follow_history(call: Call) -> Response:
    """Stream the entries after an ordinal as they are written."""
    after = read_integer(call.query, "after", _last_event_id(call), 0, ORDINAL_MAX)
    streams = call.gateway.streams
    owner = object()
    try:
        streams.acquire_on_behalf_of_nowait(owner)
    except anyio.WouldBlock:
        raise ApiProblem(
            "too_many_requests", "As many streams are open as may be.", limit=int(streams.total_tokens)
        ) from None
    standing = _Standing(call)
    try:
        first = await _look(call, after)
    except BaseException:
        standing.release()
        streams.release_on_behalf_of(owner)
        raise

    def release() -> None:
        standing.release()
        streams.release_on_behalf_of(owner)
        if first.watch is not None:
            first.watch.cancel()

    return _Stream(_events(call, after, first, standing), standing, release)


class _Stream(StreamingResponse):
    """A stream that gives back what it holds however it ends, also when it never began."""

    def __init__(self, events: AsyncIterator[bytes], standing: _Standing, release: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._standing = standing
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with anyio.fail_after(SEND_MS_MAX / 1_000) as patience:
                self._standing.limit(patience)
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except* TimeoutError:
            log.info("a stream's reader takes nothing; its connection is closed")
        finally:
            self._release()


async def _events(call: Call, after: int, look: _Look, standing: _Standing) -> AsyncIterator[bytes]:
    while True:
        try:
            for entry in look.entries:
                if standing.is_revoked:
                    break
                yield b"id: %d\ndata: %b\n\n" % (entry.ordinal, _encoder.encode(entry))
                after = entry.ordinal
            if look.is_complete and not standing.is_revoked:
                yield b"event: end\ndata: {}\n\n"
                return
            if look.watch is not None and not standing.is_revoked and not await _changed(call, look.watch, standing):
                yield b": still here\n\n"
        finally:
            if look.watch is not None:
                look.watch.cancel()
        if call.gateway.process.drain.is_begun:
            # Without `end`, so that the reader connects again, elsewhere.
            return
        if standing.is_revoked:
            # A comment, which no reader takes for an entry; one that connects again is told by the status.
            yield b": key_revoked\n\n"
            return
        try:
            look = await _look(call, after)
        except (ApiProblem, Refusal, StoreError):
            return


async def _changed(call: Call, watch: Watch, standing: _Standing) -> bool:
    """Return whether the run's record changed before the stream should look anyway."""
    changed = False
    async with anyio.create_task_group() as group:

        async def until_changed() -> None:
            nonlocal changed
            # A lost watch is a reason to look, like one that fired.
            with suppress(StoreError):
                await watch.wait()
            changed = True
            group.cancel_scope.cancel()

        async def until_drained() -> None:
            await call.gateway.process.drain.wait()
            group.cancel_scope.cancel()

        async def until_revoked() -> None:
            await standing.until_revoked()
            group.cancel_scope.cancel()

        group.start_soon(until_changed, name="history watch")
        group.start_soon(until_revoked, name="history key")
        group.start_soon(until_drained, name="history drain")
        await call.gateway.process.clock.sleep_ms(REREAD_MS)
        group.cancel_scope.cancel()
    return changed


class _Standing:
    """Whether the key of a stream still stands. The operator's own key is a setting, and cannot be revoked."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._is_revoked = anyio.Event()
        self._patience = anyio.CancelScope()
        identity = call.identity
        self._held = None
        if identity.workspace is not None:
            self._held = call.gateway.process.keys_in_use.hold(identity.workspace, identity.key_id)
            self._held.when_revoked(self._end)

    @property
    def is_revoked(self) -> bool:
        return self._is_revoked.is_set()

    async def until_revoked(self) -> None:
        await self._is_revoked.wait()

    def limit(self, patience: anyio.CancelScope) -> None:
        """Let what is sent within `patience` take less once the key is revoked: a full buffer must not keep a stream."""
        self._patience = patience
        if self.is_revoked:
            self._hurry()

    def release(self) -> None:
        if self._held is not None:
            self._held.release()

    def _end(self) -> None:
        # A key that is still believed here would open the next stream when the reader comes back.
        self._call.gateway.keys.forget_key(self._call.identity.key_id)
        self._is_revoked.set()
        self._hurry()

    def _hurry(self) -> None:
        soonest = anyio.current_time() + REVOKED_SEND_MS_MAX / 1_000
        self._patience.deadline = min(self._patience.deadline, soonest)


async def _look(call: Call, after: int) -> _Look:
    async def read(tx: Tx) -> _Look:
        run = await load_run(tx, call.workspace, call.parts["run"])
        entries = await _entries(tx, call.workspace, run.run_id, after, STREAM_PAGE_ITEMS)
        last = entries[-1].ordinal if entries else after
        if last < run.history_count:
            return _Look(entries, False, None)
        if run.phase is Phase.TERMINAL:
            return _Look(entries, True, None)
        return _Look(entries, False, tx.watch(RUN.at(call.workspace, run.run_id)))

    return await call.transact("follow_history", read)


async def _entries(tx: Tx, workspace: str, run_id: str, after: int, limit: int) -> list[HistoryEntry]:
    span = KeyRange(HISTORY.at(workspace, run_id, after + 1).data, HISTORY.span(workspace, run_id).end)
    found = []
    for key, value in await tx.page(span, limit=limit, snapshot=True):
        record = HISTORY.codec.decode(value)
        found.append(
            HistoryEntry(ordinal=HISTORY.parse(key)[2], at_ms=record.at_ms, kind=record.kind, data=record.data)
        )
    return found


def _last_event_id(call: Call) -> int:
    text = call.request.headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else 0
