"""What a session runs: its release, registered when its worker says hello, and where that stands among the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ryusen.protocol.frames import Hello

from keyspace.errors import Refusal
from keyspace.limits import FUNCTIONS_MAX, HEAD_PAGE_ITEMS
from keyspace.records.release import ReleaseRecord
from keyspace.transitions.register_release import (
    prefer_release,
    register_release,
    release_position,
    remove_oldest_release,
)
from keyspace.tx import Tx
from services.dispatcher.work_effects import WorkEffects

__all__ = ["UNVERSIONED", "Standing", "stand"]

UNVERSIONED = ""
"""The position of workers that name no release: below every other."""
REGISTER_ROUNDS_MAX = 3
"""Tries to register while others fill the list, or remove what was just registered."""
HEAD_PAGES_MAX = -(-FUNCTIONS_MAX // HEAD_PAGE_ITEMS)


class Standing(NamedTuple):
    """What a session runs.

    Attributes:
        release_id: its registration; empty for a worker that names no release.
        position: the stamp that the server assigned to it, in hexadecimal; `UNVERSIONED` without one.
        contracts: the digest of the execution contract of each function it serves.
    """

    release_id: str
    position: str
    contracts: Mapping[str, str]


async def stand(work: WorkEffects, hello: Hello) -> Standing:
    """Register the release that a sound hello names and return its standing; a nameless one registers nothing.

    Raises:
        StoreError: the store kept it from being registered; the worker tries again.
        Refusal: `too_many_releases`, and all of them are live.
    """
    contracts = {offer.name: offer.contract for offer in hello.functions}
    if not hello.release:
        return Standing("", UNVERSIONED, contracts)
    for _ in range(REGISTER_ROUNDS_MAX):
        record = await _register(work, hello, contracts)
        if record is None:
            continue
        position = await _position(work, hello.application, record.release_id)
        if position is None:
            continue
        if not record.is_preferred:
            await _prefer(work, hello.application, record.release_id)
        return Standing(record.release_id, position.hex(), contracts)
    raise Refusal(
        "too_many_releases",
        "The application has as many live releases as may be registered; stop workers of old ones.",
        application=hello.application,
    )


async def _register(work: WorkEffects, hello: Hello, contracts: Mapping[str, str]) -> ReleaseRecord | None:
    """Return the registration; None when there was no room and some may have been made."""
    try:
        return await work.keyspace.transact(
            "register_release",
            lambda tx: register_release(tx, work.workspace, hello.application, hello.release, contracts),
        )
    except Refusal as refusal:
        if refusal.code != "too_many_releases":
            raise

    async def make_room(tx: Tx) -> str | None:
        return await remove_oldest_release(tx, work.workspace, hello.application)

    await work.keyspace.transact("remove_oldest_release", make_room)
    return None


async def _position(work: WorkEffects, application: str, release_id: str) -> bytes | None:
    return await work.keyspace.transact(
        "release_position", lambda tx: release_position(tx, work.workspace, application, release_id)
    )


async def _prefer(work: WorkEffects, application: str, release_id: str) -> None:
    after = ""

    async def page(tx: Tx) -> str | None:
        return await prefer_release(tx, work.workspace, application, release_id, after=after)

    for _ in range(HEAD_PAGES_MAX):
        last = await work.keyspace.transact("prefer_release", page)
        if last is None:
            return
        after = last
