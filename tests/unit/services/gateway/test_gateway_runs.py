"""Runs, steps, attempts and history as they are shown, and the stream that follows a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest
from gateway_world import GatewayWorld, Stream
from starlette.types import Message, Receive, Scope, Send
from waiting import until

from keyspace.clock import VirtualClock
from keyspace.records.run import FailureRecord
from keyspace.transitions.fire_deadline import fire_deadline
from keyspace.transitions.keys import revoke_key
from services.gateway import histories
from services.gateway.histories import REREAD_MS
from services.runtime.key_watch import KEY_LOOK_MS

RUNS = "/v1/workspaces/acme/runs"
NEVER = anyio.Event


async def show(world: GatewayWorld, run_id: str, *more: str) -> Any:
    return await world.ask("GET", "/".join((RUNS, run_id, *more)))


async def test_a_run_shows_what_it_waits_for_through_its_life(world: GatewayWorld) -> None:
    """RFD 2, "Running includes work queued": phase and status are told apart, and waiting has a reason."""
    run = await world.core.start_run(payload=b'{"order":7}')
    shown = await show(world, run.run_id)
    assert (shown["status"], shown["phase"], shown["execution"]) == ("running", "running", None)
    assert shown["waiting"]["word"] == "worker"
    assert shown["input"] == {"order": 7}
    work = await world.core.start_step()
    assert (await show(world, run.run_id))["waiting"]["word"] == "running"
    await world.core.fail_attempt(work)
    assert (await show(world, run.run_id))["waiting"]["word"] == "backoff"
    world.clock.advance(1_000)
    await world.core.succeed(await world.core.start_attempt(), b'{"$bytes":"AA=="}')
    await world.core.complete(await world.core.lease_pass(), b"[1,  2]")
    raw = await world.request("GET", f"{RUNS}/{run.run_id}")
    ended = raw.json()
    assert (ended["status"], ended["phase"], ended["recovery"]) == (
        "completed", "terminal", "not_required:execution_succeeded",
    )  # fmt: skip
    assert ended["waiting"] is None
    assert b'"output":[1,  2]' in raw.content


async def test_steps_show_every_attempt_with_its_failure_and_who_made_it(world: GatewayWorld) -> None:
    run = await world.core.start_run()
    failure = FailureRecord(category="application", message="no stock", details='{"left": 1.0}')
    await world.core.fail_attempt(await world.core.start_step("s1"), failure)
    world.clock.advance(1_000)
    await world.core.succeed(await world.core.start_attempt(), b'{"n": 1.0}')
    await world.core.run_step("s2")
    page = await show(world, run.run_id, "steps")
    assert [step["step"] for step in page["items"]] == ["s1", "s2"]
    first, second = page["items"][0]["attempts"]
    assert (first["state"], first["ordinal"], first["failure"]) == (
        "failed", 1, {"category": "application", "message": "no stock", "details": {"left": 1.0}},
    )  # fmt: skip
    assert (second["state"], second["ordinal"], second["failure"]) == ("succeeded", 2, None)
    assert second["instance"] == "11" * 16
    assert second["release"] == "release-1"
    assert second["authorized_at_ms"] <= second["settled_at_ms"]
    one = await world.request("GET", f"{RUNS}/{run.run_id}/steps/s1")
    assert b'"value":{"n": 1.0}' in one.content
    await world.refused("not_found", "GET", f"{RUNS}/{run.run_id}/steps/s9")


async def test_steps_are_paged_with_their_own_attempts(world: GatewayWorld) -> None:
    run = await world.core.start_run()
    for number in range(5):
        await world.core.run_step(f"s{number}")
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(10):
        params = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = await world.ask("GET", f"{RUNS}/{run.run_id}/steps", params=params)
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [(step["step"], len(step["attempts"])) for step in found] == [(f"s{number}", 1) for number in range(5)]


async def test_a_page_of_steps_ends_early_where_attempts_are_many(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every page carries whole steps and moves on, however many attempts there are."""
    monkeypatch.setattr("services.gateway.steps.ATTEMPTS_PAGE_MAX", 3)
    run = await world.core.start_run()
    for number in range(4):
        await world.core.fail_attempt(await world.core.start_step(f"s{number}"))
        world.clock.advance(1_000)
        await world.core.succeed(await world.core.start_attempt())
    seen: list[tuple[str, int]] = []
    cursor: str | None = None
    for _ in range(10):
        page = await world.ask("GET", f"{RUNS}/{run.run_id}/steps", params={"cursor": cursor} if cursor else {})
        assert page["items"]
        seen += [(step["step"], len(step["attempts"])) for step in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [(f"s{number}", 2) for number in range(4)]


async def test_a_step_whose_id_holds_a_slash_is_one_path_element(world: GatewayWorld) -> None:
    run = await world.core.start_run()
    await world.core.run_step("ship/é 1%")
    shown = await world.ask("GET", f"{RUNS}/{run.run_id}/steps/ship%2F%C3%A9%201%25")
    assert shown["step"] == "ship/é 1%"
    await world.refused("not_found", "GET", f"{RUNS}/{run.run_id}/steps/%FF")


@pytest.mark.parametrize("limit", [1, 2, 3, 1_000])
async def test_history_pages_join_without_a_gap(world: GatewayWorld, limit: int) -> None:
    run = await world.core.start_run()
    await world.core.run_step()
    await world.core.complete(await world.core.lease_pass())
    entries: list[Any] = []
    after: int | None = 0
    while after is not None:
        page = await world.ask("GET", f"{RUNS}/{run.run_id}/history", params={"after": after, "limit": limit})
        entries += page["items"]
        assert page["is_complete"] is (page["next_after"] is None)
        after = page["next_after"]
    assert [entry["ordinal"] for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry["kind"] for entry in entries] == await world.core.kinds(run.run_id)


async def test_history_of_a_run_under_way_is_not_complete(world: GatewayWorld) -> None:
    run = await world.core.start_run()
    page = await show(world, run.run_id, "history")
    assert (page["next_after"], page["is_complete"]) == (None, False)
    await world.refused("invalid_query", "GET", f"{RUNS}/{run.run_id}/history", params={"after": -1})


async def test_the_stream_of_an_ended_run_ends(world: GatewayWorld) -> None:
    run = await world.core.start_run()
    await world.core.run_step()
    await world.core.complete(await world.core.lease_pass())
    response = await world.request("GET", f"{RUNS}/{run.run_id}/history/stream", params={"after": 2})
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.strip().split("\n\n")
    assert blocks[-1] == "event: end\ndata: {}"
    ids = [int(block.split("\n")[0].removeprefix("id: ")) for block in blocks[:-1]]
    assert ids == list(range(3, len(await world.core.kinds(run.run_id)) + 1))
    entry = msgspec.json.decode(blocks[0].split("\n")[1].removeprefix("data: "))
    assert entry["ordinal"] == 3


async def live() -> GatewayWorld:
    world = GatewayWorld(clock=VirtualClock(), streams_max=2)
    await world.furnish()
    return world


async def test_the_stream_follows_a_run_to_its_end() -> None:
    """Entries arrive as transitions commit, without anybody waiting for the slow re-read."""
    world = await live()
    run = await world.core.start_run()
    stream = Stream(world.app, f"{RUNS}/{run.run_id}/history/stream", key=world.keys["acme", "reader"])
    async with anyio.create_task_group() as group:
        group.start_soon(stream.run, NEVER().wait)
        await until(lambda: "run-created" in stream.text)
        await world.core.run_step()
        await until(lambda: "step-completed" in stream.text)
        assert not stream.is_over
        await world.core.complete(await world.core.lease_pass())
        await until(lambda: stream.is_over)
        group.cancel_scope.cancel()
    assert "event: end" in stream.text
    assert world.gateway.streams.borrowed_tokens == 0


async def test_a_stream_says_that_it_lives_and_ends_with_its_key() -> None:
    """Case 074: revocation ends a stream at the next look at keys, without `end`, and the place is free again."""
    world = await live()
    run = await world.core.start_run()
    stream = Stream(world.app, f"{RUNS}/{run.run_id}/history/stream", key=world.keys["acme", "reader"])
    async with anyio.create_task_group() as group:
        group.start_soon(stream.run, NEVER().wait)
        await until(lambda: "run-created" in stream.text)
        world.clock.advance(REREAD_MS)
        await until(lambda: ": still here" in stream.text)
        group.start_soon(world.gateway.process.keys_in_use.run)
        reader = world.key_ids["acme", "reader"]
        await world.core.run("revoke_key", lambda tx: revoke_key(tx, "acme", reader))
        await until(lambda: world.clock.next_wake_ms() == KEY_LOOK_MS)
        world.clock.advance(KEY_LOOK_MS)
        await until(lambda: stream.is_over)
        await world.refused("unauthenticated", "GET", RUNS, key=world.keys["acme", "reader"])
        group.cancel_scope.cancel()
    assert stream.text.endswith(": key_revoked\n\n")
    assert "event: end" not in stream.text
    assert world.gateway.process.keys_in_use.key_count == 0
    assert world.gateway.streams.borrowed_tokens == 0


class StuckStream(Stream):
    """A reader whose buffers are full from `word` on, which is in the first entry unless said otherwise."""

    def __init__(self, *where: Any, word: str = "run-created", **how: Any) -> None:
        super().__init__(*where, **how)
        self._word = word

    async def run(self, disconnected: Callable[[], Awaitable[object]]) -> None:
        inner = self._app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            async def stuck(message: Message) -> None:
                await send(message)
                if self._word in self.text:
                    await NEVER().wait()

            await inner(scope, receive, stuck)

        self._app = app
        await super().run(disconnected)


@pytest.mark.case(74)
async def test_a_reader_that_takes_nothing_keeps_no_stream_under_a_revoked_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 074: would catch a stream that waits for a full buffer, for half a minute, before it sees that its key is gone."""
    monkeypatch.setattr(histories, "REVOKED_SEND_MS_MAX", 10)
    world = await live()
    run = await world.core.start_run()
    stream = StuckStream(world.app, f"{RUNS}/{run.run_id}/history/stream", key=world.keys["acme", "reader"])
    with anyio.fail_after(histories.SEND_MS_MAX / 3_000):
        async with anyio.create_task_group() as group:
            group.start_soon(stream.run, NEVER().wait)
            await until(lambda: "run-created" in stream.text)
            reader = world.key_ids["acme", "reader"]
            await world.core.run("revoke_key", lambda tx: revoke_key(tx, "acme", reader))
            await world.gateway.process.keys_in_use.look()
    assert "key_revoked" not in stream.text
    assert world.gateway.streams.borrowed_tokens == 0


@pytest.mark.case(74)
async def test_a_reader_that_fills_up_behind_the_revocation_keeps_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 074: would catch a stream whose last word, sent once its key is gone, waits half a minute for a full buffer."""
    monkeypatch.setattr(histories, "REVOKED_SEND_MS_MAX", 10)
    world = await live()
    run = await world.core.start_run()
    stream = StuckStream(
        world.app, f"{RUNS}/{run.run_id}/history/stream", key=world.keys["acme", "reader"], word="key_revoked"
    )
    with anyio.fail_after(histories.SEND_MS_MAX / 3_000):
        async with anyio.create_task_group() as group:
            group.start_soon(stream.run, NEVER().wait)
            await until(lambda: "run-created" in stream.text)
            reader = world.key_ids["acme", "reader"]
            await world.core.run("revoke_key", lambda tx: revoke_key(tx, "acme", reader))
            await world.gateway.process.keys_in_use.look()
    assert stream.text.endswith(": key_revoked\n\n")
    assert world.gateway.streams.borrowed_tokens == 0


@pytest.mark.case(74)
async def test_a_key_that_a_stream_found_revoked_opens_no_other_here() -> None:
    """Case 074: a key that is still believed would open the stream again as often as its reader comes back."""
    world = await live()
    run = await world.core.start_run()
    path, secret = f"{RUNS}/{run.run_id}/history/stream", world.keys["acme", "reader"]
    stream = Stream(world.app, path, key=secret)
    async with anyio.create_task_group() as group:
        group.start_soon(stream.run, NEVER().wait)
        await until(lambda: "run-created" in stream.text)
        reader = world.key_ids["acme", "reader"]
        await world.core.run("revoke_key", lambda tx: revoke_key(tx, "acme", reader))
        await world.gateway.process.keys_in_use.look()
        await until(lambda: stream.is_over)
    # No time has passed: what the process believed of the key would hold for key_cache_ms yet.
    await world.refused("unauthenticated", "GET", RUNS, key=secret)


@pytest.mark.case(74)
async def test_a_stream_that_is_over_has_its_key_looked_at_no_more() -> None:
    """Case 074: "a poll that grows": every stream that ever was would cost a read at each look."""
    world = await live()
    run = await world.core.start_run()
    gone = anyio.Event()
    stream = Stream(world.app, f"{RUNS}/{run.run_id}/history/stream", key=world.keys["acme", "reader"])
    async with anyio.create_task_group() as group:
        group.start_soon(stream.run, gone.wait)
        await until(lambda: "run-created" in stream.text)
        assert world.gateway.process.keys_in_use.key_count == 1
        gone.set()
    assert world.gateway.process.keys_in_use.key_count == 0


async def test_streams_are_bounded_and_a_lost_client_frees_its_place() -> None:
    world = await live()
    run = await world.core.start_run()
    path = f"{RUNS}/{run.run_id}/history/stream"
    gone = anyio.Event()
    streams = [Stream(world.app, path, key=world.keys["acme", "reader"]) for _ in range(2)]
    async with anyio.create_task_group() as group:
        for stream in streams:
            group.start_soon(stream.run, gone.wait)
        await until(lambda: all("run-created" in stream.text for stream in streams))
        problem = await world.refused("too_many_requests", "GET", path)
        assert problem["limit"] == 2
        gone.set()
        await until(lambda: world.gateway.streams.borrowed_tokens == 0)
        group.cancel_scope.cancel()


async def test_a_draining_process_ends_its_streams_so_that_readers_go_elsewhere() -> None:
    world = await live()
    run = await world.core.start_run()
    stream = Stream(world.app, f"{RUNS}/{run.run_id}/history/stream", key=world.keys["acme", "reader"])
    async with anyio.create_task_group() as group:
        group.start_soon(stream.run, NEVER().wait)
        await until(lambda: "run-created" in stream.text)
        world.gateway.process.drain.begin()
        await until(lambda: stream.is_over)
        group.cancel_scope.cancel()
    assert "event: end" not in stream.text


async def test_a_stream_begins_after_the_last_entry_its_reader_saw(world: GatewayWorld) -> None:
    """A browser's EventSource says so in a header when it connects again."""
    run = await world.core.start_run()
    await world.core.complete(await world.core.lease_pass())
    path = f"{RUNS}/{run.run_id}/history/stream"
    again = await world.request("GET", path, headers={"Last-Event-ID": "2"})
    assert again.text.startswith("id: 3\n")
    await world.refused("not_found", "GET", f"{RUNS}/{'0' * 32}/history/stream")


async def test_a_run_shows_its_deadline_its_source_and_what_is_left(world: GatewayWorld) -> None:
    """RFD 1, "The effective absolute deadline and its source are observable": in the run, in lists and in its history."""
    await world.core.publish({"fulfil": ["order.placed"]}, timeout_ms=60_000)
    run = await world.core.start_run()
    world.clock.advance(20_000)
    deadline = {"at_ms": run.created_at_ms + 60_000, "source": "function", "left_ms": 40_000}
    shown = await show(world, run.run_id)
    assert shown["deadline"] == deadline
    assert shown["waiting"]["until_ms"] == deadline["at_ms"]
    assert (await world.ask("GET", RUNS))["items"][0]["deadline"] == deadline
    await world.core.start_step()
    world.clock.advance(50_000)
    assert (await show(world, run.run_id))["deadline"]["left_ms"] == 0, "until somebody meets it"
    await world.core.run("fire_deadline", lambda tx: fire_deadline(tx, "acme", run.run_id, run.timeout_item or ""))
    stopped = await show(world, run.run_id)
    assert stopped["stop"] == {"reason": "timed_out", "at_ms": world.clock.now_ms(), "by": "deadline"}
    assert (stopped["status"], stopped["deadline"]["left_ms"]) == ("cancelling", None)
    assert stopped["waiting"]["sentence"].startswith("The run's time is over: ")


async def test_a_run_without_a_deadline_says_so(world: GatewayWorld) -> None:
    """RFD 1, "Runs have no deadline by default"."""
    run = await world.core.start_run()
    assert (await show(world, run.run_id))["deadline"] is None
