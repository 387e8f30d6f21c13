"""The account is never below what the store measures, and above it only by what is stated."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyspace.budget import Budget, charge_read, charge_set, check_allowance
from keyspace.clock import VirtualClock
from keyspace.errors import BudgetExceeded, Refusal
from keyspace.keyspace import Keyspace
from keyspace.layout import BELL_APP, EVENT_LIST, EVENT_PAYLOAD, EVENT_STAMP, HIGH_WATER, MANIFEST_HEAD, READY_APP
from keyspace.leaf import Key
from keyspace.limits import ALLOWANCE_BYTES_DEFAULT, ALLOWANCE_BYTES_MAX, PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX
from keyspace.store.embedded import memory_store
from keyspace.tx import Tx


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Do(NamedTuple):
    """One operation on a Tx: its name, which of a few keys, a size in bytes and a limit."""

    name: str
    which: int
    size: int
    limit: int


OPERATIONS = (
    "load",
    "load snapshot",
    "page",
    "page snapshot",
    "page reverse",
    "depend",
    "put",
    "put blob",
    "remove",
    "remove range",
    "ring",
    "raise",
    "stamp key",
    "stamp value",
    "watch",
)
steps = st.lists(
    st.builds(Do, st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 300), st.integers(1, 4)),
    max_size=25,
)
IDS = [f"{number:02x}" + "00ff" * 7 + "00" for number in range(4)]
NAMES = ["a", "b" * 60, "\U0001f600" * 5, 'q"\\']


def ready(which: int) -> Key[None]:
    return READY_APP.at("acme", 16, "app", "fn", 0, 1_700_000_000_000 + which, 5, IDS[which])


async def perform(tx: Tx, step: Do) -> int:
    """Perform one operation and return by how many bytes its charge may be above the store's measure."""
    which = step.which
    head: Key[int] = MANIFEST_HEAD.at("acme", NAMES[which])
    span = READY_APP.span("acme", 16, "app", "fn", 0)
    longest = len(ready(0).data) + tx.prefix_bytes
    match step.name:
        case "load" | "load snapshot":
            await tx.load(head, snapshot=step.name != "load")
            return charge_read(len(head.data) + tx.prefix_bytes)
        case "page" | "page snapshot" | "page reverse":
            await tx.page(span, limit=step.limit, snapshot="snapshot" in step.name, reverse="reverse" in step.name)
            return (2 + 2 * tx.write_count) * (3 * longest + 48)
        case "depend":
            tx.depend_on(head)
            return charge_read(len(head.data) + tx.prefix_bytes)
        case "watch":
            tx.watch(head).cancel()
            return charge_read(len(head.data) + tx.prefix_bytes)
    return write(tx, step, head, span)


def write(tx: Tx, step: Do, head: Key[int], span: Any) -> int:
    which = step.which
    match step.name:
        case "put":
            tx.put(head, step.size)
            tx.put(ready(which), None)
        case "put blob":
            tx.put_blob(EVENT_PAYLOAD, "acme", IDS[which], value=bytes(step.size * 1_000))
        case "remove":
            tx.remove(ready(which))
        case "remove range":
            tx.remove_range(span)
        case "ring":
            tx.ring(BELL_APP.at("acme", NAMES[which]))
        case "raise":
            tx.put_max(HIGH_WATER.at(), bytes(8))
        case "stamp key":
            tx.put_stamped(EVENT_LIST, "acme", record=IDS[which], order=which)
            # The proxy adds a stamped key's conflict range, so the client does not measure it.
            return 2 * (tx.prefix_bytes + 40) + 25 + 4
        case "stamp value":
            tx.put_own_stamp(EVENT_STAMP.at("acme", IDS[which]))
    return 0


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from([b"", b"\x15\x01", b"\x01" * 40]), st.lists(st.integers(0, 3), max_size=4))
async def test_the_charge_is_never_below_the_measure(plan: list[Do], prefix: bytes, stored: list[int]) -> None:
    """ARCHITECTURE 5, Budget: any sequence of operations, with own writes cutting through what it reads."""
    clock = VirtualClock()
    keyspace = Keyspace(
        memory_store(clock=clock), clock=clock, prefix=prefix, allowance_bytes=ALLOWANCE_BYTES_MAX, rng=random.Random(0)
    )

    async def fill(tx: Tx) -> None:
        for which in stored:
            tx.put(ready(which), None)

    await keyspace.transact("fill", fill)

    async def body(tx: Tx) -> None:
        slack = 0
        for step in plan:
            slack += await perform(tx, step)
            measured = await tx.measured_bytes()
            assert measured <= tx.budget.spent_bytes <= measured + slack, step

    await keyspace.transact("body", body)


