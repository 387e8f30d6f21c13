"""What newcomers copy must work: the README's code and the example application."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import msgspec
import pytest
import ryusen
from ryusen import App, NonRetryable
from ryusen.protocol.frames import Complete, Declare, StepMemo, Succeeded
from ryusen.protocol.values import decode_value
from ryusen.worker.shell import Worker, WorkerOptions
from sdk_peer import Peer, Session, assignment

SDK = Path(ryusen.__file__).parents[1]
PAGES = (SDK / "README.md", *sorted((SDK / "docs").glob("*.md")))
BLOCKS = {page: re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) for page in PAGES}
FIRST = BLOCKS[PAGES[0]][0]


def test_the_readmes_first_workflow_is_short_and_runs() -> None:
    namespace: dict[str, Any] = {}
    exec(FIRST, namespace)
    assert len(FIRST.splitlines()) < 15
    app = namespace["app"]
    assert isinstance(app, App)
    assert [trigger.event for trigger in app.manifest().functions[0].triggers] == ["order.placed"]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_code_of_every_page_is_python(page: Path) -> None:
    for block in BLOCKS[page]:
        indented = "".join(f"    {line}\n" for line in block.splitlines())
        compile(f"async def block():\n{indented}", page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """A reader who follows a link to a page, an example or a section that is gone is left alone."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, _ = target.partition("#")
        assert (page.parent / path).exists(), f"{page.name} links to {target}"


def test_the_readme_leads_to_every_page_and_every_example() -> None:
    linked = set(re.findall(r"\]\(([^)]+)\)", PAGES[0].read_text()))
    expected = {f"docs/{page.name}" for page in PAGES[1:]}
    expected |= {f"examples/{path.name}" for path in (SDK / "examples").glob("*.py")}
    assert expected <= linked


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("ORDERS_LEDGER", str(tmp_path / "ledger"))
    spec = importlib.util.spec_from_file_location("orders", SDK / "examples" / "orders.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "orders", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def session(orders: ModuleType) -> AsyncIterator[Session]:
    async with Peer() as peer:
        worker = Worker(orders.app, WorkerOptions(url=peer.url, key="k"))
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            opened = await peer.session()
            await opened.welcome()
            yield opened
            worker.stop()


ORDER = msgspec.Raw(b'{"id":"o1","customer":"c","lines":[{"sku":"a","quantity":2,"price_cents":150}]}')


async def through(session: Session, given: msgspec.Raw) -> tuple[Any, list[str]]:
    """Follow a run as the service would, to its end."""
    memo: list[StepMemo] = []
    steps: list[str] = []
    while True:
        number = len(memo)
        await session.send(assignment(f"d{number}", "discovery", "fulfil", input=given, memo=memo))
        ending = (await session.answer(f"d{number}")).ending
        if isinstance(ending, Complete):
            return decode_value(bytes(ending.value)), steps
        assert isinstance(ending, Declare), ending
        step = ending.steps[0].id
        steps.append(step)
        await session.start(f"c{number}", step, "fulfil", input=given, memo=memo)
        outcome = (await session.result(f"c{number}")).outcome
        if isinstance(outcome, Succeeded):
            memo.append(StepMemo(id=step, value=outcome.value))
        else:
            assert not outcome.retryable
            memo.append(StepMemo(id=step, failure=outcome.failure))


async def test_an_order_is_reserved_charged_and_shipped_once(session: Session, tmp_path: Path) -> None:
    receipt, steps = await through(session, ORDER)
    assert receipt == {"order": "o1", "tracking": "parcel-o1", "charged_cents": 300}
    assert steps == ["reserve", "charge", "ship"]
    ledger = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [line["effect"] for line in ledger] == ["reserve", "charge", "ship"]
    assert len({line["operation_id"] for line in ledger}) == 3


async def test_an_order_that_cannot_be_charged_ends_without_a_parcel(session: Session, tmp_path: Path) -> None:
    free = msgspec.Raw(bytes(ORDER).replace(b"150", b"0"))
    receipt, steps = await through(session, free)
    assert receipt == {"order": "o1", "tracking": None, "charged_cents": 0}
    assert steps == ["reserve", "charge"]


async def test_a_callback_of_the_example_is_tested_without_anything_around_it(orders: ModuleType) -> None:
    with pytest.raises(NonRetryable):
        await orders.charge_card(orders.Order(id="o1", customer="c", lines=[]))
