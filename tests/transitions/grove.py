"""Trees of runs that are taken to their end one transaction at a time, so that a stop can come between any two of them.

Every run of `node` invokes others one after another and then returns; a leaf has one callback step and no child. What is
done next is the first of what there is to do, so two groves of one shape go the same way until somebody interferes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from child_verbs import BETWEEN_RUNS, invocation, pass_on_item
from operator_verbs import begun_after_stop, cancel
from server_steps import ONCE
from world import World, work_of

from keyspace.layout import HISTORY, RUN, identify
from keyspace.lifecycle import Execution, Phase
from keyspace.queue import claims
from keyspace.records.run import HistoryRecord, RunRecord
from keyspace.records.work import Direction, LaneKind, WorkKind, server_lane
from keyspace.transitions.work import Stale, Work

__all__ = ["EVENT", "Grove", "Shape"]

EVENT = "tree.planted"
STEPS_MAX = 1_000_000


@dataclass(frozen=True)
class Shape:
    """How many roots there are, how deep each goes, and how many children the runs above the leaves have in turn."""

    roots: int = 1
    depth: int = 1
    width: int = 1


@dataclass
class Grove:
    """Trees of one shape in one world; `acts` counts the transactions that took them further."""

    world: World
    shape: Shape
    acts: int = 0
    _leased: list[Work] = field(default_factory=list)
    _running: list[Work] = field(default_factory=list)

    async def plant(self) -> None:
        """Publish the function and start the roots."""
        await self.world.publish({"node": [EVENT]})
        for _ in range(self.shape.roots):
            await self.world.submit(EVENT)
        await self.world.expand()

    async def go_on(self, acts_max: int = STEPS_MAX) -> bool:
        """Do the next things, at most so many; say whether everything has ended."""
        for _ in range(acts_max):
            if not await self._act():
                return True
            self.acts += 1
        return False

    async def cancel_roots(self) -> None:
        """Cancel every root that there is."""
        for run in await self.runs():
            if run.parent is None and run.phase is not Phase.TERMINAL:
                await cancel(self.world, run.run_id)

    async def runs(self) -> list[RunRecord]:
        """Return every run, in the order of their ids."""
        return await self.world.records(RUN)

    async def check_ended(self) -> None:
        """Fail unless every run has ended, each after its child, nothing began behind a stop, and the keyspace is sound."""
        runs = {run.run_id: run for run in await self.runs()}
        for run in runs.values():
            assert run.phase is Phase.TERMINAL, run
            if run.parent is not None:
                parent = runs[run.parent.run_id]
                assert (run.terminal_at_ms or 0) <= (parent.terminal_at_ms or 0), "a parent is terminal after its child"
                if run.execution is Execution.CANCELLED:
                    assert parent.stop is not None, (
                        "only roots were cancelled; whatever is below was told by its parent"
                    )
        for run_id, history in (await self._histories()).items():
            if runs[run_id].stop is not None:
                assert begun_after_stop(history) == []
        await self.world.check()

    async def _histories(self) -> dict[str, list[HistoryRecord]]:
        histories: dict[str, list[HistoryRecord]] = {}
        for key, value in (await self.world.dump()).items():
            found = identify(key)
            if found is not None and found[0] is HISTORY:
                histories.setdefault(found[1][1], []).append(HISTORY.codec.decode(value))
        return histories

    # -- one thing after another

    async def _act(self) -> bool:
        """Do the next thing: one transaction that writes, and what must be read for it."""
        return (
            await self._between_runs()
            or await self._settle_effect()
            or await self._go_on_with_lease()
            or await self._lease(Direction.COMPENSATION)
            or await self._lease(Direction.FORWARD)
        )

    async def _between_runs(self) -> bool:
        lane = server_lane(LaneKind.SETTLE)
        found = await self.world.read(lambda tx: claims.vested_items(tx, "acme", lane, limit=1))
        if not found:
            return False
        assert found[0].kind in BETWEEN_RUNS
        await pass_on_item(self.world, found[0])
        return True

    async def _settle_effect(self) -> bool:
        if not self._running:
            return False
        await self.world.succeed(self._running.pop(0))
        return True

    async def _go_on_with_lease(self) -> bool:
        if not self._leased:
            return False
        work = self._leased.pop(0)
        if work.kind is WorkKind.COMPENSATION:
            await self.world.not_found(work)
        elif work.kind is WorkKind.DISCOVERY:
            await self._answer(work)
        elif not isinstance(await self.world.authorize(work), Stale):
            self._running.append(work)
        return True

    async def _lease(self, direction: Direction) -> bool:
        deliveries = await self.world.lease_many(1, function="node", direction=direction)
        self._leased += [work_of(delivery) for delivery in deliveries]
        return bool(deliveries)

    async def _answer(self, work: Work) -> None:
        run = await self.world.get_run(work.run_id)
        depth = 0 if run.parent is None else run.parent.depth
        if depth == self.shape.depth:
            if run.settled_count:
                await self.world.complete(work)
            else:
                await self.world.declare(work, "effect")
        elif run.settled_count == self.shape.width:
            await self.world.complete(work)
        else:
            wanted = invocation("node", step_id=f"child-{run.settled_count}")
            await self.world.declare(work, wanted.step_id, retry=ONCE, terms=wanted.terms)
