"""The transactions that a session's effects ask for, each safe to run again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from keyspace.keyspace import Keyspace
from keyspace.records.work import Direction
from keyspace.transitions.authorize_start import authorize_start
from keyspace.transitions.give_back import give_back
from keyspace.transitions.lose_lease import Loss, lose_lease
from keyspace.transitions.open_session import close_session
from keyspace.transitions.prove_not_started import prove_not_started
from keyspace.transitions.renew_leases import renew_leases
from keyspace.transitions.work import Verdict, Work, direction_of
from services.dispatcher.held import Held
from services.dispatcher.metrics import DispatcherMetrics
from services.dispatcher.options import SETTLE_PAUSE_MS, SETTLE_TRIES_MAX, DispatcherOptions
from services.lanes.deferral import is_passing

__all__ = ["WorkEffects"]

log = logging.getLogger(__name__)

T = TypeVar("T")

UNSTART_ROUNDS_MAX = 3
"""Looks at an item whose authorization may still be landing: each one that writes makes the late commit conflict."""


class WorkEffects:
    """Runs the transactions of one workspace's sessions."""

    def __init__(
        self, keyspace: Keyspace, workspace: str, options: DispatcherOptions, metrics: DispatcherMetrics
    ) -> None:
        """Work in `workspace` of `keyspace`."""
        self.keyspace = keyspace
        self.workspace = workspace
        self.options = options
        self.metrics = metrics

    async def tried(self, what: str, body: Callable[[], Awaitable[T]]) -> T | None:
        """Run `body`, again while only the store is in the way, a bounded number of times; None when it failed.

        What fails otherwise is logged and not tried again.
        """
        pause_ms = SETTLE_PAUSE_MS
        for _ in range(SETTLE_TRIES_MAX):
            try:
                return await body()
            except Exception as error:
                if not is_passing(error):
                    log.exception(what, extra={"workspace": self.workspace})
                    return None
                log.warning(what, extra={"workspace": self.workspace, "error": str(error)})
            await self.keyspace.clock.sleep_ms(pause_ms)
            pause_ms *= 2
        return None

    async def authorize(self, work: Work, *, session: str, instance: str, release: str) -> Verdict:
        """Authorize a start for the session that its instance last opened."""
        return await self.keyspace.transact(
            "authorize_start",
            lambda tx: authorize_start(
                tx,
                self.workspace,
                work,
                session=session,
                instance_id=instance,
                release=release,
                lease_ms=self.options.lease_ms,
            ),
        )

    async def renew(self, held: tuple[Held, ...]) -> list[bool]:
        """Renew the leases of one session in one transaction."""
        leases = [(one.work.item_id, one.work.token) for one in held]
        kept = await self.keyspace.transact(
            "renew_leases", lambda tx: renew_leases(tx, self.workspace, leases, lease_ms=self.options.lease_ms)
        )
        self.metrics.renewals.labels("kept").inc(sum(kept))
        self.metrics.renewals.labels("lost").inc(len(kept) - sum(kept))
        return kept

    async def give_back(self, item_id: str, token: str) -> bool:
        """Return work that was not started."""
        is_back = await self.keyspace.transact("give_back", lambda tx: give_back(tx, self.workspace, item_id, token))
        if is_back:
            self.metrics.given_back.inc()
        return is_back

    async def lose(self, item_id: str, token: str) -> Loss:
        """End the lease of a holder that is gone."""
        loss = await self.keyspace.transact(
            "lose_lease", lambda tx: lose_lease(tx, self.workspace, item_id, token=token, is_session_lost=True)
        )
        if loss is not Loss.NOT_LOST:
            self.metrics.losses.labels(loss.name.lower()).inc()
        return loss

    async def prove_not_started(
        self, instance: str, session: str, run_id: str, direction: Direction, step_id: str, generation: int, token: str
    ) -> bool:
        """Requeue an authorized attempt that never began, as long as `session` is the one its instance has."""
        is_proven = await self.keyspace.transact(
            "prove_not_started",
            lambda tx: prove_not_started(
                tx, self.workspace, instance, run_id, direction, step_id, generation, token, session=session
            ),
        )
        if is_proven:
            self.metrics.not_started.inc()
        return is_proven

    async def unstart(self, held: Held, instance: str, session: str) -> bool:
        """Put an effect back whose start was never sent, whether or not its authorization committed."""
        work = held.work
        assert work.step_id is not None
        for _ in range(UNSTART_ROUNDS_MAX):
            if await self.prove_not_started(
                instance, session, work.run_id, direction_of(work.kind), work.step_id, work.generation, work.token
            ):
                return True
            if await self.give_back(work.item_id, work.token):
                return True
        return False

    async def close_session(self, instance: str, session: str) -> bool:
        """Forget an instance that holds nothing."""
        return await self.keyspace.transact(
            "close_session", lambda tx: close_session(tx, self.workspace, instance, session)
        )
