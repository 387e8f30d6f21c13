"""The worker process: a connection, the core that decides, and the user's side that runs code.

The connection and the core live on the loop this runs on, user code on a thread of its own. The worker reconnects for ever,
with capped and jittered backoff; only a definitive refusal, or being told to stop, ends it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import anyio
import msgspec
from anyio.abc import TaskGroup
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ryusen.app import App
from ryusen.errors import ConfigurationError
from ryusen.protocol.closes import KEY_REVOKED, KEY_REVOKED_REASON
from ryusen.protocol.frames import FRAME_BYTES_MAX, decode_server_frame, encode_frame
from ryusen.version import SDK
from ryusen.worker.core import WorkerCore
from ryusen.worker.effects import Close, Effect, Exit, Send, Warn
from ryusen.worker.loops import ForeignLoop
from ryusen.worker.userside import PassTurn, UserEvent, UserSide
from ryusen.worker.work import EXIT_REFUSED, UNDO_CAPACITY_DEFAULT, WorkerIdentity

__all__ = [
    "CAPACITY_DEFAULT",
    "CAPACITY_MAX",
    "GRACE_MS_DEFAULT",
    "UNDO_CAPACITY_DEFAULT",
    "WORKER_PATH",
    "Worker",
    "WorkerOptions",
]

_log = logging.getLogger("ryusen.worker")

WORKER_PATH = "/v1/worker"
"""Where a dispatcher takes worker sessions."""
CAPACITY_DEFAULT = 10
CAPACITY_MAX = 200
"""Callbacks at once in one process, and compensators besides; plain ones are threads, and a hello must be able to list them all."""
GRACE_MS_DEFAULT = 30_000

CONNECT_S = 10.0
"""Seconds for opening a connection, the TLS and WebSocket handshakes included."""
SEND_S = 10.0
"""Seconds for the peer to take one frame."""
CLOSE_S = 1.0
"""Seconds for a closing handshake."""
FLUSH_S = 2.0
"""Seconds for the last frames of a worker that leaves."""
OUTBOX_MAX = 4_096
"""Frames that may wait for a slow peer; beyond, the connection is given up."""
BACKOFF_FIRST_S = 0.2
BACKOFF_CAP_S = 15.0
STABLE_S = 10.0
"""How long a session must have stood for the backoff to start anew."""
TIME_GRAIN_S = 0.005
"""How exactly timeouts and renewals are kept."""
BLOCKED_S = 1.0
"""How long user code may hold the user's loop before it is named in a warning."""
EXIT_STOPPED = 143
"""Stopped at once, by a second signal."""

