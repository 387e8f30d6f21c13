"""Invocations as workflow code meets them: what is declared, what comes back, and what is refused where it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from ryusen import App, Context, DeclarationRefused, StepFailed
from ryusen.invocations import invocation_of
from ryusen.protocol.frames import Child, Declare, Failure, RetryPolicy, StepDeclaration, StepMemo
from ryusen.protocol.limits import INVOKE_TIMEOUT_MS_MAX, VALUE_BYTES_MAX
from ryusen.worker.passes import Met
from test_sdk_passes import Watched, done


@dataclass(frozen=True)
class Order:
    id: str
    count: int = 1


@dataclass(frozen=True)
class Label:
    text: str


app = App("shop")


@app.function(name="pack-it")
async def pack(ctx: Context, order: Order) -> Label:
    raise AssertionError("a parent's pass runs no child")


@app.function
async def tidy(ctx: Context) -> None:
    raise AssertionError("a parent's pass runs no child")


@app.function
async def many(ctx: Context, orders: list[Order]) -> list[Label]:
    raise AssertionError("a parent's pass runs no child")


@app.function
async def plain(ctx: Context, anything):  # type: ignore[no-untyped-def]
    raise AssertionError("a parent's pass runs no child")


class Called(Watched):
    """A pass over a function of `app`, beside the others."""

    def __init__(self, handler: Any, *memo: StepMemo) -> None:
        known = dict(app._functions)
        app.function(handler)
        function = app.functions[handler.__name__]
        app._functions = known
        super().__init__(handler, *memo)
        self.its_pass.close()
        self.its_pass = type(self.its_pass)(function, self.its_pass._given, self.turns.put_nowait)
        self.its_pass.start()


def shown(given: object) -> str:
    """Name a case; a function by its name, since its address differs from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(getattr(given, "__name__", given)))


async def declared(handler: Any) -> StepDeclaration:
    """Return what a pass declares first."""
    called = Called(handler)
    turn = await called.turn()
    assert isinstance(turn, Met), turn
    await called.close()
    return turn.call.declaration


