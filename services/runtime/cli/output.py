"""Printing: tables for people, JSON for programs, problems on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["instant", "pairs", "print_json", "print_table", "styled_status", "warn"]

PLAIN_WIDTH = 4_000
"""Columns of a table that goes to a file or a pipe: enough that nothing is folded or cut."""
_encoder = msgspec.json.Encoder()
_STYLES = {
    "completed": "green",
    "succeeded": "green",
    "running": "cyan",
    "failed": "red",
    "cancelled": "yellow",
    "timed_out": "red",
    "unknown": "magenta",
    "compensating": "yellow",
    "definition_blocked": "red",
    "backing_off": "yellow",
}


def print_json(document: bytes | Any) -> None:
    """Print one JSON document; bytes are printed as they came, so that values keep their exact text."""
    data = document if isinstance(document, bytes) else _encoder.encode(document)
    sys.stdout.buffer.write(data.rstrip(b"\n") + b"\n")
    sys.stdout.buffer.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, empty: str) -> None:
    """Print rows in columns; what to say when there are none goes to standard error."""
    is_terminal = sys.stdout.isatty()
    table = Table(box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False, show_edge=False)
    for number, column in enumerate(columns):
        # The first column is what a person copies: never folded.
        table.add_column(column, no_wrap=not is_terminal or number == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if not table.row_count:
        warn(empty)
        return
    console = Console() if is_terminal else Console(width=PLAIN_WIDTH, no_color=True)
    console.print(table, highlight=False)


def styled_status(status: str) -> Text:
    """Return a status in its colour, which shows on a terminal only."""
    return Text(status, style=_STYLES.get(status, ""))


def instant(at_ms: int | None) -> str:
    """Return an instant in UTC for people."""
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def pairs(data: dict[str, Any]) -> str:
    """Return members as key=value, in their order."""
    return " ".join(
        f"{name}={value if isinstance(value, str) else _encoder.encode(value).decode()}" for name, value in data.items()
    )


def warn(message: str) -> None:
    """Say something to people."""
    sys.stderr.write(f"ryusen: {message}\n")
