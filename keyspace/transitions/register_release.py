"""Register a connected release, and make it the one that its functions prefer (RFD 1, "Ryusen never pins a run").

A release is a name with exactly the functions and contracts it offers: other content under the same name is another
release, so that two fleets of one name never push each other aside. Its position is the stamp of the commit that registered
it, and stays: going back to an older release gives it no new one. No transaction can read the stamp that it writes, so the
heads are brought up afterwards, page by page; whoever says hello next goes on where a killed process stopped.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from keyspace.errors import Refusal
from keyspace.layout import BLOCKED, RELEASE, RELEASE_HEAD, RELEASE_LIST, RELEASE_OFFERS, RELEASE_STAMP
from keyspace.limits import FUNCTIONS_MAX, HEAD_PAGE_ITEMS, LIVE_MS, RELEASE_NAME_BYTES_MAX, RELEASES_MAX
from keyspace.records.release import OFFERS, HeadRecord, OffersRecord, ReleaseRecord
from keyspace.transitions.live_releases import read_live
from keyspace.transitions.names import check_name, check_text
from keyspace.transitions.wake_blocked import call_wake
from keyspace.tx import Tx, digest_of

__all__ = [
    "load_offers",
    "prefer_release",
    "prefers",
    "register_release",
    "release_id_of",
    "release_position",
    "remove_oldest_release",
]


def release_id_of(application: str, name: str, contracts: Mapping[str, str]) -> str:
    """Return the id of a release: the digest of its name and of what it offers."""
    offers = [text for offer in sorted(contracts.items()) for text in offer]
    return digest_of("ryusen.release", application, name, *offers)


async def register_release(
    tx: Tx, workspace: str, application: str, name: str, contracts: Mapping[str, str]
) -> ReleaseRecord:
    """Register what a worker runs, or return the registration that exists; a new one gets the greatest position so far.

    Args:
        tx: the open transaction.
        workspace: of the worker's credential.
        application: what it serves.
        name: how its deployment calls the release, 1 to 200 bytes.
        contracts: the contract digest of each function it offers, at most 1,000.

    Reads: the release; for a new one the application's list.  Writes: release, position, offers, list entry.
    Conflicts: with another new release of the same application.  Budget: the offers and 2 kB, or 10 kB with a full list.
    Idempotent: by name and content.

    Raises:
        Refusal: `invalid_name`, `invalid_text`, `too_many_releases`: `remove_oldest_release` makes room.
    """
    check_name("application", application)
    check_text("release", name, bytes_max=RELEASE_NAME_BYTES_MAX)
    assert len(contracts) <= FUNCTIONS_MAX
    release_id = release_id_of(application, name, contracts)
    known = await tx.load(RELEASE.at(workspace, application, release_id))
    if known is not None:
        return known
    registered = await tx.page(RELEASE_LIST.span(workspace, application), limit=RELEASES_MAX)
    if len(registered) >= RELEASES_MAX:
        raise Refusal(
            "too_many_releases",
            "The application has as many releases as may be registered.",
            application=application,
            limit=RELEASES_MAX,
        )
    offers = OFFERS.encode(OffersRecord(contracts=dict(sorted(contracts.items()))))
    record = ReleaseRecord(
        release_id=release_id,
        name=name,
        function_count=len(contracts),
        offers_bytes=len(offers),
        registered_at_ms=tx.now_ms,
    )
    tx.put(RELEASE.at(workspace, application, release_id), record)
    tx.put_own_stamp(RELEASE_STAMP.at(workspace, application, release_id))
    tx.put_blob(RELEASE_OFFERS, workspace, application, release_id, value=offers)
    tx.put_stamped(RELEASE_LIST, workspace, application, record=release_id)
    return record


async def release_position(tx: Tx, workspace: str, application: str, release_id: str) -> bytes | None:
    """Return a release's position, to be read after its registration committed; None when it is not registered."""
    return await tx.load(RELEASE_STAMP.at(workspace, application, release_id), snapshot=True)


