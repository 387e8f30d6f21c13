"""Case 049: what a step costs does not grow with the steps before it, neither in the store nor on the wire nor in time.

The figures are printed; `perf/replay.md` records them.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
from ryusen.protocol.frames import Assign, encode_frame
from test_whole_costs import many_steps
from whole_rig import Whole

from services.dispatcher.options import CONTINUED_STEPS_MAX, DispatcherOptions


class Figures(NamedTuple):
    """What a step of a run took on average."""

    assignments: float
    assigned_bytes: float
    assignment_reads: float
    reads: float
    store_bytes: float
    cpu_ms: float


class WeighingWhole(Whole):
    """Weighs the assignments that reach the worker."""

    assigned_bytes = 0
    assigned_count = 0

    def next_frame_fault(self, frame: object) -> None:
        if isinstance(frame, Assign):
            self.assigned_count += 1
            self.assigned_bytes += len(encode_frame(frame))


async def figures_of(count: int, *, continues: bool) -> Figures:
    """Take a run of `count` steps to its end and return what a step took."""
    whole = WeighingWhole(many_steps(count), options=DispatcherOptions(continues=continues))
    await whole.world.begin()
    await whole.world.start_run()
    begun_s = time.process_time()
    await whole.to_the_end()
    cpu_ms = 1_000 * (time.process_time() - begun_s)
    assert whole.dispatcher is not None
    snapshot = whole.dispatcher[0].keyspace.meter.snapshot()
    loads = [snapshot[name] for name in ("load_assignment", "load_progress") if name in snapshot]
    totals = (
        whole.assigned_count,
        whole.assigned_bytes,
        sum(load.read_count for load in loads),
        sum(figure.read_count for figure in snapshot.values() if figure.write_count),
        sum(figure.size_bytes for figure in snapshot.values()),
        cpu_ms,
    )
    return Figures(*(total / count for total in totals))


@pytest.mark.case(49)
@pytest.mark.parametrize(
    ("continues", "few_count", "many_count"),
    [(True, 2 * CONTINUED_STEPS_MAX + 1, 8 * CONTINUED_STEPS_MAX + 1), (False, 50, 200)],
    ids=["continuing", "queued"],
)
async def test_a_step_costs_the_same_wherever_it_stands(continues: bool, few_count: int, many_count: int) -> None:
    """Case 049: history is sent once, then only what is new. A run that goes on by itself is assigned when it has yielded."""
    few, many = await figures_of(few_count, continues=continues), await figures_of(many_count, continues=continues)
    for count, figures in ((few_count, few), (many_count, many)):
        print(count, *(f"{field} {value:.1f}" for field, value in figures._asdict().items()))
    assert many.assigned_bytes < 1.1 * few.assigned_bytes
    assert many.assignment_reads < 1.1 * few.assignment_reads
    assert many.reads < 1.1 * few.reads
    assert many.store_bytes < 1.1 * few.store_bytes
    assert many.assignments <= few.assignments
