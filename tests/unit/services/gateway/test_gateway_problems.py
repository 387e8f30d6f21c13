"""Failures become problems by one table: stable code, right status, and what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gateway_world import GatewayWorld

import keyspace
from keyspace.errors import BudgetExceeded, CorruptRecord, IllegalEdge, Refusal
from keyspace.store.errors import (
    CommitUnknownResult,
    NotCommitted,
    StoreUnavailableError,
    TransactionTimedOut,
    TransactionTooLarge,
)
from keyspace.store.runner import RetriesExhausted
from services.gateway.problems import STATUSES, problem_for, problem_response
from services.runtime.health import ClockMark, NotServing

MODULES = (
    "accept_event",
    "invoke_function",
    "create_workspace",
    "keys",
    "publish_manifest",
    "activate_routing",
    "names",
    "rediscover_run",
)
_REFUSAL = re.compile(r'Refusal\(\s*"(\w+)"')


def exhausted(*, maybe_committed: bool) -> RetriesExhausted:
    return RetriesExhausted("accept_event", 50, NotCommitted(), maybe_committed=maybe_committed)


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (Refusal("not_found", "There is none."), "not_found", 404),
        (Refusal("idempotency_conflict", "Taken."), "idempotency_conflict", 409),
        (Refusal("something_new", "No."), "something_new", 422),
        (exhausted(maybe_committed=False), "overloaded", 503),
        (exhausted(maybe_committed=True), "outcome_unknown", 503),
        (TransactionTimedOut(), "outcome_unknown", 503),
        (StoreUnavailableError(), "store_unavailable", 503),
        (CommitUnknownResult(), "store_unavailable", 503),
        (NotServing("clock is off"), "not_serving", 503),
        (TransactionTooLarge(), "store_unavailable", 503),
        (BudgetExceeded(), "internal", 500),
        (CorruptRecord(), "internal", 500),
        (IllegalEdge("run", "a", "b"), "internal", 500),
        (ValueError("a secret of ours"), "internal", 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_failure_has_its_code_and_status(error: Exception, code: str, status: int) -> None:
    response = problem_response(problem_for(error))
    assert response.status_code == status
    assert f'"code":"{code}"'.encode() in bytes(response.body)
    assert b"a secret of ours" not in bytes(response.body)
    assert ("retry-after" in response.headers) is (status in (429, 503))


def test_an_outage_is_one_line_a_request(caplog: pytest.LogCaptureFixture) -> None:
    """An unreachable cluster meets every request; a page of traceback for each would bury what an operator needs."""
    problem_for(StoreUnavailableError("the cluster did not answer"))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert "the cluster did not answer" in str(record.__dict__["error"])


def test_every_refusal_a_request_can_meet_is_in_the_table() -> None:
    """A code that the table does not know would get its status by chance."""
    folder = Path(keyspace.__file__).parent / "transitions"
    found = {code for name in MODULES for code in _REFUSAL.findall((folder / f"{name}.py").read_text())}
    assert "idempotency_conflict" in found
    assert found <= set(STATUSES)


async def test_a_process_with_a_wrong_clock_commits_nothing(world: GatewayWorld) -> None:
    """ARCHITECTURE 5: further than the skew bound from its live peers it turns unready and stops committing."""
    health = world.gateway.process.health
    world.gateway.keyspace.health = health
    for _ in range(3):
        health.compare_clocks(ClockMark(10_000, 0), [ClockMark(0, 0)])
    problem = await world.refused("not_serving", "GET", "/v1/workspaces/acme/runs")
    assert "10000 ms" in problem["reason"]
    ready = await world.request("GET", "/readyz", key="")
    assert ready.status_code == 503
    assert "clock is 10000 ms off" in ready.json()["faults"][0]
    health.compare_clocks(ClockMark(100, 0), [ClockMark(0, 0)])
    assert (await world.request("GET", "/v1/workspaces/acme/runs")).status_code == 200


async def test_answers_and_refusals_are_counted_by_endpoint_and_code(world: GatewayWorld) -> None:
    """HOUSE 14: labels of low cardinality: endpoints, statuses and codes, no ids and no workspaces."""
    await world.accepted()
    await world.request("GET", "/v1/workspaces/acme/runs/" + "0" * 32)
    text = world.gateway.process.telemetry.exposition().decode()
    assert 'ryusen_gateway_answers_total{endpoint="submit_event",status="202"} 1.0' in text
    assert 'ryusen_gateway_answers_total{endpoint="get_run",status="404"} 1.0' in text
    assert 'ryusen_gateway_refusals_total{code="not_found"} 1.0' in text
    assert 'ryusen_gateway_request_seconds_count{endpoint="submit_event"} 1.0' in text
    assert "ryusen_gateway_requests_open 0.0" in text
    assert "acme" not in text
