"""Bugs of the dispatcher: its sessions, their capacity, recovery and the books of due work."""

from __future__ import annotations

from .bug import Bug

__all__ = ["DISPATCHING"]

CORE = "services/dispatcher/session_core.py"
DELIVERIES = "services/dispatcher/deliveries.py"
DELIVERIES_TESTS = "tests/unit/services/dispatcher/test_deliveries.py"
CORE_TESTS = "tests/unit/services/dispatcher/test_session_core.py"
CONTINUATION = "tests/unit/services/dispatcher/test_session_continuation.py"
BOOK = "services/lanes/duebook.py"
BOOK_TESTS = "tests/unit/services/lanes/test_duebook.py"

DISPATCHING: tuple[Bug, ...] = (
    Bug(
        name="kept seats do not count",
        file=DELIVERIES,
        old="self._undo_capacity - len(self._held) - len(self._kept))",
        new="self._undo_capacity - len(self._held))",
        why="more is assigned than a worker has declared, and waits inside it",
        tests=(CORE_TESTS, DELIVERIES_TESTS),
    ),
    Bug(
        name="forward work takes what is reserved",
        file=DELIVERIES,
        old="        return max(0, free_count + beyond_count)",
        new="        return self.undo_free_count",
        why="an undo waits for callbacks of other runs to end",
        tests=(DELIVERIES_TESTS,),
    ),
    Bug(
        name="an undo is not told of its room",
        file="services/dispatcher/session.py",
        old="        elif self.free_count(is_undo=True):\n            self._on_undo_room()",
        new="",
        why="an undo that waits for a reserved place waits for a scan instead of for the place",
        tests=("tests/unit/services/dispatcher/test_undo_capacity.py",),
    ),
    Bug(
        name="who looks after nothing sleeps",
        file="services/lanes/pump.py",
        old="return min(waits, default=BUCKET_MS)",
        new="return min(waits, default=self._options.rescan_ms)",
        why="the heir of the dead sleeps for the rescan period, and their timers and events wait for it",
        tests=("tests/unit/services/lanes/test_lane_pump.py",),
    ),
    Bug(
        name="the dead live by their clocks",
        file="services/runtime/peers.py",
        old="if monotonic_ms - self._signs[peer.process_id].read_ms <= self._live_ms\n            and ",
        new="if ",
        why="a jump of the cluster's versions makes a dead process a peer for as long as the jump",
        tests=("tests/unit/services/runtime/test_runtime_health.py",),
    ),
    Bug(
        name="what came due while turns began is forgotten",
        file="services/lanes/pump.py",
        old="(book.next_instant_ms(looked_at_ms) for",
        new="(book.next_instant_ms(self._keyspace.clock.now_ms()) for",
        why="a timer whose millisecond comes between the look and the wait fires up to a second late",
        tests=("tests/unit/services/lanes/test_lane_pump.py",),
    ),
    Bug(
        name="a leaving session takes work",
        file=CORE,
        old="        return not self._is_leaving and not self._is_draining",
        new="        return not self._is_leaving",
        why="a worker that drains is given work for ever",
        tests=(CORE_TESTS, CONTINUATION),
    ),
    Bug(
        name="a start that nobody knows of is sent",
        file=CORE,
        old="        if verdict is None or held.is_returned:",
        new="        if held.is_returned:",
        why="an effect begins whose authorization may not have been committed",
        tests=(CORE_TESTS,),
    ),
    Bug(
        name="a refused start is sent",
        file=CORE,
        old="        if not isinstance(verdict, Stale):\n            held.state = HeldState.STARTING",
        new="        if True:\n            held.state = HeldState.STARTING",
        why="an effect begins that was not authorized",
        tests=(CORE_TESTS,),
    ),
    Bug(
        name="a result of another delivery",
        file=CORE,
        old="            if held.ref != frame.ref:",
        new="            if False:",
        why="a confused worker settles other work than it was given",
        tests=(CORE_TESTS,),
    ),
    Bug(
        name="a continued run never yields",
        file=CORE,
        old="chain_count >= CONTINUED_STEPS_MAX:",
        new="chain_count >= CONTINUED_STEPS_MAX * 1_000:",
        why="one long run keeps its seat while others wait",
        tests=(CONTINUATION,),
    ),
    Bug(
        name="a lost lease keeps its seat",
        file=CORE,
        old="            if held.state is HeldState.ASSIGNED and not held.was_started and held.lease_until_ms <= now_ms:",
        new="            if False:",
        why="a worker that never answers keeps its capacity for ever",
        tests=(CORE_TESTS,),
    ),
    Bug(
        name="a repeated report settles twice",
        file=CORE,
        old="        if frame.request in self._settling:\n            return []",
        new="        if False:\n            return []",
        why="one report is settled while it is being settled",
        tests=(CORE_TESTS,),
    ),
    Bug(
        name="the freest session is last",
        file="services/dispatcher/seats.py",
        old="    heap = [(-place.free_count, order, place.session) for order, place in enumerate(free)]",
        new="    heap = [(place.free_count, order, place.session) for order, place in enumerate(free)]",
        why="one worker gets everything while others are idle",
        tests=("tests/unit/services/dispatcher/test_seats.py",),
    ),
    Bug(
        name="an older release comes first",
        file="services/dispatcher/seats.py",
        old="    for position in sorted(by_position, reverse=True):",
        new="    for position in sorted(by_position):",
        why="a fleet does not converge to its newest release",
        tests=("tests/unit/services/dispatcher/test_seats.py",),
    ),
    Bug(
        name="recovery reads one page",
        file="services/dispatcher/recovery.py",
        old="            after = page[-1].key\n",
        new="",
        why="a page of leases that nobody can recover hides those behind it",
        tests=("tests/unit/services/dispatcher/test_dispatch_cases.py",),
    ),
    Bug(
        name="a bucket counts as scanned before it is over",
        file=BOOK,
        old="        self._scanned_to = scan.to_bucket - 1",
        new="        self._scanned_to = scan.to_bucket + 60",
        why="work that vests in the next minute is found at the next full scan",
        tests=(BOOK_TESTS,),
    ),
    Bug(
        name="pointers of a bucket that is not over are cleared",
        file=BOOK,
        old="        over_ms = now_ms - self._skew_ms\n",
        new="        over_ms = now_ms + 10_000\n",
        why="a process whose clock is behind enqueues behind the clearing",
        tests=(BOOK_TESTS,),
    ),
    Bug(
        name="a ring during a look is missed",
        file=BOOK,
        old="        due.is_hot = due.is_hot or has_more",
        new="        due.is_hot = has_more",
        why="work that came during a look waits for the next full scan",
        tests=(BOOK_TESTS,),
    ),
)
