"""An operator at work while processes die: each attempt that is Unknown gets one drawn decision, or is left as it is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import anyio
from e2e_world import SUBMIT_S_MAX
from ryusen import ApiError, AsyncClient, Unreachable
from ryusen.client import AuthorizeRetry, DeclareFailure, SupplySuccess

__all__ = ["Desk"]

PAGE = 200
LOOK_S = 0.1
LEFT_SHARE = 0.3
"""Of all Unknown attempts, how many nobody decides."""
REFUSED = frozenset({"stale_attempt", "retry_forbidden"})
"""What a command may be told: a late result or a stop was first."""


@dataclass
class Desk:
    """The decisions made so far.

    Attributes:
        clients: of every gateway, an administrator's.
        left: the attempts that stay in doubt: run, direction, step, generation.
        commands: how often each command was carried out.
    """

    clients: list[AsyncClient]
    rng: random.Random
    left: set[tuple[str, str, str, int]] = field(default_factory=set)
    decided: set[tuple[str, str, str, int]] = field(default_factory=set)
    commands: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Decide whatever comes, until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(LOOK_S)

    async def look(self) -> bool:
        """Decide what is unresolved now; says whether all that is left was left on purpose."""
        try:
            page = await self.clients[0].unresolved(limit=PAGE)
        except (Unreachable, ApiError):
            return False
        assert page.next_cursor is None
        is_quiet = True
        for one in page.items:
            at = (one["run"], one["direction"], one["step"], one["generation"])
            if at in self.left:
                continue
            is_quiet = False
            if at not in self.decided and self.rng.random() < LEFT_SHARE:
                self.left.add(at)
            else:
                await self._decide(at, may_retry=one["may_retry"])
        return is_quiet

    async def _decide(self, at: tuple[str, str, str, int], *, may_retry: bool) -> None:
        run, direction, step, generation = at
        choice = random.Random(repr(at)).choice(
            ("success", "failure", "retry") if may_retry else ("success", "failure")
        )
        command: Any = {
            "success": SupplySuccess(0),
            "failure": DeclareFailure("nobody knows of it"),
            "retry": AuthorizeRetry(),
        }[choice]
        is_undo = direction == "compensation"
        with anyio.fail_after(SUBMIT_S_MAX):
            for turn in range(1_000):
                client = self.clients[turn % len(self.clients)]
                try:
                    await client.resolve(
                        run, step, generation, command, idempotency_key="-".join(map(str, at)), compensation=is_undo
                    )
                except Unreachable:
                    continue
                except ApiError as error:
                    if error.status >= 500:
                        continue
                    assert error.problem in REFUSED, error
                    return
                if at not in self.decided:
                    self.decided.add(at)
                    self.commands[choice] = self.commands.get(choice, 0) + 1
                return
