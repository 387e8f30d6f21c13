"""The command line against a running service: what a newcomer types after the demo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from e2e_world import Site, World, open_world

from topology.process import clean_environment

COMMAND_S_MAX = 30.0


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    async with open_world("demo", tmp_path_factory.mktemp("cli"), site) as opened:
        yield opened


async def _ryusen(world: World, *arguments: str, key: str | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = clean_environment(
        {
            "RYUSEN_URL": world.launcher.gateway_url(),
            "RYUSEN_WORKSPACE": world.access.workspace,
            "RYUSEN_KEY": world.access.client_key if key is None else key,
            "RYUSEN_STORE": world.launcher.store,
            "RYUSEN_KEY_PREFIX": world.prefix,
        }
    )
    with anyio.fail_after(COMMAND_S_MAX):
        return await anyio.run_process(
            [sys.executable, "-m", "services.runtime.cli", *arguments],
            env=environment,
            cwd=world.launcher.folder,
            check=False,
        )


async def _json(world: World, *arguments: str, key: str | None = None) -> Any:
    done = await _ryusen(world, *arguments, "--json", key=key)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


async def test_an_event_is_submitted_followed_and_shown(world: World) -> None:
    """Would catch a command that speaks another API than the gateway's, or prints logs where data belongs."""
    submitted = await _json(
        world, "events", "submit", "field.steady", "--payload", '{"id": "cli"}', "--idempotency-key", "cli"
    )
    (run,) = await world.runs_of(submitted["event"])
    followed = await _ryusen(world, "runs", "history", run, "--follow", "--json")
    assert followed.returncode == 0, followed.stderr.decode()
    entries = [json.loads(line) for line in followed.stdout.splitlines()]
    assert entries == await world.history(run)
    assert entries[-1]["kind"] == "run-completed"
    shown = await _json(world, "runs", "show", run)
    assert (shown["status"], shown["output"], len(shown["steps"])) == ("completed", 7, 3)
    listed = await _json(world, "runs", "list", "--status", "completed")
    assert run in [found["run"] for found in listed]
    again = await _json(
        world, "events", "submit", "field.steady", "--payload", '{"id": "cli"}', "--idempotency-key", "cli"
    )
    assert (again["event"], again["replayed"]) == (submitted["event"], True)


async def test_a_function_is_invoked_and_waited_for(world: World) -> None:
    """RFD 2, "An operator or a tool may start one function directly": from the shell to a worker and back, one of two listeners."""
    listed = await _json(world, "functions", "list", "field")
    assert "left" in [one["name"] for one in listed]
    done = await _ryusen(
        world, "functions", "invoke", "field", "left", "--input", '{"id": "invoked"}', "--wait", "--json"
    )
    assert done.returncode == 0, done.stderr.decode()
    run = json.loads(done.stdout)
    assert (run["status"], run["function"], run["binding"]) == ("completed", "left", "invoke")
    assert b"run-completed" in done.stderr
    assert await world.runs_of(run["event"]) == [run["run"]], "the other function of field.two heard nothing"
    gone = await _ryusen(world, "functions", "invoke", "field", "gone", "--wait")
    assert (gone.returncode, gone.stdout) == (1, b"")
    assert "declares no function gone" in gone.stderr.decode()
    await world.check()


async def test_refusals_are_one_line_and_an_exit_code(world: World) -> None:
    """Would catch a traceback for a mistake of the caller's."""
    for arguments, key, code, words in (
        (("runs", "show", "0" * 32), None, 1, "not_found"),
        (("runs", "list"), "ryk_wrong", 1, "unauthenticated"),
        (("runs", "list", "--count", "0"), None, 2, "count"),
    ):
        done = await _ryusen(world, *arguments, key=key)
        assert done.returncode == code, done.stderr.decode()
        assert done.stdout == b""
        assert words in done.stderr.decode().lower()
        assert "Traceback" not in done.stderr.decode()


async def test_the_keyspace_is_checked_while_it_serves(world: World) -> None:
    """FILLED-IN 10: `ryusen fsck` beside running processes finds nothing wrong."""
    run = await world.begin("field.steady", {"id": "checked"})
    await world.ended(run)
    found = await _json(world, "fsck")
    assert found["keys"] > 20
    assert found["problems"] == []
