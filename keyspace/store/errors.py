"""What a store can answer instead of a result, as FoundationDB names and numbers it.

Every adapter raises these and only these from reads, commits and watches. The families decide what a caller does:

    StoreError
    +-- RetryableError            run the transaction again from the start
    |   +-- NotCommitted          1020: a conflict; nothing was written
    |   +-- TransactionTooOld     1007: read version older than 5 s; nothing was written
    |   +-- FutureVersion         1009
    |   +-- ProcessBehind         1037
    |   +-- BatchThrottled        1051, TagThrottled 1213
    |   +-- CommitUnknownResult   1021 (and 1039 cluster_version_changed): it may have committed; not in flight any more
    +-- OutcomeUnknownError       1031, 1101, a cancelled commit: may have committed or may commit later; never retried blindly
    +-- LimitError                2101, 2102, 2103, 2004: what was asked can never be stored
    +-- UsageError                1036, 1025, 2000..: a defect in the caller
    +-- StoreUnavailableError     the store cannot be opened or reached; the message names the remedy

Source: apple/foundationdb documentation/sphinx/source/api-error-codes.rst.
"""

from __future__ import annotations

__all__ = [
    "AccessedUnreadable",
    "BatchThrottled",
    "CommitUnknownResult",
    "FutureVersion",
    "InvertedRange",
    "KeyOutsideLegalRange",
    "KeyTooLarge",
    "LimitError",
    "NotCommitted",
    "OutcomeUnknownError",
    "ProcessBehind",
    "RetryableError",
    "StoreError",
    "StoreUnavailableError",
    "TooManyWatches",
    "TransactionCancelled",
    "TransactionTimedOut",
    "TransactionTooLarge",
    "TransactionTooOld",
    "UsageError",
    "UsedDuringCommit",
    "ValueTooLarge",
    "error_for_code",
]


class StoreError(Exception):
    """The store refused or failed a request."""

    code: int = 4000

    def __init__(self, message: str | None = None, *, code: int | None = None) -> None:
        """Carry FoundationDB's error `code` and a sentence."""
        if code is not None:
            self.code = code
        super().__init__(message or (type(self).__doc__ or "").strip())

    def __str__(self) -> str:
        """Return the sentence with the code."""
        return f"{self.args[0]} code={self.code}"


class RetryableError(StoreError):
    """The transaction may be run again from its start."""

    maybe_committed = False


class NotCommitted(RetryableError):
    """Another transaction wrote what this one read; nothing was written."""

    code = 1020


class TransactionTooOld(RetryableError):
    """The transaction's read version is older than the store keeps; nothing was written."""

    code = 1007


class FutureVersion(RetryableError):
    """The store has not caught up with the requested read version."""

    code = 1009


class ProcessBehind(RetryableError):
    """A storage process is behind."""

    code = 1037


class BatchThrottled(RetryableError):
    """The store throttles this transaction's priority or tag."""

    code = 1051


class CommitUnknownResult(RetryableError):
    """The transaction may or may not have committed, and is no longer in flight."""

    code = 1021
    maybe_committed = True


class OutcomeUnknownError(StoreError):
    """The commit may have happened or may still happen; read the receipt before deciding anything."""


class TransactionTimedOut(OutcomeUnknownError):
    """The transaction's own time limit passed."""

    code = 1031


class LimitError(StoreError):
    """What was asked can never be stored."""


class TransactionTooLarge(LimitError):
    """The transaction exceeds the byte limit."""

    code = 2101


class KeyTooLarge(LimitError):
    """A key exceeds 10,000 bytes."""

    code = 2102


class ValueTooLarge(LimitError):
    """A value exceeds 100,000 bytes."""

    code = 2103


class KeyOutsideLegalRange(LimitError):
    """A key lies in the system's own range, from 0xff."""

    code = 2004


class UsageError(StoreError):
    """The transaction was used in a way the store never allows."""


class AccessedUnreadable(UsageError):
    """A read touched what a versionstamped operation of the same transaction wrote."""

    code = 1036


class TransactionCancelled(UsageError):
    """The transaction was cancelled or has already ended."""

    code = 1025


class UsedDuringCommit(UsageError):
    """An operation was issued while a commit was outstanding."""

    code = 2017


class InvertedRange(UsageError):
    """A range begins after its end."""

    code = 2005


class TooManyWatches(StoreError):
    """This connection holds as many watches as it may."""

    code = 1032


class StoreUnavailableError(StoreError):
    """The store cannot be opened or reached."""

    code = 1515


_BY_CODE: dict[int, type[StoreError]] = {
    cls.code: cls
    for cls in (
        NotCommitted,
        TransactionTooOld,
        FutureVersion,
        ProcessBehind,
        BatchThrottled,
        CommitUnknownResult,
        TransactionTimedOut,
        TransactionTooLarge,
        KeyTooLarge,
        ValueTooLarge,
        KeyOutsideLegalRange,
        AccessedUnreadable,
        TransactionCancelled,
        UsedDuringCommit,
        InvertedRange,
        TooManyWatches,
    )
}
_BY_CODE[1039] = CommitUnknownResult
_BY_CODE[1213] = BatchThrottled
_BY_CODE[1101] = OutcomeUnknownError


def error_for_code(code: int, description: str = "") -> StoreError:
    """Return the exception for FoundationDB's error `code`, keeping the code; an unmapped one is a plain StoreError."""
    cls = _BY_CODE.get(code, StoreError)
    return cls(description or None, code=code)