async def load_offers(tx: Tx, workspace: str, application: str, release: ReleaseRecord) -> dict[str, str]:
    """Return the contract digest of each function that `release` offers; by snapshot, since offers never change."""
    data = await tx.load_blob(
        RELEASE_OFFERS, workspace, application, release.release_id, size_bytes=release.offers_bytes, snapshot=True
    )
    return OFFERS.decode(data).contracts


def prefers(head: HeadRecord | None, position: str) -> bool:
    """Return whether a function goes over to the release at `position` from the one that its head names."""
    return head is None or head.position < position


async def prefer_release(tx: Tx, workspace: str, application: str, release_id: str, *, after: str = "") -> str | None:
    """Make a registered release the head of the functions it offers, a page of them; older ones than a head change nothing.

    Args:
        tx: the open transaction, begun after the registration committed.
        workspace: whose release it is.
        application: its application.
        release_id: the release.
        after: the function that the page before ended with; empty for the first page.

    Reads: the release, its position and each head of the page, with conflict; whether the functions have blocked runs.
    Writes: heads that change, the wakes of those functions' blocked runs; at the end the release.
    Conflicts: with a newer release of the same application; with a run of it only when that becomes blocked or unblocked.
    Budget: about 1 kB a function, 4 kB where runs are blocked.
    Idempotent: a head that names this release or a newer one stays.

    Returns:
        What to give as `after` to the next page; None when the release is done.
    """
    record, stamp = await tx.load(
        RELEASE.at(workspace, application, release_id), RELEASE_STAMP.at(workspace, application, release_id)
    )
    if record is None or stamp is None or record.is_preferred:
        return None
    position = stamp.hex()
    functions = [name for name in sorted(await load_offers(tx, workspace, application, record)) if name > after]
    page = functions[:HEAD_PAGE_ITEMS]
    heads = await tx.load_all(RELEASE_HEAD.at(workspace, application, function) for function in page)
    changed = [function for function, head in zip(page, heads, strict=True) if prefers(head, position)]
    # One look at the whole application serves where nothing is blocked, which is nearly always.
    has_blocked = bool(changed) and not await tx.is_empty(BLOCKED.span(workspace, application))
    for function in changed:
        tx.put(RELEASE_HEAD.at(workspace, application, function), HeadRecord(release_id=release_id, position=position))
        if has_blocked:
            await call_wake(tx, workspace, application, function, release_id, position)
    if len(functions) > len(page):
        return page[-1]
    tx.put(RELEASE.at(workspace, application, release_id), msgspec.structs.replace(record, is_preferred=True))
    return None


async def remove_oldest_release(tx: Tx, workspace: str, application: str) -> str | None:
    """Forget an application's oldest release that no session runs, with the heads that name it; return it, or None.

    A function whose head goes has been offered by no newer release, so nobody runs it any more. Workers that come back with
    a removed release register it anew, at a new position.

    Reads: the list and what is live by snapshot; the release and its functions' heads with conflict.
    Writes: the same, gone.  Budget: about 300 bytes a function.
    """
    rows = await tx.page(RELEASE_LIST.span(workspace, application), limit=RELEASES_MAX, snapshot=True)
    live = {
        one.release_id
        for found in await read_live(tx)
        for one in found.record.releases
        if (one.workspace, one.application) == (workspace, application)
    }
    for key, value in rows:
        release_id = RELEASE_LIST.codec.decode(value)
        if release_id in live:
            continue
        record = await tx.load(RELEASE.at(workspace, application, release_id))
        # A session that has just said hello is not yet counted among the live.
        if record is None or record.registered_at_ms + LIVE_MS > tx.now_ms:
            continue
        functions = await load_offers(tx, workspace, application, record)
        heads = await tx.load_all(RELEASE_HEAD.at(workspace, application, function) for function in functions)
        for function, head in zip(functions, heads, strict=True):
            if head is not None and head.release_id == release_id:
                tx.remove(RELEASE_HEAD.at(workspace, application, function))
        tx.remove(RELEASE.at(workspace, application, release_id))
        tx.remove_range(RELEASE.span(workspace, application, release_id))
        tx.remove(RELEASE_LIST.at(*RELEASE_LIST.parse(key)))
        return release_id
    return None
