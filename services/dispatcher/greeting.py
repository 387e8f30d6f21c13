"""How a session begins: the hello is checked, older sessions of the instance are fenced, and what it never started is proven.

The order matters. The instance's record is moved first, so that no older session authorizes anything after; then the starts
that are recorded to the instance are read, and each one that its hello does not list never began (RFD 2, "A transport that
proves"). Only then is the worker welcomed.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import anyio
from ryusen.protocol.frames import CODEC, PROTOCOL_VERSION, HeldWork, Hello, Refused

from keyspace.errors import Refusal
from keyspace.limits import CONTRACT_BYTES_MAX, RELEASE_NAME_BYTES_MAX
from keyspace.transitions.names import check_id, check_name, check_text
from keyspace.transitions.open_session import RecordedStart, open_session, recorded_starts
from services.dispatcher.held import Held, HeldState
from services.dispatcher.options import (
    CAPACITY_MAX,
    CLEANUP_CONCURRENCY,
    FEATURES_MAX,
    FUNCTIONS_MAX,
    HELD_MAX,
    STARTS_PAGES_MAX,
    TEXT_CHARS_MAX,
)
from services.dispatcher.refs import matches_start, work_of
from services.dispatcher.releases import Standing, stand
from services.dispatcher.work_effects import WorkEffects

__all__ = ["Greeting", "adopt", "disproved", "greet", "hello_fault"]

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 2**53
"""More connections than one process can make; as many as every language's numbers count exactly."""


class Greeting(NamedTuple):
    """A session that may stand: its id, the work it goes on with, and what it runs."""

    session: str
    adopted: list[Held]
    standing: Standing


def hello_fault(hello: Hello) -> Refused | None:
    """Return why no session can ever come of this hello, or None for a sound one."""
    if PROTOCOL_VERSION not in hello.protocols:
        return _refused(
            "protocol_unsupported", f"The worker speaks protocols {hello.protocols[:8]}; here it is {PROTOCOL_VERSION}."
        )
    if CODEC not in hello.codecs:
        return _refused("codec_unsupported", f"The worker speaks codecs {hello.codecs[:8]}; here it is {CODEC}.")
    bounds = (
        ("capacity", hello.capacity, 1, CAPACITY_MAX),
        ("undo_capacity", hello.undo_capacity, 0, CAPACITY_MAX),
        ("functions", len(hello.functions), 1, FUNCTIONS_MAX),
        ("held", len(hello.held), 0, HELD_MAX),
        ("features", len(hello.features), 0, FEATURES_MAX),
        ("connection", hello.connection, 0, CONNECTIONS_MAX),
    )
    for field, value, least, most in bounds:
        if not least <= value <= most:
            return _refused("invalid_hello", f"The hello's {field} is {value}; allowed are {least} to {most}.")
    try:
        check_id("instance", hello.instance)
        check_name("application", hello.application)
        check_text("release", hello.release, bytes_max=RELEASE_NAME_BYTES_MAX, empty=True)
        check_text("sdk", hello.sdk, bytes_max=TEXT_CHARS_MAX, empty=True)
        for offer in hello.functions:
            check_name("function", offer.name)
            check_text("contract", offer.contract, bytes_max=CONTRACT_BYTES_MAX, empty=True)
    except Refusal as refusal:
        return _refused("invalid_hello", f"The hello is refused: {refusal.message} {refusal.details.get('field')}")
    return None


def disproved(starts: list[RecordedStart], held: list[HeldWork]) -> list[RecordedStart]:
    """Return the recorded starts that the hello proves never to have begun.

    Work that is listed as merely assigned has not begun either, whatever is recorded.
    """
    begun = [one.ref for one in held if one.state != "assigned"]
    by_run: dict[str, list[int]] = {}
    for index, ref in enumerate(begun):
        by_run.setdefault(ref.run, []).append(index)
    return [
        start
        for start in starts
        if not any(matches_start(begun[index], start) for index in by_run.get(start.run_id, ()))
    ]


def adopt(held: list[HeldWork]) -> list[Held]:
    """Return the listed work that the new session holds from now on; what has finished comes as frames of its own."""
    adopted: dict[str, Held] = {}
    for one in held:
        work = work_of(one.ref)
        if work is None or one.state == "finished" or len(one.request) > TEXT_CHARS_MAX:
            continue
        was_started = one.state == "running" and work.step_id is not None
        state = HeldState.STARTED if was_started else HeldState.ASSIGNED
        adopted[one.request] = Held(one.request, one.ref, work, state, was_started=was_started)
    return list(adopted.values())


async def greet(work: WorkEffects, hello: Hello) -> Greeting:
    """Open a session for a sound hello.

    Raises:
        StoreError: the store kept it from being opened; the worker tries again.
        Refusal: `session_superseded`, `too_many_releases`.
    """
    standing = await stand(work, hello)
    keyspace, workspace = work.keyspace, work.workspace
    session = keyspace.mint()
    await keyspace.transact(
        "open_session",
        lambda tx: open_session(
            tx,
            workspace,
            instance_id=hello.instance,
            application=hello.application,
            session=session,
            release=hello.release,
            connection=hello.connection,
            position=standing.position,
        ),
    )
    after: RecordedStart | None = None
    for _ in range(STARTS_PAGES_MAX):
        starts = await _read_starts(work, hello.instance, after)
        if not starts:
            break
        await _prove(work, hello.instance, session, disproved(starts, hello.held))
        after = starts[-1]
    return Greeting(session, adopt(hello.held), standing)


async def _read_starts(work: WorkEffects, instance: str, after: RecordedStart | None) -> list[RecordedStart]:
    return await work.keyspace.transact(
        "recorded_starts", lambda tx: recorded_starts(tx, work.workspace, instance, after=after)
    )


async def _prove(work: WorkEffects, instance: str, session: str, starts: list[RecordedStart]) -> None:
    limiter = anyio.CapacityLimiter(CLEANUP_CONCURRENCY)

    async def one(start: RecordedStart) -> None:
        async with limiter:
            try:
                await work.prove_not_started(instance, session, *start)
            except Exception:
                # It stays as it is, and the next hello proves it again; the worker's other work must not wait for it.
                log.exception("a start cannot be taken back", extra={"workspace": work.workspace, "run": start.run_id})

    async with anyio.create_task_group() as group:
        for start in starts:
            group.start_soon(one, start, name="prove_not_started")


def _refused(code: str, message: str) -> Refused:
    return Refused(code=code, message=message, definitive=True)
