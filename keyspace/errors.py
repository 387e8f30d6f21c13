"""What the keyspace refuses, by family (HOUSE 7).

    KeyspaceError
    +-- Refusal            the caller's mistake or a rule that says no: typed, precise, nothing mutated, never retried as it is
    +-- BudgetExceeded     a transaction would leave its byte budget: a defect, raised before the write is added
    +-- CorruptRecord      a stored value cannot be what its key says: evidence, never guessed around
    +-- UnknownVersion     a record or keyspace written by a newer release
    +-- IllegalEdge        a state machine was asked for an edge it does not have: a defect

Every error has a stable `code`, one constant sentence, and details that hold the ids, the actual value and the limit.
"""

from __future__ import annotations

__all__ = ["BudgetExceeded", "CorruptRecord", "IllegalEdge", "KeyspaceError", "Refusal", "UnknownVersion"]

Detail = str | int | float | bool | None


class KeyspaceError(Exception):
    """The keyspace refused or failed a request."""

    def __init__(self, code: str, message: str, **details: Detail) -> None:
        """Carry a stable `code`, a constant sentence and its details."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def __str__(self) -> str:
        """Return the sentence with its details as key=value pairs."""
        pairs = " ".join(f"{key}={value!r}" for key, value in self.details.items())
        return f"{self.message} [{self.code}]" + (f" {pairs}" if pairs else "")


class Refusal(KeyspaceError):
    """A command is refused and nothing was mutated."""


class BudgetExceeded(KeyspaceError):
    """A transaction would leave its byte budget."""

    def __init__(self, **details: Detail) -> None:
        """Name what was charged and the allowance."""
        super().__init__("budget_exceeded", "The transaction would exceed its byte allowance.", **details)


class CorruptRecord(KeyspaceError):
    """A stored value cannot be decoded as what its key says."""

    def __init__(self, **details: Detail) -> None:
        """Name the key and what was wrong."""
        super().__init__("corrupt_record", "A stored value is not the record its key promises.", **details)


class UnknownVersion(KeyspaceError):
    """A record was written by a newer release."""

    def __init__(self, **details: Detail) -> None:
        """Name the record, its version and the newest version this release reads."""
        super().__init__(
            "unknown_version", "A record was written by a newer release; upgrade this process first.", **details
        )


class IllegalEdge(KeyspaceError):
    """A state machine has no such edge."""

    def __init__(self, machine: str, state: str, event: str) -> None:
        """Name the machine, the state and the event."""
        super().__init__(
            "illegal_edge", "The state machine has no such edge.", machine=machine, state=state, event=event
        )
