"""`make demo`: real orders through real processes, one of them killed with -9 in the middle, and everything completes.

It ends with exit code 0 only when every run completed, the ledger shows each effect exactly once, and the keyspace passes
its check. Nothing but the loopback address is used.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import httpx
from rich.console import Console
from ryusen import App, AsyncClient, RyusenError

from topology.board import Board, PlainView, Row, TableView
from topology.bootstrap import Access, open_workspace
from topology.check import check_store
from topology.launcher import Launcher, NotStarted, WorkerSpec
from topology.ledger import compare, read_ledger
from topology.story import tell
from topology.tables import Role, topology_named

__all__ = ["load_module", "main", "run_demo"]

EXAMPLES = Path(__file__).parent.parent / "sdk_py" / "examples"
EVENT_NAME = "order.placed"
STEP_IDS = ("reserve", "charge", "ship")
DEADLINE_S = 90.0
"""Seconds for the whole; it takes about a sixth of that on two idle cores."""
ORDERS_MAX = 200
WORK_S = "0.3"
"""Seconds each step pretends to work, so that there is a middle to kill in."""
CAPACITY = 6
SUBMITTERS = 5
SETTINGS = {"lease_ms": "4000", "skew_ms": "200", "drain_ms": "5000"}
"""Short leases, so that what the killed process held is free again within seconds."""
KILL_AFTER = 1 / 4
"""The share of all steps that are settled when the kill comes."""
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the demo: the faults found, and where the evidence is."""

    faults: list[str]
    folder: Path


