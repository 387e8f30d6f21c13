"""Nonsense is refused where it is written, with the field and the allowed range; nothing is clamped (case 044)."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from ryusen import App, ConfigurationError, Context, DeclarationRefused, Retry
from ryusen.durations import DURATION_MS_MAX, parse_duration_ms
from ryusen.protocol.frames import RetryPolicy
from ryusen.protocol.limits import ATTEMPTS_MAX, NAME_CHARS_MAX, RUN_TIMEOUT_MS_MAX, TRIGGERS_MAX
from ryusen.protocol.manifest import (
    FunctionManifest,
    Manifest,
    ManifestRefused,
    Trigger,
    decode_manifest,
    encode_manifest,
    validate_manifest,
)

pytestmark = pytest.mark.case(44)


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (1, 1_000),
        (0.25, 250),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        ("250ms", 250),
        ("1d", 86_400_000),
        (timedelta(minutes=2, microseconds=1500), 120_002),
        (timedelta(days=365), DURATION_MS_MAX),
    ],
)
def test_durations_are_read(value: Any, milliseconds: int) -> None:
    assert parse_duration_ms(value, "timeout") == milliseconds


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        0.0001,
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        True,
        None,
        "",
        "5",
        "m",
        "-5m",
        "5 m",
        "PT5M",
        "5m ",
        "٥m",
        "1e3s",
        "9" * 70 + "s",
        "366d",
        timedelta(seconds=-1),
        timedelta(days=366),
        [],
    ],
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        parse_duration_ms(value, "timeout")
    assert refused.value.field == "timeout"
    assert len(str(refused.value)) < 400


def test_a_policy_travels_in_milliseconds() -> None:
    policy = Retry(attempts=5, initial="200ms", coefficient=1, cap=timedelta(minutes=1)).policy()
    assert policy == RetryPolicy(attempts=5, initial_ms=200, coefficient=1.0, cap_ms=60_000)
    assert Retry().policy() == RetryPolicy()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"attempts": 0}, "retry.attempts"),
        ({"attempts": -1}, "retry.attempts"),
        ({"attempts": 2**31}, "retry.attempts"),
        ({"attempts": ATTEMPTS_MAX + 1}, "retry.attempts"),
        ({"attempts": 1.5}, "retry.attempts"),
        ({"attempts": True}, "retry.attempts"),
        ({"attempts": "3"}, "retry.attempts"),
        ({"initial": -1}, "retry.initial"),
        ({"initial": math.nan}, "retry.initial"),
        ({"initial": "PT1S"}, "retry.initial"),
        ({"cap": math.inf}, "retry.cap"),
        ({"initial": "10m"}, "retry.cap"),
        ({"coefficient": 0.5}, "retry.coefficient"),
        ({"coefficient": math.nan}, "retry.coefficient"),
        ({"coefficient": math.inf}, "retry.coefficient"),
        ({"coefficient": "2"}, "retry.coefficient"),
        ({"coefficient": True}, "retry.coefficient"),
    ],
)
def test_an_impossible_policy_is_refused_when_it_is_written(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        Retry(**arguments)
    assert refused.value.field == field


BAD_NAMES = ["", " ", "\t", " a", "a\n", "a\x00b", "\x1b[0m", "\ud800", "x" * (NAME_CHARS_MAX + 1), "x" * 10_000]


@pytest.mark.parametrize("name", [*BAD_NAMES, 7, None, b"orders"])
def test_a_bad_application_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError):
        App(name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_function_and_event_names_are_refused(name: str) -> None:
    async def handler(ctx: Context) -> None: ...

    app = App("orders")
    with pytest.raises(ConfigurationError):
        app.function(name=name)(handler)
    with pytest.raises(ConfigurationError):
        app.function(on=name)(handler)
    with pytest.raises(ConfigurationError):
        app.function(on=["fine", name])(handler)
    assert not app.functions


def test_the_longest_names_are_allowed() -> None:
    app = App("é" * NAME_CHARS_MAX)

    @app.function(on="e" * NAME_CHARS_MAX, name="f" * NAME_CHARS_MAX)
    async def handler(ctx: Context) -> None: ...

    assert decode_manifest(encode_manifest(app.manifest())) == app.manifest()


def test_functions_register_bare_and_with_options() -> None:
    app = App("orders")

    @app.function
    async def bare(ctx: Context) -> None: ...

    @app.function(on=["a", "b"], name="named")
    async def handler(ctx: Context, payload: dict[str, int]) -> str:
        return "x"

    assert list(app.functions) == ["bare", "named"]
    assert app.functions["named"].handler is handler
    assert app.functions["named"].input_type == dict[str, int]
    assert app.functions["named"].output_type is str
    manifest = app.manifest()
    assert [t.event for t in manifest.functions[1].triggers] == ["a", "b"]
    assert manifest.functions[0].triggers == []
    assert app.manifest() == manifest, "ids are stable"


def test_what_cannot_be_a_workflow_function_is_refused() -> None:
    app = App("orders")

    def plain(ctx: Context) -> None: ...

    async def no_context() -> None: ...

    async def too_many(ctx: Context, a: int, b: int) -> None: ...

    async def keyword(ctx: Context, *, option: int) -> None: ...

    async def lost(ctx: Context, order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for handler in (plain, no_context, too_many, keyword, lost):
        with pytest.raises(ConfigurationError):
            app.function(handler)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="twice"):
        app.function(on=["a", "a"])
    with pytest.raises(ConfigurationError, match="too many"):
        app.function(on=[f"e{n}" for n in range(TRIGGERS_MAX + 1)])
    with pytest.raises(ManifestRefused):
        app.manifest()


def test_a_run_timeout_travels_in_milliseconds() -> None:
    """RFD 1, "A developer may declare a run timeout": seconds, a timedelta or text, as everywhere; none by default."""
    app = App("orders")
    for number, timeout in enumerate((None, 1.5, "2d", timedelta(minutes=1), "3000d")):

        async def handler(ctx: Context) -> None: ...

        app.function(name=f"f{number}", timeout=timeout)(handler)
    sent = decode_manifest(encode_manifest(app.manifest()))
    assert [one.timeout_ms for one in sent.functions] == [None, 1_500, 172_800_000, 60_000, 259_200_000_000]


@pytest.mark.parametrize("timeout", [0, -1, "", "2 days", True, object(), "999999999999d"])
def test_a_run_timeout_that_cannot_be_is_refused_where_it_is_written(timeout: Any) -> None:
    """RFD 1, "rejects ... rather than silently clamping it"."""
    with pytest.raises(ConfigurationError, match="timeout"):
        App("orders").function(timeout=timeout)


def test_a_name_is_registered_once() -> None:
    app = App("orders")

    async def handler(ctx: Context) -> None: ...

    app.function(handler)
    with pytest.raises(ConfigurationError, match="taken"):
        app.function(handler)


def manifest(**changes: Any) -> Manifest:
    function = FunctionManifest(name="f", triggers=[Trigger(event="e", binding="b")], contract="c")
    return Manifest(**{"application": "orders", "functions": [function], **changes})


def function(name: str, *triggers: Trigger, contract: str = "") -> FunctionManifest:
    return FunctionManifest(name=name, triggers=list(triggers), contract=contract)


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        (manifest(application=" "), "$.application"),
        (manifest(functions=[]), "$.functions"),
        (manifest(functions=[function("a"), function("a")]), "$.functions[1].name"),
        (manifest(functions=[function("a"), function("b\x00")]), "$.functions[1].name"),
        (manifest(functions=[function("a", contract="x y")]), "$.functions[0].contract"),
        (manifest(functions=[FunctionManifest(name="a", triggers=[], timeout_ms=0)]), "$.functions[0].timeout_ms"),
        (
            manifest(functions=[FunctionManifest(name="a", triggers=[], timeout_ms=RUN_TIMEOUT_MS_MAX + 1)]),
            "$.functions[0].timeout_ms",
        ),
        (manifest(functions=[function("a", Trigger(event="", binding="b"))]), "$.functions[0].triggers[0].event"),
        (manifest(functions=[function("a", Trigger(event="e", binding=""))]), "$.functions[0].triggers[0].binding"),
        (
            manifest(functions=[function("a", Trigger(event="e", binding="invoke"))]),
            "$.functions[0].triggers[0].binding",
        ),
        (
            manifest(functions=[function("a", Trigger(event="e", binding="b"), Trigger(event="e", binding="c"))]),
            "$.functions[0].triggers[1].event",
        ),
        (
            manifest(
                functions=[
                    function("a", Trigger(event="e", binding="b")),
                    function("c", Trigger(event="e", binding="b")),
                ]
            ),
            "$.functions[1].triggers[0].binding",
        ),
    ],
)
def test_a_bad_manifest_is_refused_with_the_path(bad: Manifest, path: str) -> None:
    with pytest.raises(ManifestRefused) as refused:
        validate_manifest(bad)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b"", "$"),
        (b"\xff", "$"),
        (b"[" * 100_000, "$"),
        (b'{"application":"a"}', "$"),
        (b'{"application":7,"functions":[]}', "$.application"),
        (b'{"application":"a","functions":[{"name":"f","triggers":[],"timeout":"2d"}]}', "$.functions[0]"),
        (b'{"application":"a","functions":[{"name":"f","triggers":[{"event":"e"}]}]}', "$.functions[0].triggers[0]"),
    ],
)
def test_text_that_is_no_manifest_is_refused_with_the_path(text: bytes, path: str) -> None:
    """Unknown fields are refused too: a misspelt timeout, which nobody would enforce, must not look accepted."""
    with pytest.raises(ManifestRefused) as refused:
        decode_manifest(text)
    assert refused.value.path == path
