"""Server-sent events of a run's history, line by line, and when to connect again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ryusen.errors import InvalidValue
from ryusen.protocol.values import decode_value

__all__ = ["FAILURES_MAX", "Following"]

FAILURES_MAX = 8
"""Connections in a row that bring nothing new before following is given up."""
LINES_MAX = 1_000
"""Lines of one event; more is not a history entry."""

END_EVENT = "end"
"""The event name by which the service says that the run's history is complete."""


@dataclass
class Following:
    """Follows one history: feed it lines, ask it where to go on after a connection has ended.

    Attributes:
        after: the ordinal of the last entry seen.
        is_over: whether nothing more will come.
        failures: connections in a row that failed and brought nothing.
    """

    after: int
    is_over: bool = False
    failures: int = 0
    _data: list[str] = field(default_factory=list)
    _event: str = ""
    _id: str = ""
    _is_fruitful: bool = False

    def line(self, line: str) -> Any:
        """Take one line without its end; return a history entry when it completes one, else None."""
        if line:
            # A comment is a sign of life, sent by a stream that has stood for a while.
            self._is_fruitful = True
            self._field(line)
            return None
        data, event, event_id = "\n".join(self._data), self._event, self._id
        self._data, self._event, self._id = [], "", ""
        if event == END_EVENT:
            self.is_over = True
            return None
        if not data:
            return None
        if event_id.isascii() and event_id.isdigit():
            if int(event_id) <= self.after:
                return None  # seen before the connection broke
            self.after = int(event_id)
        try:
            return decode_value(data.encode())
        except InvalidValue as exc:
            return {"ordinal": self.after, "unreadable": str(exc)}

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and len(self._data) < LINES_MAX:
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self._id = value

    def ended(self) -> None:
        """A connection has ended without the word that the history is complete: the server restarts, or the line broke."""
        self._data, self._event, self._id = [], "", ""
        self.failures = 0 if self._is_fruitful else self.failures + 1
        self._is_fruitful = False
