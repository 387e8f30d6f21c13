"""`python -m ryusen worker`: a real process, its signals, its exit codes and its standard output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ryusen.__main__ import EXIT_USAGE, main
from ryusen.protocol.frames import Bye, Complete, Succeeded
from ryusen.worker.shell import EXIT_STOPPED
from ryusen.worker.work import EXIT_REFUSED
from sdk_peer import DEADLINE_S, Peer, assignment

USER_CODE = """
import sys, time
from pathlib import Path
from ryusen import App, Context

app = App("shop")
not_an_app = 7
print("imported")

@app.function(on="order.placed")
async def fulfil(ctx: Context) -> str:
    return await ctx.step.run("s", work)

def work() -> str:
    print("working", flush=True)
    while not Path("gate").exists():
        time.sleep(0.005)
    return "worked"
"""


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Peer() as opened:
        yield opened


async def launch(folder: Path, peer: Peer, *arguments: str) -> asyncio.subprocess.Process:
    (folder / "shop.py").write_text(USER_CODE)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ryusen",
        "worker",
        "shop:app",
        *arguments,
        cwd=folder,
        env={**os.environ, "RYUSEN_URL": peer.url, "RYUSEN_KEY": "secret"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finished(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, out.decode(), err.decode()


async def test_sigterm_finishes_what_runs_and_exits_zero(tmp_path: Path, peer: Peer) -> None:
    process = await launch(tmp_path, peer)
    session = await peer.session()
    await session.welcome()
    await session.start("q1", "s", "fulfil")
    process.send_signal(signal.SIGTERM)
    (tmp_path / "gate").touch()
    assert isinstance((await session.result("q1")).outcome, Succeeded)
    await session.expect(Bye)
    code, out, err = await finished(process)
    assert code == 0, err
    assert out == "imported\nworking\n", "standard output is the user's own"


async def test_a_second_signal_stops_at_once(tmp_path: Path, peer: Peer) -> None:
    process = await launch(tmp_path, peer)
    session = await peer.session()
    await session.welcome()
    await session.start("q1", "s", "fulfil")
    process.send_signal(signal.SIGTERM)
    await session.send(assignment("q2", "discovery", "fulfil"))
    await session.frames.get()  # it is given back: the first signal has been seen
    process.send_signal(signal.SIGINT)
    code, _, err = await finished(process)
    assert code == EXIT_STOPPED, err


async def test_a_grace_given_on_the_command_line_ends(tmp_path: Path, peer: Peer) -> None:
    process = await launch(
        tmp_path, peer, "--grace", "50ms", "--capacity", "2", "--undo-capacity", "3", "--release", "r7"
    )
    session = await peer.session()
    hello = await session.welcome()
    assert (hello.capacity, hello.undo_capacity, hello.release) == (2, 3, "r7")
    await session.start("q1", "s", "fulfil")
    process.send_signal(signal.SIGTERM)
    code, _, err = await finished(process)
    assert code == 1
    assert "unfinished: step s of function fulfil" in err


@pytest.mark.case(71)
async def test_a_refused_key_is_told_on_standard_error(tmp_path: Path, peer: Peer) -> None:
    """Case 071: a definitive refusal ends the process, with a message and a non-zero code."""
    peer.refusals = [401]
    code, _, err = await finished(await launch(tmp_path, peer))
    assert code == EXIT_REFUSED
    assert "the service refused the key" in err


async def test_a_finished_workflow_is_answered_by_the_process(tmp_path: Path, peer: Peer) -> None:
    (tmp_path / "gate").touch()
    process = await launch(tmp_path, peer)
    session = await peer.session()
    await session.welcome()
    await session.start("q1", "s", "fulfil")
    outcome = (await session.result("q1")).outcome
    assert isinstance(outcome, Succeeded)
    await session.send(assignment("q2", "discovery", "fulfil", memo=[{"id": "s", "value": outcome.value}]))
    assert isinstance((await session.answer("q2")).ending, Complete)
    process.send_signal(signal.SIGINT)
    assert (await finished(process))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["worker", "nowhere:app", "--url", "ws://h", "--key", "k"], "there is no module 'nowhere'"),
        (["worker", "shop", "--url", "ws://h", "--key", "k"], "must look like module:app"),
        (["worker", "shop:not_an_app", "--url", "ws://h", "--key", "k"], "is not a ryusen.App"),
        (["worker", "shop:app", "--url", "h", "--key", "k"], "must look like ws://host:port"),
        (["worker", "shop:app", "--url", "ws://h"], "set RYUSEN_KEY"),
        (["worker", "shop:app", "--url", "ws://h", "--key", "k", "--capacity", "0"], "capacity"),
        (["worker", "shop:app", "--url", "ws://h", "--key", "k", "--undo-capacity", "-1"], "undo capacity"),
        (["worker", "shop:app", "--url", "ws://h", "--key", "k", "--grace", "soon"], "grace"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "shop.py").write_text(USER_CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RYUSEN_KEY", raising=False)
    monkeypatch.delenv("RYUSEN_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    assert main(arguments) == EXIT_USAGE
    assert said in capsys.readouterr().err
    sys.modules.pop("shop", None)