def load_module(path: Path) -> ModuleType:
    """Import a Python file that is in no package.

    Raises:
        ImportError: it is no Python file.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses of the module look their annotations up through this table.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def run_demo(console: Console, folder: Path, orders: list[dict[str, Any]]) -> Outcome:
    """Run the demo in `folder` and return what went wrong, which should be nothing."""
    board = Board([order["id"] for order in orders], STEP_IDS)
    ledger = folder / "ledger.jsonl"
    app: App = load_module(EXAMPLES / "orders.py").app
    launcher = Launcher(topology_named("demo"), folder, settings=SETTINGS, on_event=board.note)
    view = TableView(board, console) if console.is_terminal else PlainView(board, console)
    faults: list[str] = []
    try:
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as showing, launcher:
                showing.start_soon(view.run, name="view")
                await launcher.start_servers()
                access = await open_workspace(launcher, app)
                await launcher.start_workers(_worker(access, ledger))
                async with access.client(launcher.gateway_url()) as client:
                    await _submit_all(client, board, orders)
                    await _watch_and_kill(client, board, launcher)
                    faults += await _check_runs(client, board)
                showing.cancel_scope.cancel()
            report = await check_store(launcher.store)
    except TimeoutError:
        faults.append(f"not finished within {DEADLINE_S:.0f} s: {board.summary}")
        return Outcome(faults, folder)
    effects = read_ledger(ledger)
    expected = [(effect, order["id"]) for order in orders for effect in _effects_of(order)]
    faults += [str(fault) for fault in compare(effects, expected)]
    faults += [f"{problem.check} {problem.key}: {problem.sentence}" for problem in report.problems]
    _tell_one(console, board)
    _say(
        console,
        f"\n{board.ended_count} of {len(board.rows)} runs ended; the ledger holds {len(effects)} effects, "
        f"{len(expected)} were due; {report.key_count} keys checked, {report.problem_count} problems; "
        f"{board.elapsed_s:.1f} s in all.",
    )
    return Outcome(faults, folder)


def _worker(access: Access, ledger: Path) -> WorkerSpec:
    environment = {"ORDERS_LEDGER": str(ledger), "ORDERS_WORK_S": WORK_S}
    return WorkerSpec(
        app="orders:app", folder=EXAMPLES, key=access.worker_key, capacity=CAPACITY, environment=environment
    )


async def _submit_all(client: AsyncClient, board: Board, orders: list[dict[str, Any]]) -> None:
    limiter = anyio.CapacityLimiter(SUBMITTERS)

    async def submit(order: dict[str, Any]) -> None:
        async with limiter:
            row = board.rows[order["id"]]
            # The key makes a submission that is repeated, here or by a nervous network, the same event.
            receipt = await client.submit(EVENT_NAME, order, idempotency_key=f"order-{order['id']}")
            row.event, row.status = receipt.event, "accepted"
            board.touch()

    async with anyio.create_task_group() as group:
        for order in orders:
            group.start_soon(submit, order, name=f"submit {order['id']}")
    board.note(f"{len(orders)} orders submitted and acknowledged")


async def _watch_and_kill(client: AsyncClient, board: Board, launcher: Launcher) -> None:
    """Follow every run to its end while the dispatcher dies in the middle."""
    async with anyio.create_task_group() as group:
        group.start_soon(_kill_in_the_middle, board, launcher, name="kill")
        for row in board.rows.values():
            group.start_soon(_follow, client, board, row, name=f"follow {row.order}")


async def _follow(client: AsyncClient, board: Board, row: Row) -> None:
    while not row.run:
        matches = (await client.event(row.event))["matches"]["items"]
        if matches:
            row.run = matches[0]["run"]
        else:
            await anyio.sleep(LOOK_S)
    async for entry in client.follow(row.run):
        row.apply(entry)
        board.touch()


async def _kill_in_the_middle(board: Board, launcher: Launcher) -> None:
    target = max(1, int(len(board.rows) * len(STEP_IDS) * KILL_AFTER))
    while board.done_count < target or not board.running_count:
        await board.changed()
    await launcher.kill(Role.DISPATCHER)
    board.note(f"the worker goes on ({board.running_count} running) and reports to the next one")
    await launcher.restart(Role.DISPATCHER)


async def _check_runs(client: AsyncClient, board: Board) -> list[str]:
    """Ask the service itself, not the streams, how every run ended."""
    faults = []
    for row in board.rows.values():
        run = await client.run(row.run)
        if run["status"] != "completed":
            faults.append(f"run {row.run} of order {row.order} is {run['status']}")
    return faults


def _effects_of(order: dict[str, Any]) -> tuple[str, ...]:
    total_cents = sum(line["quantity"] * line["price_cents"] for line in order["lines"])
    return STEP_IDS if total_cents > 0 else STEP_IDS[:1]


def _tell_one(console: Console, board: Board) -> None:
    """Print the history of the run that went through most."""
    row = max(board.rows.values(), key=lambda row: len(row.history))
    _say(console, f"\nThe run of order {row.order} ({row.run}) in words:\n")
    for line in tell(row.history):
        _say(console, f"  {line}")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _sentences(group: BaseExceptionGroup[Any]) -> list[str]:
    """Return what each error in nested groups says, each sentence once."""
    found: list[str] = []
    for error in group.exceptions:
        found += _sentences(error) if isinstance(error, BaseExceptionGroup) else [f"{type(error).__name__}: {error}"]
    return list(dict.fromkeys(found))


def _read_orders(path: Path) -> list[dict[str, Any]]:
    orders = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    if not 1 <= len(orders) <= ORDERS_MAX:
        raise ValueError(f"{path} holds {len(orders)} orders; 1 to {ORDERS_MAX} are allowed")
    return orders


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code: 0 when everything that was promised held, else 1."""
    parser = argparse.ArgumentParser(prog="python -m topology.demo", description=__doc__)
    parser.add_argument("--orders", type=Path, default=EXAMPLES / "orders.jsonl", help="one order a line, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the state and the logs")
    options = parser.parse_args(arguments)
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="ryusen-demo-"))
    outcome = Outcome([], folder)
    try:
        outcome = anyio.run(run_demo, console, folder, _read_orders(options.orders))
    except* (NotStarted, RyusenError, httpx.HTTPError) as errors:
        outcome.faults.extend(_sentences(errors))
    except* KeyboardInterrupt:
        outcome.faults.append("stopped by the keyboard")
    for fault in outcome.faults:
        sys.stderr.write(f"FAULT: {fault}\n")
    if outcome.faults:
        sys.stderr.write(f"The demo failed. State and logs are in {folder}\n")
        return 1
    if options.keep:
        _say(console, f"State and logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    _say(console, "Everything completed; each effect happened once.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
