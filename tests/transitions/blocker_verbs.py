"""How a run's definition becomes blocked in a world, and everything that looks at it again."""

from __future__ import annotations

from functools import partial
from typing import Any

from test_releases import position
from world import INSTANCE_ID, World

from keyspace.layout import BLOCKED, WAKE
from keyspace.queue import claims
from keyspace.records.blocker import BlockerRecord, CallSite
from keyspace.records.release import ReleaseRecord
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.transitions.block_run import DefinitionConflict, block_run
from keyspace.transitions.blockers import blocker_key
from keyspace.transitions.open_session import open_session
from keyspace.transitions.probe_definition import Probe, probe_definition
from keyspace.transitions.rediscover_run import RediscoverReply, rediscover_run
from keyspace.transitions.wake_blocked import wake_blocked
from keyspace.transitions.work import Accepted, Verdict, Work

__all__ = [
    "SITES",
    "be_blocked",
    "block",
    "blocked_runs",
    "blocker_of",
    "conflict",
    "join",
    "probe",
    "rediscover",
    "run_probe_lane",
    "wakes",
]

PAGES_MAX = 200
SITES = CallSite(location="shop.py:10", name="reserve"), CallSite(location="shop.py:20", name="reserve again")


def conflict(step_id: str = "twice") -> DefinitionConflict:
    return DefinitionConflict(step_id, *SITES)


async def block(world: World, work: Work, step_id: str = "twice", *, workspace: str = "acme") -> Verdict:
    return await world.run("block_run", lambda tx: block_run(tx, workspace, work, conflict(step_id)))


async def join(
    world: World, runs: ReleaseRecord | None, *, instance: str = INSTANCE_ID, session: str | None = None
) -> str:
    """Open a session of a worker that runs a release, or names none; return the session."""
    stamp = "" if runs is None else (await position(world, runs)).hex()
    opened = session or world.keyspace.mint()
    await world.run(
        "open_session",
        lambda tx: open_session(
            tx,
            "acme",
            instance_id=instance,
            application="shop",
            session=opened,
            release="" if runs is None else runs.name,
            position=stamp,
        ),
    )
    world.session = opened
    return opened


async def be_blocked(world: World, step_id: str = "twice", **options: Any) -> RunRecord:
    """Start a run whose first pass reports a conflict; return it as it stands then."""
    run = await world.start_run()
    assert await block(world, await world.lease_pass(**options), step_id) == Accepted()
    return await world.get_run(run.run_id)


async def blocker_of(world: World, run_id: str) -> BlockerRecord | None:
    return await world.read(lambda tx: tx.load(blocker_key("acme", run_id)))


async def blocked_runs(world: World, function: str = "fulfil") -> list[str]:
    """Return the runs that the index names under a function."""
    return [BLOCKED.parse(key)[-1] for key in await world.dump() if _is_blocked(key, function)]


def _is_blocked(key: bytes, function: str) -> bool:
    span = BLOCKED.span("acme", "shop", function)
    return span.begin <= key < span.end


async def wakes(world: World) -> list[Any]:
    return await world.records(WAKE)


async def probe(world: World, run_id: str, item_id: str) -> Probe:
    return await world.run("probe_definition", lambda tx: probe_definition(tx, "acme", run_id, item_id))


async def rediscover(
    world: World, run_id: str, *, by: str = "operator-1", item_id: str | None = None
) -> RediscoverReply:
    minted = item_id or world.keyspace.mint()
    return await world.run("rediscover_run", lambda tx: rediscover_run(tx, "acme", run_id, by=by, item_id=minted))


async def run_probe_lane(world: World) -> list[ItemRecord]:
    """Run every vested item of the probe lane, as a dispatcher would; return what was run."""
    lane, done = server_lane(LaneKind.PROBE), []
    for _ in range(PAGES_MAX):
        found = await world.read(lambda tx: claims.vested_items(tx, "acme", lane, limit=1))
        if not found:
            return done
        (item,) = found
        done.append(item)
        handler: Any = wake_blocked if item.kind is WorkKind.RELEASE_WAKE else probe_definition
        await world.run(handler.__name__, partial(_handle, handler, item))
    raise AssertionError("the lane never became empty")


async def _handle(handler: Any, item: ItemRecord, tx: Any) -> None:
    await handler(tx, "acme", item.target, item.item_id)
