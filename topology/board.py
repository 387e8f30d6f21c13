"""What the demo knows of its orders, fed by the runs' history streams; and two ways to show it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["Board", "PlainView", "Row", "TableView"]

NOTES_MAX = 6
"""Notes about processes that are shown at once."""
FRAME_LINES = 6 + NOTES_MAX
"""Lines of a live table that are not orders: title, borders, heading, summary, notes."""
REFRESH_HZ = 8
ENDED = frozenset({"run-completed", "compensation-not-required", "unwind-ended"})
"""Entries after which a run is terminal."""

STOPPED = frozenset({"cancelled", "timed_out"})
"""What a stopped run is called until its end, whatever its undo comes to."""

_STEP_WORDS = {
    "step-declared": "queued",
    "attempt-authorized": "running",
    "attempt-not-started": "queued",
    "attempt-redelivered": "queued",
    "attempt-failed": "failed once",
    "attempt-unknown": "unknown",
    "retry-scheduled": "waiting",
    "step-completed": "done",
    "step-failed": "refused",
    "step-obsolete": "obsolete",
}
_STYLES = {
    "done": "green",
    "running": "yellow",
    "unknown": "bold red",
    "blocked": "bold red",
    "refused": "red",
    "completed": "bold green",
}


@dataclass(slots=True)
class Row:
    """One order.

    Attributes:
        order: its id.
        event: the event it was submitted as.
        run: the run it became.
        status: of the run, in a word.
        steps: each step's state, in a word.
        history: the entries seen.
    """

    order: str
    event: str = ""
    run: str = ""
    status: str = ""
    steps: dict[str, str] = field(default_factory=dict)
    history: list[Mapping[str, Any]] = field(default_factory=list)

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry of the run's history."""
        self.history.append(entry)
        kind = entry["kind"]
        if kind in _STEP_WORDS:
            is_waiting = kind == "step-declared" and entry["data"].get("kind", "callback") != "callback"
            self.steps[entry["data"]["step"]] = "waiting" if is_waiting else _STEP_WORDS[kind]
        if kind in ("run-created", "definition-unblocked"):
            self.status = "running"
        elif kind in ("definition-blocked", "definition-still-blocked"):
            self.status = "blocked"
        elif kind == "run-completed":
            self.status = "completed"
        elif kind == "stop-committed":
            self.status = entry["data"]["reason"]
        elif (kind in ENDED or kind == "run-failed") and self.status not in STOPPED:
            self.status = "failed"

    @property
    def is_ended(self) -> bool:
        """Whether the run is terminal."""
        return bool(self.history) and self.history[-1]["kind"] in ENDED

    @property
    def done_count(self) -> int:
        """Steps that are settled."""
        return sum(state in ("done", "refused") for state in self.steps.values())


class Board:
    """All orders, and notes about what happened to the processes."""

    def __init__(self, orders: list[str], step_ids: tuple[str, ...]) -> None:
        """Start with orders that nobody has submitted yet."""
        self.rows = {order: Row(order) for order in orders}
        self.step_ids = step_ids
        self.notes: list[str] = []
        self.begun_s = time.monotonic()
        self._changed = anyio.Event()

    def note(self, text: str) -> None:
        """Write down something that happened to a process."""
        self.notes.append(f"{self.elapsed_s:5.1f} s  {text}")
        self.touch()

    def touch(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begun_s

    @property
    def done_count(self) -> int:
        """Steps settled, of all orders."""
        return sum(row.done_count for row in self.rows.values())

    @property
    def running_count(self) -> int:
        """Steps that run now, as far as histories tell."""
        return sum(state == "running" for row in self.rows.values() for state in row.steps.values())

    @property
    def ended_count(self) -> int:
        """Runs that are terminal."""
        return sum(row.is_ended for row in self.rows.values())

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{self.ended_count} of {len(self.rows)} runs ended, {self.done_count} steps settled, "
            f"{self.running_count} running"
        )


class TableView:
    """A live table, for a terminal."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console

    async def run(self) -> None:
        """Show the board until cancelled."""
        with Live(console=self._console, get_renderable=self._render, refresh_per_second=REFRESH_HZ):
            await anyio.sleep_forever()

    def _render(self) -> RenderableType:
        board = self._board
        table = Table(title=f"orders, {board.elapsed_s:.1f} s", expand=False, pad_edge=False)
        for heading in ("order", "run", "status", *board.step_ids):
            table.add_column(heading)
        for row in self._shown_rows():
            states = [row.steps.get(step, "") for step in board.step_ids]
            table.add_row(row.order, row.run[:8], _styled(row.status), *(_styled(state) for state in states))
        notes = [Text(note, style="cyan", no_wrap=True, overflow="ellipsis") for note in board.notes[-NOTES_MAX:]]
        return Group(table, Text(board.summary), *notes)

    def _shown_rows(self) -> list[Row]:
        """Return the rows that fit; on a low terminal those that have ended make room for those that have not."""
        rows = list(self._board.rows.values())
        room = max(1, self._console.height - FRAME_LINES)
        leaving = [row for row in rows if row.is_ended][: max(0, len(rows) - room)]
        return [row for row in rows if row not in leaving][:room]


class PlainView:
    """Progress lines, for anything that is no terminal."""

    def __init__(self, board: Board, console: Console, *, every_s: float = 1.0) -> None:
        self._board = board
        self._console = console
        self._every_s = every_s

    async def run(self) -> None:
        """Print a line whenever something was noted, and one each second while anything changes."""
        board, noted, last = self._board, 0, ""
        while True:
            for note in board.notes[noted:]:
                self._console.print(note, highlight=False, markup=False, soft_wrap=True)
            noted = len(board.notes)
            if board.summary != last:
                last = board.summary
                self._console.print(f"{board.elapsed_s:5.1f} s  {last}", highlight=False, soft_wrap=True)
            with anyio.move_on_after(self._every_s):
                while len(board.notes) == noted:
                    await board.changed()


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))
