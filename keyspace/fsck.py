"""Check a whole keyspace: every key known, every value readable, every check of FILLED-IN 10 that this release reaches.

The walk reads by snapshot in bounded pages, each page one transaction; what a check compares with is read in the page's own
transaction, so a keyspace may be walked while it serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyspace.checks import blockers, events, queue, releases, runs, steps, tenancy, waits
from keyspace.checks.report import CHECKS, PROBLEMS_MAX, Case, Problem, Report
from keyspace.errors import CorruptRecord, KeyspaceError, UnknownVersion
from keyspace.keyspace import Keyspace
from keyspace.layout import WORKSPACE_LIST, identify, shared_range, workspace_range
from keyspace.leaf import Leaf
from keyspace.store.api import KeyRange
from keyspace.store.errors import TransactionTooOld
from keyspace.store.runner import RetriesExhausted
from keyspace.tx import Tx

__all__ = ["Problem", "Report", "check_keyspace"]

PAGE_KEYS = 200
WHOLE = KeyRange(b"", b"\xff")
_SUBJECTS = (blockers, events, queue, releases, runs, steps, tenancy, waits)
"""Importing a subject declares its checks."""


async def check_keyspace(
    keyspace: Keyspace, *, workspaces: list[str] | None = None, progress: Callable[[Report], None] | None = None
) -> Report:
    """Walk a keyspace and return what is wrong with it.

    Args:
        keyspace: the deployment to check.
        workspaces: only these, with the shared keys; all when None.
        progress: called after each page with the report so far.
    """
    report = Report()
    spans = [WHOLE] if workspaces is None else [shared_range(), *(workspace_range(name) for name in workspaces)]
    for span in spans:
        cursor: bytes | None = span.begin
        limit = PAGE_KEYS
        while cursor is not None:
            cursor, limit = await _page(keyspace, KeyRange(cursor, span.end), report, limit)
            if progress is not None:
                progress(report)
    return report


async def _page(keyspace: Keyspace, span: KeyRange, report: Report, limit: int) -> tuple[bytes | None, int]:
    """Judge one page; a page that outlasts the store's five seconds is tried again with half the keys."""
    seen = Report()
    last: list[bytes] = []

    async def body(tx: Tx) -> None:
        last.clear()
        _reset(seen)
        rows = await tx.page(span, limit=limit, snapshot=True)
        for key, value in rows:
            await _judge(tx, key, value, seen)
        if len(rows) == limit:
            last.append(rows[-1][0])

    try:
        await keyspace.transact("fsck", body)
    except RetriesExhausted as error:
        if limit == 1 or not isinstance(error.last, TransactionTooOld):
            raise
        return span.begin, max(1, limit // 2)
    _add(report, seen)
    return (last[0] + b"\x00" if last else None), limit


async def _judge(tx: Tx, key: bytes, value: bytes, report: Report) -> None:
    report.key_count += 1
    found = identify(key)
    if found is None:
        _problem(report, "C7", key.hex(), "no leaf has such a key")
        return
    leaf, elements = found
    try:
        record = leaf.codec.decode(value)
    except (CorruptRecord, UnknownVersion) as error:
        _problem(report, "C8", f"{leaf.name}{elements!r}", str(error))
        return
    case = Case(tx, leaf, elements, record, report)
    check = CHECKS.get(leaf.name)
    try:
        await _check_owner(case, leaf)
        if check is not None:
            await check(case)
    except (KeyspaceError, LookupError, TypeError, ValueError) as error:
        # What a key is compared with may be damaged itself; the walk must come to the end and tell of both.
        _problem(report, "C8", f"{leaf.name}{elements!r}", f"what it is compared with cannot be read: {error!r}")


async def _check_owner(case: Case, leaf: Leaf[Any]) -> None:
    """A workspace's first key is its record; a key of a workspace that does not exist belongs to nobody."""
    if case.workspace and not isinstance(leaf.shape[0], int) and leaf.name == "ITEM":
        key = WORKSPACE_LIST.at(case.workspace)
        rows = await case.tx.page(KeyRange(key.data, key.data + b"\x00"), limit=1, snapshot=True)
        case.expect(rows, "C7", "work of a workspace that does not exist")


def _problem(report: Report, check: str, key: str, sentence: str) -> None:
    report.problem_count += 1
    if len(report.problems) < PROBLEMS_MAX:
        report.problems.append(Problem(check, key, sentence))


def _reset(report: Report) -> None:
    report.key_count = report.run_count = report.event_count = report.item_count = report.problem_count = 0
    report.problems.clear()


def _add(total: Report, page: Report) -> None:
    total.key_count += page.key_count
    total.run_count += page.run_count
    total.event_count += page.event_count
    total.item_count += page.item_count
    total.problem_count += page.problem_count
    total.problems += page.problems[: PROBLEMS_MAX - len(total.problems)]
