"""`ryusen dev` as a newcomer meets it: one command, code that reloads, state that outlives it (case 079)."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from eventually import eventually
from ryusen import AsyncClient

from keyspace.clock import SystemClock
from keyspace.keyspace import Keyspace
from keyspace.layout import FORMAT
from keyspace.records.system import FORMAT_VERSION, FormatRecord
from keyspace.store.embedded import open_embedded
from keyspace.tx import Tx
from topology.check import check_store
from topology.ports import free_ports
from topology.process import Command, Process, clean_environment

APP = """
import os
from pathlib import Path
from ryusen import App, Context, Retry

app = App("local")
HERE = Path(__file__).parent
HERE.joinpath("pids").open("a").write(f"{os.getpid()}\\n")

async def first(number):
    return f"VERSION {number}"

async def gate():
    if not HERE.joinpath("open").exists():
        raise RuntimeError("the gate is shut")
    return "through"

@app.function(on="asked")
async def answer(ctx: Context, number: int) -> list:
    said = await ctx.step.run("first", first, number)
    passed = await ctx.step.run("gate", gate, retry=Retry(attempts=1000, initial="200ms", coefficient=1.0, cap="200ms"))
    return [said, passed]
"""
RUNS = 25
STOP_S = 20.0
_EXPORT = re.compile(r"export RYUSEN_URL=(\S+) RYUSEN_WORKSPACE=(\S+) RYUSEN_KEY=(\S+)")


class Dev:
    """A folder with an application, and the local servers started on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "code"
        self.code.mkdir()
        self.write("one")
        self.store = folder / "state" / "store"
        (self.port,) = free_ports(1)
        self._count = 0

    def write(self, version: str) -> None:
        (self.code / "local_app.py").write_text(APP.replace("VERSION", version))

    def open_gate(self) -> None:
        (self.code / "open").touch()

    def worker_pids(self) -> list[int]:
        return [int(line) for line in (self.code / "pids").read_text().split()]

    @asynccontextmanager
    async def run(self, *, cwd: Path | None = None, port: int | None = None) -> AsyncIterator[Process]:
        self._count += 1
        process = await Process.start(
            "dev",
            Command(
                arguments=(
                    sys.executable, "-m", "services.runtime.cli", "dev", "local_app:app",
                    "--store", f"embedded:{self.store}", "--gateway-port", str(port or self.port),
                ),
                environment=clean_environment(
                    {"PYTHONPATH": str(self.code), "RYUSEN_LEASE_MS": "4000", "RYUSEN_SKEW_MS": "200"}
                ),
                folder=cwd or self.code,
                log=self.folder / f"dev-{self._count}.log",
            ),
        )  # fmt: skip
        try:
            yield process
        finally:
            await process.finish()

    async def client(self, process: Process) -> AsyncClient:
        """Return a client made of what the server prints once its worker serves."""

        async def look() -> re.Match[str] | None:
            log = process.log_tail()
            assert process.is_alive, log
            return _EXPORT.search(log) if "a worker joined" in log else None

        found = await eventually(look, "the local server serves")
        assert found is not None
        return AsyncClient(found[1], found[2], found[3])


@pytest.fixture
def dev(tmp_path: Path) -> Dev:
    return Dev(tmp_path)


async def submit(client: AsyncClient, numbers: range) -> None:
    for number in numbers:
        await client.submit("asked", number, idempotency_key=f"n{number}")


