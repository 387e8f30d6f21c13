"""Log lines: the same members as text and as JSON, and never a secret by accident of formatting."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from services.runtime.config import Config
from services.runtime.logs import VALUE_CHARS_MAX, configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the root logger as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(log_format: str, log_level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(Config(log_format=log_format, log_level=log_level), stream)
    return stream


def test_json_lines_hold_the_members_and_the_traceback() -> None:
    stream = logged("json")
    log = logging.getLogger("services.test")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it %s", "failed", extra={"run": "abc", "count": 3, "odd": object})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"], line["run"], line["count"]) == (
        "error", "services.test", "it failed", "abc", 3,
    )  # fmt: skip
    assert "ValueError: broken" in line["exception"]
    assert line["time"].endswith("+00:00")
    assert stream.getvalue().count("\n") == 1


def test_text_lines_hold_the_members() -> None:
    stream = logged("text")
    logging.getLogger("services.test").warning("lost", extra={"run": "a b"})
    assert stream.getvalue().endswith("warning services.test: lost run='a b'\n")


def test_the_level_holds_and_values_are_bounded() -> None:
    stream = logged("json", "warning")
    log = logging.getLogger("services.test")
    log.info("quiet")
    log.warning("loud", extra={"value": "x" * 10_000})
    assert len(json.loads(stream.getvalue())["value"]) == VALUE_CHARS_MAX
