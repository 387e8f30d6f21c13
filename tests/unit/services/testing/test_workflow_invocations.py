"""Direct invocation in a user's own test: the example, and what a second invocation with the same key does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest
from ryusen import Client
from test_workflow_server_steps import example

from services.testing import WorkflowTest


@pytest.fixture
def labels() -> Iterator[ModuleType]:
    yield from example("labels")


def test_the_example_prints_each_label_once(workflow: WorkflowTest, labels: ModuleType) -> None:
    """RFD 2, "An operator or a tool may start one function directly with an input": without an event of its own."""
    workflow.app(labels.app)
    label = labels.Label("o-1", "Harbour Street 3")
    first = workflow.invoke("print_again", label, idempotency_key="label-o-1")
    again = workflow.invoke("print_again", label, idempotency_key="label-o-1")
    workflow.settle()
    (run,) = workflow.runs("print_again")
    assert (first, run.status, run.output) == (again, "completed", "o-1: Harbour Street 3")
    assert labels.printed == ["o-1: Harbour Street 3"]


def test_what_the_example_asks_the_service_for(labels: ModuleType) -> None:
    """One request, under a key that the order gives, and the id of the run is known from its answer."""
    asked: list[tuple[str, dict[str, Any], str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content), request.headers.get("idempotency-key")))
        return httpx.Response(202, json={"event": "e1", "run": "r1", "routing_generation": 1})

    client = Client("http://127.0.0.1:1", "acme", "k", transport=httpx.MockTransport(answer))
    assert labels.ask(client, labels.Label("o-1", "Harbour Street 3")) == "r1"
    path = "/v1/workspaces/acme/applications/labels/functions/print_again/invoke"
    assert asked == [(path, {"input": {"order": "o-1", "address": "Harbour Street 3"}}, "label-o-1")]