def test_formulas_are_the_clients() -> None:
    """ARCHITECTURE 5: the charges as FoundationDB sums them."""
    budget = Budget(10_000)
    charges: tuple[Callable[[], None], ...] = (
        lambda: budget.set(10, 100),
        lambda: budget.clear(10),
        lambda: budget.clear_range(10, 11),
        lambda: budget.add(10),
        lambda: budget.stamped(10, 100),
        lambda: budget.read(10),
        lambda: budget.range_read(10, 11),
        lambda: budget.range_read(10, 11, 3),
    )
    spent = []
    for charge in charges:
        before = budget.spent_bytes
        charge()
        spent.append(budget.spent_bytes - before)
    assert spent == [199, 90, 110, 107, 203, 45, 45, 135]
    assert (charge_set(10, 100), charge_read(10)) == (199, 45)
    assert budget.left_bytes == 10_000 - sum(spent)


def test_a_charge_that_does_not_fit_is_refused_before_it_is_made() -> None:
    """Case 064, "Limits noticed at commit, or not at all": the account stays as it was and the error names the operation."""
    budget = Budget(300)
    budget.set(10, 100)
    with pytest.raises(BudgetExceeded) as refused:
        budget.set(10, 100)
    assert refused.value.details == {
        "operation": "set",
        "charge_bytes": 199,
        "spent_bytes": 199,
        "allowance_bytes": 300,
    }
    assert budget.spent_bytes == 199
    budget.read(38)
    assert budget.left_bytes == 0


@pytest.mark.case(64)
async def test_an_attempt_over_its_allowance_writes_nothing() -> None:
    """Case 064: refused before writing, never half written."""
    clock = VirtualClock()
    keyspace = Keyspace(memory_store(clock=clock), clock=clock, rng=random.Random(0))

    async def body(tx: Tx) -> None:
        for number in range(100):
            tx.put_blob(EVENT_PAYLOAD, "acme", f"{number:032x}", value=bytes(100_000))

    with pytest.raises(BudgetExceeded):
        await keyspace.transact("body", body)
    rows = await keyspace.transact("read", lambda tx: tx.page(EVENT_PAYLOAD.span("acme"), limit=10))
    assert rows == []


@pytest.mark.parametrize(
    ("allowance_bytes", "payload_bytes_max", "fits"),
    [
        (ALLOWANCE_BYTES_DEFAULT, PAYLOAD_BYTES_DEFAULT, True),
        (ALLOWANCE_BYTES_MAX, PAYLOAD_BYTES_MAX, True),
        (ALLOWANCE_BYTES_MAX + 1, PAYLOAD_BYTES_DEFAULT, False),
        (4 * PAYLOAD_BYTES_DEFAULT + 65_536, PAYLOAD_BYTES_DEFAULT, True),
        (4 * PAYLOAD_BYTES_DEFAULT + 65_535, PAYLOAD_BYTES_DEFAULT, False),
        (ALLOWANCE_BYTES_DEFAULT, PAYLOAD_BYTES_MAX, False),
    ],
)
def test_an_allowance_fits_the_store_and_the_payload(allowance_bytes: int, payload_bytes_max: int, fits: bool) -> None:
    """ARCHITECTURE 5, "refused at start otherwise"."""
    if fits:
        check_allowance(allowance_bytes, payload_bytes_max)
        return
    with pytest.raises(Refusal) as refused:
        check_allowance(allowance_bytes, payload_bytes_max)
    assert refused.value.code == "bad_allowance"