async def test_an_invocation_is_declared_with_the_functions_name_and_the_inputs_bytes() -> None:
    """RFD 2, "the same stable step identity with the invoked function of the same application, the exact input"."""

    async def parent(ctx: Context) -> None:
        await ctx.step.invoke("call", pack, Order("7", 2), timeout="1h", name="pack the order")

    step = await declared(parent)
    assert (step.id, step.name, step.kind) == ("call", "pack the order", "child")
    assert step.child == Child(function="pack-it", input=msgspec.Raw(b'{"id":"7","count":2}'), timeout_ms=3_600_000)
    assert step.retry == RetryPolicy(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
    assert (step.compensable, step.timeout_ms, step.undo_retry, step.undo_timeout_ms) == (False, None, None, None)
    assert "test_sdk_invoke.py:" in step.location
    assert msgspec.json.decode(msgspec.json.encode(Declare(steps=[step])), type=Declare).steps == [step]


@pytest.mark.parametrize(
    ("function", "value", "name", "sent"),
    [
        (pack, Order("7"), "pack-it", b'{"id":"7","count":1}'),
        ("pack-it", Order("7"), "pack-it", b'{"id":"7","count":1}'),
        (pack, {"id": "7"}, "pack-it", b'{"id":"7"}'),
        (many, [Order("7")], "many", b'[{"id":"7","count":1}]'),
        (many, [], "many", b"[]"),
        (plain, {"b": 1, "a": None}, "plain", b'{"b":1,"a":null}'),
        (plain, None, "plain", b"null"),
        (tidy, None, "tidy", b"null"),
        ("elsewhere", Order("7"), "elsewhere", b'{"id":"7","count":1}'),
        ("elsewhere", [1, "x"], "elsewhere", b'[1,"x"]'),
    ],
    ids=shown,
)
def test_the_input_is_encoded_as_the_function_declares_it(function: Any, value: Any, name: str, sent: bytes) -> None:
    """A name need not be known here: the service compares it with the manifest that the run was started under."""
    child, _ = invocation_of(function, value, None, app.functions)
    assert (child.function, bytes(child.input), child.timeout_ms) == (name, sent, None)


def test_no_time_and_ten_years_are_time_to_invoke() -> None:
    """RFD 2, "A zero invoke timeout is due at acceptance itself": it can be asked for."""
    assert invocation_of(tidy, None, 0, app.functions).child.timeout_ms == 0
    assert invocation_of(tidy, None, "3650d", app.functions).child.timeout_ms == INVOKE_TIMEOUT_MS_MAX


async def unregistered(ctx: Context) -> None:
    raise AssertionError("nobody calls it")


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("function", "value", "timeout", "field"),
    [
        (unregistered, None, None, "function"),
        (print, None, None, "function"),
        ("", None, None, "function"),
        (" ", None, None, "function"),
        ("f" * 201, None, None, "function"),
        (None, None, None, "function"),
        (5, None, None, "function"),
        (tidy, 1, None, "input"),
        (pack, object(), None, "input"),
        (pack, float("nan"), None, "input"),
        (many, [object()], None, "input"),
        ("elsewhere", {1: 2}, None, "input"),
        (plain, "x" * VALUE_BYTES_MAX, None, "input"),
        (tidy, None, -1, "timeout"),
        (tidy, None, "soon", "timeout"),
        (tidy, None, True, "timeout"),
        (tidy, None, INVOKE_TIMEOUT_MS_MAX / 1_000 + 1, "timeout"),
    ],
    ids=lambda value: shown(value)[:24],
)
def test_what_is_no_invocation_is_refused(function: Any, value: Any, timeout: Any, field: str) -> None:
    """Case 044: named where it is written, before anything is sent."""
    with pytest.raises(DeclarationRefused) as refused:
        invocation_of(function, value, timeout, app.functions)
    assert refused.value.field == field
    assert len(str(refused.value)) < 400


@pytest.mark.case(40)
async def test_the_outcome_is_of_the_type_that_the_function_returns() -> None:
    """Case 040: the value is the child's own; None stays None."""

    async def parent(ctx: Context) -> list[Any]:
        label = await ctx.step.invoke("a", pack, Order("7"))
        return [label.text, await ctx.step.invoke("b", tidy), await ctx.step.invoke("c", "elsewhere")]

    memo = (done("a", b'{"text":"x"}'), done("b", b"null"), done("c", b'{"text":1}'))
    assert await Called(parent, *memo).completed() == ["x", None, {"text": 1}]


@pytest.mark.case(40)
@pytest.mark.parametrize("category", ["child.failed", "child.cancelled", "child.timed_out", "sdk.timeout"])
async def test_a_child_that_did_not_complete_raises_at_its_call(category: str) -> None:
    """FILLED-IN 3: StepFailed with step id, category, message and details; the invocation had no attempts."""
    failure = Failure(category=category, message="application: no stock", details=msgspec.Raw(b'{"sku":7}'))

    async def parent(ctx: Context) -> list[Any]:
        try:
            await ctx.step.invoke("call", tidy)
        except StepFailed as exc:
            return [exc.step_id, exc.category, exc.details, exc.attempts]
        raise AssertionError("it has failed")

    assert await Called(parent, StepMemo(id="call", failure=failure)).completed() == ["call", category, {"sku": 7}, 0]


async def test_an_application_that_grows_is_seen_by_functions_registered_before() -> None:
    """A function may invoke one that is written below it, or itself."""
    grown = App("grown")

    async def first(ctx: Context) -> None: ...

    async def second(ctx: Context) -> None: ...

    grown.function(first)
    grown.function(second)
    siblings = grown.functions["first"].siblings
    assert [invocation_of(one, None, None, siblings).child.function for one in (first, second)] == ["first", "second"]
