"""Bugs of the store's rules, the transaction and the queue's indexes."""

from __future__ import annotations

from .bug import Bug

__all__ = ["QUEUEING"]

ITEMS = "keyspace/queue/items.py"
LIFECYCLE_TESTS = "tests/transitions/test_run_lifecycle.py"

QUEUEING: tuple[Bug, ...] = (
    Bug(
        name="no due pointer",
        file=ITEMS,
        old="    tx.put(due_pointer(workspace, lane, bucket_of(item.vesting_ms)), None)\n",
        new="",
        why="work stands in its lane and nobody ever looks there",
        tests=(LIFECYCLE_TESTS,),
    ),
    Bug(
        name="no bell",
        file=ITEMS,
        old="        tx.ring(bell_of(workspace, lane))",
        new="        pass",
        why="a sleeping dispatcher finds new work a bucket later",
        tests=("tests/transitions/test_leases.py", "tests/unit/services/dispatcher/test_dispatch_flow.py"),
    ),
    Bug(
        name="ready entry kept by a lease",
        file=ITEMS,
        old="        tx.remove(ready_key(workspace, item.where, item.vesting_ms, item.priority, item.item_id))",
        new="        pass",
        why="a claim meets the same item again and again, and an index disagrees with its records",
        tests=(LIFECYCLE_TESTS,),
    ),
    Bug(
        name="lease entry kept by a settlement",
        file=ITEMS,
        old="        tx.remove(lease_key(workspace, item))",
        new="        pass",
        why="recovery works through leases that ended long ago",
        tests=(LIFECYCLE_TESTS,),
    ),
    Bug(
        name="old lease entry kept by a renewal",
        file=ITEMS,
        old="        tx.remove(old)\n",
        new="",
        why="a renewed lease is looked at as if it had expired, for ever",
        tests=("tests/transitions/test_leases.py",),
    ),
    Bug(
        name="a late report depends on the sweeper",
        file=ITEMS,
        old="        vesting_ms=vesting_ms,\n        expires_at_ms=None,",
        new="        vesting_ms=vesting_ms,\n        token=None,\n        expires_at_ms=None,",
        why="a report after expiry is accepted or refused by whether recovery had run",
        tests=("tests/transitions/test_leases.py", "tests/transitions/test_repeatable.py"),
    ),
    Bug(
        name="redelivery at once however often",
        file=ITEMS,
        old="    if loss_count <= 1:\n        return 0\n",
        new="    if loss_count <= 30:\n        return 0\n",
        why="a pass that kills its worker walks through the fleet as fast as workers start",
        tests=("tests/transitions/test_leases.py", "tests/unit/services/dispatcher/test_dispatch_cases.py"),
    ),
    Bug(
        name="pointer cleared without conflict",
        file="keyspace/queue/pointers.py",
        old="    if not await tx.is_empty(span):",
        new="    if await tx.page(span, limit=1, snapshot=True):",
        why="an enqueue beside the clearing loses its pointer, and its work is never found",
        tests=("tests/transitions/test_leases.py",),
    ),
    Bug(
        name="unvested work is claimed",
        file="keyspace/queue/claims.py",
        old="    span = ready_span(workspace, lane, 0, tx.now_ms - ready_for_ms + 1)",
        new="    span = ready_span(workspace, lane, 0, tx.now_ms - ready_for_ms + 60_000)",
        why="retries and timers run before their instant",
        tests=(LIFECYCLE_TESTS, "tests/transitions/test_leases.py"),
    ),
    Bug(
        name="claims do not conflict",
        file="keyspace/queue/claims.py",
        old="    records = await tx.load_all(ITEM.at(workspace, candidate.item_id) for candidate in found)",
        new="    records = await tx.load_all((ITEM.at(workspace, one.item_id) for one in found), snapshot=True)",
        why="two dispatchers lease one item",
        tests=("tests/transitions/test_leases.py",),
    ),
    Bug(
        name="expired leases of the current bucket are skipped",
        file="keyspace/queue/leases.py",
        old="    span = KeyRange(begin, prefix + pack_int(before_bucket + 1))",
        new="    span = KeyRange(begin, prefix + pack_int(before_bucket))",
        why="a lost lease is found a second late, or never",
        tests=("tests/transitions/test_leases.py", "tests/unit/services/dispatcher/test_dispatch_cases.py"),
    ),
    Bug(
        name="one id for every attempt",
        file="keyspace/tx.py",
        old='        self._seed = seed + attempt_index.to_bytes(4, "big")',
        new="        self._seed = seed",
        why="after an unknown commit the next page overwrites the items of the one before",
        tests=("tests/unit/keyspace", "tests/transitions/test_crashes.py", "tests/transitions/test_expand_event.py"),
    ),
    Bug(
        name="writes are not charged",
        file="keyspace/tx.py",
        old="        self.budget.set(len(data), len(value))\n        self._written.append(data)\n        self._raw.set(data, value)",
        new="        self._written.append(data)\n        self._raw.set(data, value)",
        why="a page outgrows the store's transaction and never commits",
        tests=("tests/unit/keyspace/test_budget.py", "tests/transitions/test_costs.py"),
    ),
    Bug(
        name="a digest joins its parts",
        file="keyspace/tx.py",
        old='        pieces += (len(data).to_bytes(8, "big"), data)',
        new="        pieces += (data,)",
        why="two runs share one identity when their names run together the same way",
        tests=("tests/unit/keyspace", "tests/transitions/test_expand_event.py"),
    ),
    Bug(
        name="a write is seen as no conflict at the edge",
        file="keyspace/store/conflict.py",
        old="            if last_version.get(key, 0) > read_version:",
        new="            if last_version.get(key, 0) > read_version + 1:",
        why="a commit right behind the read is missed, and both writers win",
        tests=("tests/conformance/test_store_isolation.py", "tests/conformance/test_store_model.py"),
    ),
    Bug(
        name="an unknown commit is forgotten by the next error",
        file="keyspace/store/runner.py",
        old="            maybe_committed = maybe_committed or last.maybe_committed",
        new="            maybe_committed = last.maybe_committed",
        why="the caller is told that nothing was written although it was",
        tests=("tests/unit/store/test_runner.py",),
    ),
)
