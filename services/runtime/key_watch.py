"""Keys whose bearers have something standing open, a worker's session or a stream, which must end when the key is revoked.

A request asks for its key each time; what stands open would never ask again. One watch a process does it for all of them: while
anything is held it reads every distinct key in use once a period, many in a transaction, so that its cost grows with the keys
and not with the sessions and streams that share them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from anyio import Event

from keyspace.clock import Clock
from keyspace.errors import KeyspaceError
from keyspace.store.errors import StoreError
from keyspace.transitions.keys import KeyName, revoked_keys
from keyspace.tx import Tx

__all__ = ["KEYS_A_LOOK_MAX", "KEY_LOOK_MS", "REVOKED_MS_MAX", "HeldKey", "KeyWatch", "Transact"]

log = logging.getLogger(__name__)

KEY_LOOK_MS = 2_000
"""How often the keys in use are read."""
REVOKED_MS_MAX = 5_000
"""What is promised: after the revocation is answered, nothing stands open for longer while the store answers."""
KEYS_A_LOOK_MAX = 500
"""Keys that one transaction reads. A process has no more in use than sessions and streams, which are bounded."""

Transact = Callable[[str, Callable[[Tx], Awaitable[list[KeyName]]]], Awaitable[list[KeyName]]]
"""Runs a transaction, as `Keyspace.transact` does."""

assert 2 * KEY_LOOK_MS <= REVOKED_MS_MAX


class HeldKey:
    """Something that stands open under a key, from `KeyWatch.hold` until `release` or the end of the `with` block.

    Attributes:
        is_revoked: whether the key was found revoked; it never stands again.
    """

    def __init__(self, watch: KeyWatch, name: KeyName) -> None:
        """Made by `KeyWatch.hold`."""
        self.is_revoked = False
        self._watch = watch
        self._name = name
        self._on_revoked: Callable[[], None] | None = None

    def when_revoked(self, act: Callable[[], None]) -> None:
        """Call `act` once when the key is found revoked, now if it has been; it takes the place of a former one."""
        if self.is_revoked:
            act()
        else:
            self._on_revoked = act

    def release(self) -> None:
        """Hold the key no longer; releasing again changes nothing."""
        self._on_revoked = None
        self._watch.let_go(self._name, self)

    def revoke(self) -> None:
        """Take note that the key was found revoked."""
        self.is_revoked = True
        act, self._on_revoked = self._on_revoked, None
        if act is not None:
            act()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release."""
        self.release()


class KeyWatch:
    """The keys in use of one process; `run` looks at them."""

    def __init__(self, transact: Transact, *, clock: Clock) -> None:
        """Read by `transact`, also while the process may not serve: who has no right any more must go all the same."""
        self._transact = transact
        self._clock = clock
        # A dict for a set that keeps its order, so that who came first is told first.
        self._held: dict[KeyName, dict[HeldKey, None]] = {}
        self._is_in_use = Event()

    @property
    def key_count(self) -> int:
        """How many distinct keys are held."""
        return len(self._held)

    def hold(self, workspace: str, key_id: str) -> HeldKey:
        """Watch a key for something that stands open.

        Args:
            workspace: whose key it is.
            key_id: which; it was looked up before, so that whatever happened to it since is seen.
        """
        name = KeyName(workspace, key_id)
        held = HeldKey(self, name)
        self._held.setdefault(name, {})[held] = None
        self._is_in_use.set()
        return held

    def let_go(self, name: KeyName, held: HeldKey) -> None:
        """Forget one holder, and the key with its last."""
        holders = self._held.get(name)
        if holders is not None:
            holders.pop(held, None)
            if not holders:
                del self._held[name]

    async def run(self) -> None:
        """Look at the keys in use until cancelled; without any it sleeps and reads nothing."""
        while True:
            if not self._held:
                self._is_in_use = Event()
                await self._is_in_use.wait()
            await self._clock.sleep_ms(KEY_LOOK_MS)
            try:
                await self.look()
            except (StoreError, KeyspaceError) as error:
                # Without the store nobody can do anything with a revoked key either; the next look comes soon.
                log.warning("the keys in use cannot be read", extra={"error": repr(error)})

    async def look(self) -> None:
        """Read every key in use and tell the holders of those that are revoked.

        Raises:
            StoreError: the store did not answer; who was not reached is told by the next look.
        """
        names = list(self._held)
        for start in range(0, len(names), KEYS_A_LOOK_MAX):
            page = names[start : start + KEYS_A_LOOK_MAX]
            for name in await self._revoked(page):
                log.info("a key in use was revoked", extra={"workspace": name.workspace, "key": name.key_id})
                for held in list(self._held.get(name, ())):
                    held.revoke()
                # Told once is told; what stands open is ending, and a later look need not read the key for it.
                self._held.pop(name, None)

    async def _revoked(self, page: list[KeyName]) -> list[KeyName]:
        return await self._transact("revoked_keys", lambda tx: revoked_keys(tx, page))
