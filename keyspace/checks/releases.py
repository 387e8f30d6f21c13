"""Connected releases: each in its place, and each function's head the newest that offers it (C7, C8, C12)."""

from __future__ import annotations

from keyspace.checks.report import Case, checks
from keyspace.errors import CorruptRecord, UnknownVersion
from keyspace.layout import RELEASE, RELEASE_HEAD, RELEASE_LIST, RELEASE_STAMP
from keyspace.limits import RELEASES_MAX
from keyspace.records.release import HeadRecord, ReleaseRecord
from keyspace.store.api import KeyRange
from keyspace.transitions.register_release import load_offers, release_id_of

__all__: list[str] = []


async def _offers(case: Case, release: ReleaseRecord) -> dict[str, str]:
    """Return what a release offers; what cannot be read offers nothing and is reported where the release stands."""
    try:
        return await load_offers(case.tx, case.workspace, case.elements[1], release)
    except (CorruptRecord, UnknownVersion):
        return {}


@checks(RELEASE)
async def check_release(case: Case) -> None:
    """A release is what its id says, has a position and stands on the list there."""
    ws, application, release_id = case.elements
    release: ReleaseRecord = case.record
    offers = await _offers(case, release)
    case.expect(len(offers) == release.function_count, "C8", "the offers cannot be read or differ in number")
    case.expect(
        release_id == release.release_id == release_id_of(application, release.name, offers),
        "C7",
        "the release's id is not the digest of its name and offers",
    )
    stamp = await case.tx.load(RELEASE_STAMP.at(ws, application, release_id), snapshot=True)
    if case.expect(stamp is not None, "C7", "the release has no position"):
        listed = await case.tx.load(RELEASE_LIST.at(ws, application, stamp), snapshot=True)
        case.expect(listed == release_id, "C7", "the list has another release at its position")


@checks(RELEASE_LIST)
async def check_release_list(case: Case) -> None:
    """A listed release is registered at this position, and the list is within its bound."""
    ws, application, stamp = case.elements
    own = await case.tx.load(RELEASE_STAMP.at(ws, application, case.record), snapshot=True)
    case.expect(own == stamp, "C7", "the release has another position")
    rows = await case.tx.page(RELEASE_LIST.span(ws, application), limit=RELEASES_MAX + 1, snapshot=True)
    case.expect(len(rows) <= RELEASES_MAX, "C7", "the application has too many releases")


@checks(RELEASE_STAMP)
async def check_release_stamp(case: Case) -> None:
    """A position is a registered release's."""
    ws, application, release_id = case.elements
    case.expect(
        await case.tx.load(RELEASE.at(ws, application, release_id), snapshot=True), "C7", "there is no such release"
    )


@checks(RELEASE_HEAD)
async def check_release_head(case: Case) -> None:
    """A head names a registered release that offers the function, at its position, and none that is done is newer."""
    ws, application, function = case.elements
    head: HeadRecord = case.record
    release, stamp = await case.tx.load(
        RELEASE.at(ws, application, head.release_id),
        RELEASE_STAMP.at(ws, application, head.release_id),
        snapshot=True,
    )
    if not case.expect(release is not None and stamp is not None, "C7", "the head names no registered release"):
        return
    assert release is not None and stamp is not None
    case.expect(stamp.hex() == head.position, "C7", "the head has another position than its release")
    case.expect(function in await _offers(case, release), "C7", "the release does not offer the function")
    span = RELEASE_LIST.span(ws, application)
    newer = KeyRange(RELEASE_LIST.at(ws, application, stamp).data + b"\x00", span.end)
    for _, value in await case.tx.page(newer, limit=RELEASES_MAX, snapshot=True):
        other = await case.tx.load(RELEASE.at(ws, application, RELEASE_LIST.codec.decode(value)), snapshot=True)
        is_passed_over = other is not None and other.is_preferred and function in await _offers(case, other)
        case.expect(not is_passed_over, "C12", "a newer release that offers the function is not its head")
