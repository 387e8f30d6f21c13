"""The launcher's own promises: nothing it starts outlives it, and its data says what it means."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from eventually import eventually

from keyspace.history import HistoryKind
from topology.board import Board
from topology.ledger import Effect, compare, read_ledger
from topology.ports import free_ports
from topology.process import Command, Process, clean_environment
from topology.story import sentence, tell
from topology.tables import TOPOLOGIES, Role, Topology, topology_named

FOR_EVER = "import signal; signal.pause()"


def _command(folder: Path, *arguments: str) -> Command:
    return Command((sys.executable, "-c", *arguments), clean_environment({}), folder, folder / "log")


async def _gone(pid: int) -> None:
    async def look() -> bool:
        return not _is_running(pid)

    await eventually(look, f"process {pid} is gone")


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_a_process_that_starts_others_takes_them_along(tmp_path: Path) -> None:
    """Would catch a launcher that leaves the children of its processes behind."""
    parent = (
        "import subprocess, sys, signal\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FOR_EVER!r}])\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    process = await Process.start("parent", _command(tmp_path, parent))

    async def look() -> str:
        return (tmp_path / "log").read_text().strip()

    child = int(await eventually(look, "the child's id is written"))
    assert _is_running(child)
    await process.finish()
    assert process.exit_code == -signal.SIGKILL
    await _gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent's life")
async def test_the_processes_of_a_killed_launcher_die_with_it(tmp_path: Path) -> None:
    """Would catch processes that survive a kill -9 of whoever started them."""
    launcher = (
        "import anyio, sys\n"
        "from pathlib import Path\n"
        "from topology.process import Command, Process, clean_environment\n"
        "async def main() -> None:\n"
        f"    command = Command((sys.executable, '-c', {FOR_EVER!r}), clean_environment({{}}), Path('.'), Path('inner'))\n"
        "    print((await Process.start('inner', command)).pid, flush=True)\n"
        "    await anyio.sleep_forever()\n"
        "anyio.run(main)\n"
    )
    outer = await anyio.open_process([sys.executable, "-c", launcher], cwd=tmp_path, stderr=None)
    async with outer:
        assert outer.stdout is not None
        inner = int(await outer.stdout.receive())
        assert _is_running(inner)
        outer.kill()
        await outer.wait()
    await _gone(inner)


async def test_a_process_that_does_not_end_is_named(tmp_path: Path) -> None:
    """Would catch a wait without a bound."""
    process = await Process.start("stubborn", _command(tmp_path, FOR_EVER))
    try:
        with pytest.raises(TimeoutError, match="stubborn"):
            await process.wait(0.05)
    finally:
        await process.finish()


def test_servers_do_not_inherit_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a test that runs against the cluster or key of whoever starts it."""
    monkeypatch.setenv("RYUSEN_STORE", "fdb:/somewhere")
    monkeypatch.setenv("FDB_CLUSTER_FILE", "/somewhere")
    environment = clean_environment({"RYUSEN_LEASE_MS": "2000"})
    assert "RYUSEN_STORE" not in environment
    assert "FDB_CLUSTER_FILE" not in environment
    assert environment["RYUSEN_LEASE_MS"] == "2000"
    assert environment["PATH"] == os.environ["PATH"]


def test_ports_are_different() -> None:
    """Would catch two processes of one topology fighting for a port."""
    assert len(set(free_ports(40))) == 40


def test_topologies_are_named_and_bounded() -> None:
    """Would catch a table entry that the launcher cannot start."""
    for topology in TOPOLOGIES:
        assert topology_named(topology.name) is topology
        assert topology.workers == 0 or topology.dispatchers > 0
    with pytest.raises(LookupError, match="demo"):
        topology_named("nowhere")
    with pytest.raises(ValueError, match="16"):
        Topology(name="too many", meaning="", workers=17)
    assert [role for role in Role if not role.is_server] == [Role.WORKER]


def test_every_kind_of_history_entry_has_words() -> None:
    """Would catch a transition whose entry the demo cannot tell."""
    data = {
        "step": "ship", "attempt": 2, "attempts": 3, "losses": 1, "steps": 3, "upper": 2, "recovery": "compensated",
        "category": "application", "failure": {"category": "application", "message": "no stock"},
        "reason": "cancelled", "by": "key-1", "command": "retry", "from": 2, "to": 1,
    }  # fmt: skip
    for kind in HistoryKind:
        words = sentence(kind.value, data)
        assert words.endswith("."), kind
        assert not words.startswith(kind.value), kind
    undo = sentence("attempt-failed", data | {"direction": "compensation"})
    assert undo == "The undo of step ship, attempt 2 failed (application: no stock)."
    assert sentence("from-the-future", {"a": 1}) == "from-the-future {'a': 1}"


def test_a_history_is_told_with_the_time_since_it_began() -> None:
    """Would catch times that mean nothing to a reader."""
    entries = [
        {"at_ms": 1_000, "kind": "run-created", "data": {}},
        {"at_ms": 2_500, "kind": "step-declared", "data": {"step": "reserve"}},
    ]
    lines = tell(entries)
    assert [line.split(" s ")[0].strip() for line in lines] == ["0.000", "1.500"]
    assert "reserve" in lines[1]


def test_the_ledger_shows_what_is_missing_doubled_or_unasked(tmp_path: Path) -> None:
    """Would catch a demo that calls a doubled effect a success."""
    assert read_ledger(tmp_path / "none") == []
    (tmp_path / "ledger").write_text('{"effect": "charge", "order": "A", "run_id": "r", "attempt": 1, "more": 0}\n' * 2)
    effects = read_ledger(tmp_path / "ledger")
    assert effects == [Effect("charge", "A", "r", 1)] * 2
    assert compare(effects, [("charge", "A"), ("charge", "A")]) == []
    faults = [str(fault) for fault in compare(effects, [("charge", "A"), ("ship", "A")])]
    assert faults == [
        "charge of order A happened 2 times instead of 1",
        "ship of order A happened 0 times instead of 1",
    ]


def test_the_board_follows_histories() -> None:
    """Would catch a table that shows another state than the history tells."""
    board = Board(["A", "B"], ("reserve",))
    row = board.rows["A"]
    for kind in ("run-created", "step-declared", "attempt-authorized"):
        row.apply({"kind": kind, "data": {"step": "reserve"}})
    assert (row.status, row.steps, board.running_count) == ("running", {"reserve": "running"}, 1)
    row.apply({"kind": "step-completed", "data": {"step": "reserve"}})
    assert not row.is_ended
    row.apply({"kind": "run-completed", "data": {}})
    assert (row.is_ended, row.status) == (True, "completed")
    assert (board.ended_count, board.done_count, board.running_count) == (1, 1, 0)