_DEFINITIVE_STATUSES = frozenset((401, 403))


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker reaches the service and how much it does.

    Args:
        url: the dispatcher's address: ws, wss, http or https; the path is `/v1/worker` unless it has one.
        key: the workspace's bearer key.
        capacity: callbacks at once, 1 to 200.
        release: the deployed release's name, for release choice and for people.
        grace_ms: how long a stopped worker may finish what it runs.
        undo_capacity: compensators at once besides, 0 to 200, so that no undo waits for a callback of another run to end.
    """

    url: str
    key: str
    capacity: int = CAPACITY_DEFAULT
    release: str = ""
    grace_ms: int = GRACE_MS_DEFAULT
    undo_capacity: int = UNDO_CAPACITY_DEFAULT

    def __post_init__(self) -> None:
        worker_url(self.url)
        if not self.key or not self.key.isascii() or not self.key.isprintable():
            raise ConfigurationError("the key must be printable ASCII text")
        if not 1 <= self.capacity <= CAPACITY_MAX:
            raise ConfigurationError(
                "the capacity is out of bounds", capacity=self.capacity, least=1, most=CAPACITY_MAX
            )
        if not 0 <= self.undo_capacity <= CAPACITY_MAX:
            raise ConfigurationError(
                "the undo capacity is out of bounds", undo_capacity=self.undo_capacity, least=0, most=CAPACITY_MAX
            )
        if self.grace_ms < 0:
            raise ConfigurationError("the grace is out of bounds", grace_ms=self.grace_ms, least=0)


def worker_url(url: str) -> str:
    """Return the WebSocket address for a service address.

    Raises:
        ConfigurationError: not an address of a service.
    """
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise ConfigurationError("the address must look like ws://host:port", url=url)
    return urlunsplit(
        (scheme, parts.netloc, parts.path if parts.path not in ("", "/") else WORKER_PATH, parts.query, "")
    )


def _monotonic_ms() -> float:
    return time.monotonic() * 1_000.0


class Worker:
    """One worker process's life. Create it, then `await run()`; `stop` may be called from anywhere."""

    def __init__(
        self,
        app: App,
        options: WorkerOptions,
        *,
        monotonic_ms: Callable[[], float] = _monotonic_ms,
        jitter: random.Random | None = None,
    ) -> None:
        """Prepare a worker.

        Args:
            app: the application to serve.
            options: where and how much.
            monotonic_ms: the clock of timeouts and renewals, in milliseconds.
            jitter: spreads reconnections.

        Raises:
            ManifestRefused: the application could not be published.
        """
        app.manifest()
        identity = WorkerIdentity(
            application=app.name,
            instance=uuid.uuid4().hex,
            functions=tuple(app.functions),
            capacity=options.capacity,
            release=options.release,
            sdk=SDK,
            undo_capacity=options.undo_capacity,
        )
        self._options = options
        self._core = WorkerCore(identity)
        self._now_ms = monotonic_ms
        self._jitter = jitter or random.Random()
        self._home = ForeignLoop()
        self._user = UserSide(app, lambda event: self._home.call(self._heard_from_user, event))
        self._outbox: deque[Send] = deque()
        self._stops = 0
        self._code: int | None = None
        self._exited = anyio.Event()
        self._changed = anyio.Event()
        self._sendable = anyio.Event()
        self._sent = anyio.Event()
        self._closing = anyio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether a session stands; readiness checks show the gap by it."""
        return self._core.is_up

    def stop(self) -> None:
        """Ask the worker to leave: the first time with grace, the second time at once. Safe from threads and signal handlers."""
        self._home.call(self._stop)

    async def run(self) -> int:
        """Serve until told to stop or refused for good; return the exit code."""
        self._user.start()
        self._home.settle()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_time, name="ryusen-time")
                group.start_soon(self._watch_user, name="ryusen-watch")
                group.start_soon(self._keep_connected, group, name="ryusen-connection")
                await self._exited.wait()
                with anyio.move_on_after(0 if self._code == EXIT_STOPPED else FLUSH_S):
                    await self._flushed()
                group.cancel_scope.cancel()
        finally:
            self._home.leave()
            self._user.stop()
        assert self._code is not None, "the loop above ends with an exit code"
        return self._code

    def _stop(self) -> None:
        self._stops += 1
        if self._stops > 1:
            self._exit(EXIT_STOPPED, "stopped at once")
        else:
            _log.info("leaving: finishing what runs, for at most %d ms", self._options.grace_ms)
            self._perform(self._core.drain(self._now_ms(), self._options.grace_ms))

    # ---- effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Close):
                self._close(effect.reason)
            elif isinstance(effect, Warn):
                _log.warning("%s", effect.message)
            elif isinstance(effect, Exit):
                self._exit(effect.code, effect.message)
            else:
                self._user.perform(effect)
        self._changed.set()

    def _send(self, effect: Send) -> None:
        if len(self._outbox) >= OUTBOX_MAX:
            self._close("the dispatcher does not read what it is sent")
            return
        self._outbox.append(effect)
        self._sendable.set()

    def _close(self, reason: str) -> None:
        if not self._closing.is_set():
            _log.info("closing the session: %s", reason)
            self._closing.set()

    def _exit(self, code: int, message: str) -> None:
        if self._code is None:
            _log.log(logging.ERROR if code else logging.INFO, "the worker ends: %s", message)
            self._code = code
            self._exited.set()

    def _heard_from_user(self, event: UserEvent) -> None:
        now_ms = self._now_ms()
        if isinstance(event, PassTurn):
            self._perform(self._core.pass_turn(event.request, event.turn, event.failed_met, now_ms))
        else:
            self._perform(self._core.callback_ended(event.request, event.outcome, now_ms))

    # ---- tasks

    async def _keep_time(self) -> None:
        while True:
            self._changed = anyio.Event()
            due_ms = self._core.next_due_ms()
            delay_s = None if due_ms is None else max(0.0, due_ms - self._now_ms()) / 1_000
            with anyio.move_on_after(delay_s) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                self._perform(self._core.tick(self._now_ms()))
            else:
                # Much changes within a few milliseconds under load; what is due next is worked out once for all of it.
                await anyio.sleep(TIME_GRAIN_S)

    async def _watch_user(self) -> None:
        is_blocked = False
        while True:
            await anyio.sleep(BLOCKED_S)
            has_turned = self._user.beat()
            if not has_turned and not is_blocked:
                _log.warning(
                    "user code blocks the event loop: %s. Leases are kept; other work here waits. Use a plain function "
                    "for a step that blocks, or await something",
                    self._user.blocker(),
                )
            is_blocked = not has_turned

    async def _keep_connected(self, parting: TaskGroup) -> None:
        failures = 0
        while True:
            opened_ms = self._now_ms()
            reason = await self._one_session(parting)
            if self._now_ms() - opened_ms >= STABLE_S * 1_000:
                failures = 0
            longest_s = min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2 ** min(failures, 20))
            delay_s = self._jitter.uniform(longest_s / 2, longest_s)
            failures += 1
            if self._code is None:
                _log.warning("not connected: %s; trying again in %.1f s", reason, delay_s)
            await anyio.sleep(delay_s)

    async def _one_session(self, parting: TaskGroup) -> str:
        try:
            with anyio.fail_after(CONNECT_S):
                connection = await connect(
                    worker_url(self._options.url),
                    additional_headers={"Authorization": f"Bearer {self._options.key}"},
                    max_size=FRAME_BYTES_MAX,
                    open_timeout=None,
                    ping_interval=None,  # renewals are the heartbeat, and the core measures silence by them
                    close_timeout=CLOSE_S,
                    compression=None,
                    user_agent_header=SDK,
                )
        except InvalidStatus as exc:
            status = exc.response.status_code
            if status in _DEFINITIVE_STATUSES:
                self._exit(EXIT_REFUSED, f"the service refused the key: HTTP {status}")
            return f"HTTP {status} instead of a session"
        except Exception as exc:  # noqa: BLE001 - whatever keeps a connection from opening, the next one may open
            return f"{type(exc).__name__}: {exc}"
        return await self._speak(connection, parting)

    async def _speak(self, connection: ClientConnection, parting: TaskGroup) -> str:
        self._closing = anyio.Event()
        self._outbox.clear()
        self._perform(self._core.connected(self._now_ms()))
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write, connection, name="ryusen-writer")
                group.start_soon(self._read, connection, name="ryusen-reader")
                await self._closing.wait()
                group.cancel_scope.cancel()
        finally:
            # Beside the next session: a peer that hangs answers no closing handshake, and leases run out meanwhile.
            parting.start_soon(self._part, connection, name="ryusen-parting")
        self._outbox.clear()
        self._perform(self._core.disconnected(self._now_ms()))
        if connection.close_code == KEY_REVOKED:
            self._exit(EXIT_REFUSED, f"the service ended the session: {KEY_REVOKED_REASON}")
        return f"the session ended (close code {connection.close_code})"

    @staticmethod
    async def _part(connection: ClientConnection) -> None:
        with anyio.move_on_after(CLOSE_S, shield=True), contextlib.suppress(OSError, ConnectionClosed):
            await connection.close()
        connection.transport.abort()

    async def _write(self, connection: ClientConnection) -> None:
        # One scope, its deadline moved for each frame: a scope for each would cost more than the frame.
        with anyio.CancelScope() as patience:
            while True:
                self._sendable = anyio.Event()
                while self._outbox:
                    patience.deadline = anyio.current_time() + SEND_S
                    try:
                        await connection.send(encode_frame(self._outbox[0].frame).decode())
                    except (ConnectionClosed, OSError) as exc:
                        self._close(f"sending failed: {type(exc).__name__}")
                        return
                    self._outbox.popleft()
                patience.deadline = math.inf
                self._sent.set()
                await self._sendable.wait()
        self._close("sending failed: the peer takes nothing")

    async def _read(self, connection: ClientConnection) -> None:
        session = self._core.session
        try:
            async for message in connection:
                frame = decode_server_frame(message)
                self._perform(self._core.received(session, frame, self._now_ms()))
            reason = "the dispatcher closed it"
        except (ConnectionClosed, OSError) as exc:
            reason = f"{type(exc).__name__}: {exc}"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            # It costs this session and no more; the backoff keeps a bad frame that comes again from being a storm.
            reason = f"a frame that cannot be read: {exc}"
        self._close(reason)

    async def _flushed(self) -> None:
        while self._outbox and self._core.is_up:
            self._sent = anyio.Event()
            await self._sent.wait()
