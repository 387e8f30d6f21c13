"""One run with a step, its attempt and its item, as the tests of pure functions vary them."""

from __future__ import annotations

from keyspace.lifecycle import AttemptState, StepKind, StepState
from keyspace.records.run import AttemptRecord, RetryRecord, RunRecord, StepRecord
from keyspace.records.work import ItemRecord, WorkKind, application_lane

__all__ = ["ATTEMPT", "ITEM", "ITEM_ID", "MINE", "NOW_MS", "OTHER", "OTHER_ID", "RUN", "RUN_ID", "STEP"]

NOW_MS = 1_000_000
RUN_ID, ITEM_ID, OTHER_ID = "aa" * 16, "bb" * 16, "cc" * 16
MINE, OTHER = "11" * 16, "22" * 16

RUN = RunRecord(
    run_id=RUN_ID,
    application="shop",
    function="fulfil",
    event_id="ee" * 16,
    event_name="order.placed",
    binding="b",
    manifest_generation=1,
    routing_generation=1,
    created_at_ms=1,
    updated_at_ms=1,
    input_bytes=1,
    item_id=ITEM_ID,
)
STEP = StepRecord(
    step_id="s1",
    name="",
    kind=StepKind.CALLBACK,
    state=StepState.PENDING,
    generation=2,
    ordinal=2,
    operation_id="op",
    retry=RetryRecord(attempts=3, initial_ms=1_000, coefficient=2.0, cap_ms=60_000),
    timeout_ms=None,
    compensable=False,
    location="",
    declared_at_ms=1,
    declared_by="d",
)
ATTEMPT = AttemptRecord(
    step_id="s1",
    generation=2,
    ordinal=2,
    operation_id="op",
    state=AttemptState.QUEUED,
    item_id=ITEM_ID,
    queued_at_ms=1,
    vesting_ms=1,
)
ITEM = ItemRecord(
    item_id=ITEM_ID,
    kind=WorkKind.CALLBACK,
    lane=application_lane("shop", "fulfil").stored,
    target=RUN_ID,
    step_id="s1",
    priority=4,
    vesting_ms=1,
    ordinal=2,
    generation=2,
    operation_id="op",
    repeatable=False,
    enqueued_at_ms=1,
    token=MINE,
    expires_at_ms=NOW_MS + 1,
)