async def outputs(client: AsyncClient) -> list[str]:
    """Return what the completed runs answered first."""
    found = [await client.run(run["run"]) for run in (await client.runs(status="completed", limit=500)).items]
    return sorted(run["output"][0] for run in found)


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.case(79)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
async def test_runs_go_on_where_they_were_after_a_restart(dev: Dev, how: signal.Signals) -> None:
    """Case 079: stopped by ctrl-C or kill -9, started again from another folder: no acknowledged work is gone."""
    async with dev.run() as process:
        async with await dev.client(process) as client:
            await submit(client, range(RUNS))

            async def all_at_the_gate() -> bool:
                runs = (await client.runs(status="running", limit=500)).items
                return len(runs) == RUNS and all(run["step_count"] == 2 for run in runs)

            await eventually(all_at_the_gate, "every run waits at the gate")
        assert f"State is in {dev.store}" in process.log_tail()
        process.signal(how)
        assert await process.wait(STOP_S) == (0 if how is signal.SIGINT else -signal.SIGKILL)

        async def no_worker() -> bool:
            return not any(is_running(pid) for pid in dev.worker_pids())

        await eventually(no_worker, "its worker ends with it")
    dev.open_gate()
    elsewhere = dev.folder / "elsewhere"
    elsewhere.mkdir()
    async with dev.run(cwd=elsewhere) as process:
        async with await dev.client(process) as client:
            await submit(client, range(RUNS))

            async def all_completed() -> bool:
                completed = (await client.runs(status="completed", limit=500)).items
                unknown = [run for run in (await client.runs(limit=500)).items if run["unknown_count"]]
                # An effect that was under way when its worker was killed may be Unknown; nothing else may be missing.
                return len(completed) + len(unknown) == RUNS

            await eventually(all_completed, "every run ends", seconds_max=40)
            if how is signal.SIGINT:
                assert await outputs(client) == sorted(f"one {number}" for number in range(RUNS))
        process.signal(signal.SIGTERM)
        assert await process.wait(STOP_S) == 0
    report = await check_store(f"embedded:{dev.store}")
    assert not report.problems


async def test_changed_code_serves_at_once_and_broken_code_waits_to_be_mended(dev: Dev) -> None:
    """The worker is replaced when its file changes; what the former one ran goes on in the new one."""
    dev.open_gate()
    async with dev.run() as process, await dev.client(process) as client:
        await submit(client, range(1))

        async def has(*wanted: str) -> bool:
            return await outputs(client) == sorted(wanted)

        await eventually(lambda: has("one 0"), "the first code answers")
        (dev.code / "local_app.py").write_text("this is no Python")

        async def is_broken() -> bool:
            return "waiting for a change" in process.log_tail()

        await eventually(is_broken, "the broken code is told")
        await submit(client, range(1, 2))
        dev.write("two")
        await eventually(lambda: has("one 0", "two 1"), "the mended code answers")
        assert "SyntaxError" in process.command.log.read_text()


@pytest.mark.case(79)
async def test_a_taken_port_is_one_clear_line(dev: Dev) -> None:
    """Case 079: a conflict over the port names it and the setting to change, and leaves the first server alone."""
    async with dev.run() as first, await dev.client(first) as client:
        async with dev.run() as second:
            assert await second.wait(STOP_S) == 3
            refusals = [line for line in second.log_tail().splitlines() if line.startswith("ryusen:")]
            assert refusals == [
                f"ryusen: port {dev.port} on 127.0.0.1 is taken by another process; set gateway_port to another port"
            ]
            assert "Traceback" not in second.log_tail()
        assert (await client.runs()).items == []


@pytest.mark.case(79)
async def test_state_of_a_newer_release_is_refused_in_one_line(dev: Dev) -> None:
    """Case 079: newer files are refused, not guessed."""
    clock = SystemClock()
    store = open_embedded(dev.store, clock=clock)
    keyspace = Keyspace(store, clock=clock)

    async def write(tx: Tx) -> None:
        tx.put(FORMAT.at(), FormatRecord(format_version=FORMAT_VERSION + 1, fingerprint="", created_at_ms=0))

    await keyspace.transact("write", write)
    await store.close()
    async with dev.run() as process:
        assert await process.wait(STOP_S) == 3
        (line,) = process.log_tail().splitlines()
        assert line.startswith("ryusen: embedded:")
        assert "upgrade this process first" in line


@pytest.mark.case(79)
async def test_two_local_servers_on_one_state_share_the_work(dev: Dev) -> None:
    """Case 079: the second one is welcome on another port; nothing runs twice and nothing is lost."""
    dev.open_gate()
    (other_port,) = free_ports(1)
    async with dev.run() as first, await dev.client(first) as client:
        async with dev.run(port=other_port) as second, await dev.client(second) as other:
            await submit(client, range(10))
            await submit(other, range(5, 15))

            async def all_completed() -> bool:
                return await outputs(other) == sorted(f"one {number}" for number in range(15))

            await eventually(all_completed, "every run completes once")
            second.signal(signal.SIGTERM)
            assert await second.wait(STOP_S) == 0
        await submit(client, range(15, 16))

        async def one_more() -> bool:
            return len(await outputs(client)) == 16

        await eventually(one_more, "the first one serves on")
        first.signal(signal.SIGTERM)
        assert await first.wait(STOP_S) == 0
    assert not (await check_store(f"embedded:{dev.store}")).problems
