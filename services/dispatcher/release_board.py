"""Which releases are live, here and at other dispatchers, and which execution contract each function is to have.

Choice rests on this view and nothing else does: what it says may be a moment old, and then a release that is not the newest
runs a step, which is allowed at any time (RFD 1, "during connected rolling overlap"). Sessions here count at once; what other
dispatchers' sessions run is read once a second while there are sessions here, by snapshot.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from keyspace.keyspace import Keyspace
from keyspace.layout import MANIFEST_FUNCTION, RELEASE, ROUTING, ROUTING_HEAD
from keyspace.limits import FUNCTIONS_MAX, LIVE_MS
from keyspace.records.release import LiveRelease
from keyspace.transitions.live_releases import LivePage, announce_live, forget_live, read_live
from keyspace.transitions.register_release import load_offers
from keyspace.tx import Tx
from services.dispatcher.options import (
    LIVE_FORGOTTEN_MS,
    LIVE_FORGOTTEN_PROCESSES_MAX,
    LIVE_LOOK_MS,
    LIVE_PAUSE_MS,
    OFFERS_KEPT_MAX,
    ROUTING_PAGE_ITEMS,
)
from services.dispatcher.releases import UNVERSIONED, Standing
from services.lanes.alarm import Alarm
from services.lanes.deferral import is_passing

__all__ = ["Application", "ReleaseBoard"]

log = logging.getLogger(__name__)


class Application(NamedTuple):
    """An application and whose it is."""

    workspace: str
    name: str


class _Declared(NamedTuple):
    """What the active manifest generation of an application declares; 0 when none is active."""

    generation: int
    contracts: Mapping[str, str]


_NOTHING = _Declared(0, {})


class ReleaseBoard:
    """One dispatcher's view of live releases, and its own word on what its sessions run."""

    def __init__(
        self, keyspace: Keyspace, *, process_id: str, skew_ms: int, on_change: Callable[[Application], None]
    ) -> None:
        """Know nothing yet.

        Args:
            keyspace: where releases are registered.
            process_id: this dispatcher.
            skew_ms: how far the clocks of live processes may lie apart.
            on_change: called with an application whose choice may have changed.
        """
        self._keyspace = keyspace
        self._process_id = process_id
        self._skew_ms = skew_ms
        self._on_change = on_change
        self._alarm = Alarm(keyspace.clock)
        self._here: dict[Application, dict[str, Standing]] = {}
        self._elsewhere: dict[Application, tuple[Standing, ...]] = {}
        self._routing: dict[str, tuple[int, Mapping[str, int]]] = {}
        self._declared: dict[Application, _Declared] = {}
        self._offers: OrderedDict[str, Mapping[str, str]] = OrderedDict()
        self._newest: dict[tuple[Application, str], str] = {}
        self._said: list[LiveRelease] = []
        self._said_until_ms = 0

    # -- sessions here

    async def learn(self, application: Application) -> None:
        """Read what concerns an application that no session here serves yet, so that its first choice is not blind.

        Raises:
            StoreError: the store did not answer.
        """
        if application not in self._here:
            await self._look([application])

    def join(self, application: Application, session: str, standing: Standing) -> None:
        """Count a session as live from now on."""
        self._here.setdefault(application, {})[session] = standing
        self._changed(application)

    def part(self, application: Application, session: str) -> None:
        """Count a session no more, because it ended or takes no more work; again changes nothing."""
        sessions = self._here.get(application, {})
        if sessions.pop(session, None) is not None:
            if not sessions:
                del self._here[application]
            self._changed(application)

    def _changed(self, application: Application) -> None:
        self._newest.clear()
        self._alarm.ring()
        self._on_change(application)

    # -- choice

    def is_eligible(self, application: Application, function: str, standing: Standing) -> bool:
        """Return whether a session serves `function` under the contract that the active manifest declares, if it does."""
        offered = standing.contracts.get(function)
        if offered is None:
            return False
        declared = self._declared.get(application, _NOTHING).contracts.get(function, "")
        return not declared or declared == offered

    def newest(self, application: Application, function: str) -> str:
        """Return the greatest position of a live release that may run `function`; `UNVERSIONED` when there is none."""
        key = (application, function)
        found = self._newest.get(key)
        if found is None:
            live = (*self._here.get(application, {}).values(), *self._elsewhere.get(application, ()))
            positions = (one.position for one in live if self.is_eligible(application, function, one))
            found = self._newest[key] = max(positions, default=UNVERSIONED)
        return found

    def goes_on(self, application: Application, function: str, standing: Standing) -> bool:
        """Return whether a session may go on with a run of `function` by itself: no eligible live release is newer.

        Args:
            application: what the session serves.
            function: the run's; empty when it is not known, which asks for every function that the session serves.
            standing: the session's.
        """
        functions = (function,) if function else standing.contracts
        return all(
            self.is_eligible(application, name, standing) and standing.position >= self.newest(application, name)
            for name in functions
        )

    # -- looking

    async def run(self) -> None:
        """Keep the view until cancelled; without sessions here it costs nothing."""
        while True:
            is_idle = not self._here and not self._said
            await self._alarm.wait(None if is_idle else LIVE_LOOK_MS)
            try:
                await self.look()
            except Exception as error:
                log.warning("live releases cannot be read", exc_info=None if is_passing(error) else error)
            await self._keyspace.clock.sleep_ms(LIVE_PAUSE_MS)

    async def look(self) -> None:
        """Say what sessions here run, if that is new or runs out, and read what others say.

        Raises:
            StoreError: the store did not answer.
        """
        await self._say()
        await self._look(list(self._here))

    async def leave(self) -> None:
        """Take back what was said; the process is leaving.

        Raises:
            StoreError: the store did not answer; the word runs out by itself.
        """
        await self._forget([self._process_id])
        self._said = []

    async def _say(self) -> None:
        releases = self._own()
        is_due = bool(releases) and self._keyspace.clock.now_ms() >= self._said_until_ms - LIVE_MS // 2
        if releases == self._said and not is_due:
            return

        async def body(tx: Tx) -> int:
            return announce_live(tx, self._process_id, releases)

        self._said_until_ms = await self._keyspace.transact("announce_live", body)
        self._said = releases

    def _own(self) -> list[LiveRelease]:
        counts: dict[tuple[Application, str, str], int] = {}
        for application, sessions in self._here.items():
            for standing in sessions.values():
                if standing.position != UNVERSIONED:
                    key = (application, standing.release_id, standing.position)
                    counts[key] = counts.get(key, 0) + 1
        return [
            LiveRelease(
                workspace=application.workspace,
                application=application.name,
                release_id=release_id,
                position=position,
                session_count=count,
            )
            for (application, release_id, position), count in sorted(counts.items())
        ]

    async def _look(self, applications: list[Application]) -> None:
        workspaces = sorted({application.workspace for application in applications})
        pages = await self._keyspace.transact("read_live", read_live)
        await self._forget_dead(pages)
        for start in range(0, len(workspaces), ROUTING_PAGE_ITEMS):
            await self._read_routing(workspaces[start : start + ROUTING_PAGE_ITEMS])
        elsewhere = self._standing_elsewhere(pages)
        for application in applications:
            declared = await self._read_declared(application)
            live = await self._with_offers(application, elsewhere.get(application, []))
            self._take_in(application, declared, live)
        for gone in [one for one in self._declared if one not in self._here and one not in applications]:
            del self._declared[gone]
            self._elsewhere.pop(gone, None)

    def _take_in(self, application: Application, declared: _Declared, live: tuple[Standing, ...]) -> None:
        before = (self._declared.get(application, _NOTHING), self._elsewhere.get(application, ()))
        self._declared[application], self._elsewhere[application] = declared, live
        if before != (declared, live):
            self._newest.clear()
            self._on_change(application)

    def _standing_elsewhere(self, pages: Iterable[LivePage]) -> dict[Application, list[LiveRelease]]:
        """Return what still counts of what other dispatchers said, each release once."""
        now_ms = self._keyspace.clock.now_ms()
        found: dict[Application, dict[str, LiveRelease]] = {}
        for page in pages:
            if page.process_id == self._process_id or page.record.expires_at_ms + self._skew_ms <= now_ms:
                continue
            for one in page.record.releases:
                found.setdefault(Application(one.workspace, one.application), {})[one.release_id] = one
        return {application: [ones[name] for name in sorted(ones)] for application, ones in found.items()}

    async def _with_offers(self, application: Application, live: list[LiveRelease]) -> tuple[Standing, ...]:
        missing = [one.release_id for one in live if one.release_id not in self._offers]
        for release_id in missing:
            self._offers[release_id] = await self._keyspace.transact(
                "read_offers", partial(_read_offers, application=application, release_id=release_id)
            )
        standings = []
        for one in live:
            self._offers.move_to_end(one.release_id)
            standings.append(Standing(one.release_id, one.position, self._offers[one.release_id]))
        while len(self._offers) > OFFERS_KEPT_MAX:
            self._offers.popitem(last=False)
        return tuple(standings)

    # -- contracts

    async def _read_routing(self, workspaces: list[str]) -> None:
        async def body(tx: Tx) -> dict[str, tuple[int, Mapping[str, int]]]:
            heads = await tx.load_all((ROUTING_HEAD.at(name) for name in workspaces), snapshot=True)
            changed = [
                (name, head)
                for name, head in zip(workspaces, heads, strict=True)
                if head is not None and self._routing.get(name, (0,))[0] != head
            ]
            routings = await tx.load_all((ROUTING.at(name, head) for name, head in changed), snapshot=True)
            return {
                name: (head, {} if routing is None else routing.applications)
                for (name, head), routing in zip(changed, routings, strict=True)
            }

        self._routing.update(await self._keyspace.transact("read_routing", body))
        served = {application.workspace for application in self._here}.union(workspaces)
        self._routing = {name: routing for name, routing in self._routing.items() if name in served}

    async def _read_declared(self, application: Application) -> _Declared:
        routing = self._routing.get(application.workspace)
        generation = 0 if routing is None else routing[1].get(application.name, 0)
        known = self._declared.get(application)
        if known is not None and known.generation == generation:
            return known
        if not generation:
            return _NOTHING

        async def body(tx: Tx) -> dict[str, str]:
            span = MANIFEST_FUNCTION.span(application.workspace, application.name, generation)
            rows = await tx.page(span, limit=FUNCTIONS_MAX, snapshot=True)
            functions = [MANIFEST_FUNCTION.codec.decode(value) for _, value in rows]
            return {function.name: function.contract for function in functions}

        return _Declared(generation, await self._keyspace.transact("read_contracts", body))

    # -- the dead

    async def _forget_dead(self, pages: list[LivePage]) -> None:
        before_ms = self._keyspace.clock.now_ms() - LIVE_FORGOTTEN_MS
        dead = sorted({page.process_id for page in pages if page.record.expires_at_ms < before_ms})
        if dead:
            await self._forget(dead[:LIVE_FORGOTTEN_PROCESSES_MAX])

    async def _forget(self, process_ids: list[str]) -> None:
        async def body(tx: Tx) -> None:
            for process_id in process_ids:
                forget_live(tx, process_id)

        await self._keyspace.transact("forget_live", body)


async def _read_offers(tx: Tx, application: Application, release_id: str) -> Mapping[str, str]:
    """Return what a release offers; one that was removed meanwhile offers nothing."""
    record = await tx.load(RELEASE.at(application.workspace, application.name, release_id), snapshot=True)
    return {} if record is None else await load_offers(tx, application.workspace, application.name, record)
