"""What the transactions of each transition cost: counts, sizes and latencies, kept in memory and read as a snapshot.

The runner observes; the performance harness and the Prometheus exporter read `snapshot`, so both see the same numbers.
The transition's name is the only label there is. Nothing here performs input or output or knows an event loop; one
meter belongs to one event loop and is not locked.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from keyspace.store.errors import NotCommitted, StoreError

__all__ = [
    "LATENCY_BOUNDS_MS",
    "NAMES_MAX",
    "NO_COUNTS",
    "OTHER_TRANSITION",
    "CountedTransaction",
    "Histogram",
    "Meter",
    "TransactionCounts",
    "TransitionFigures",
]

LATENCY_BOUNDS_MS: tuple[float, ...] = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Upper bounds, included, of the latency buckets; one more bucket holds what is above the last."""

NAMES_MAX = 256
"""Distinct transition names kept apart; there are some tens of transitions, so more names mean a defect."""

OTHER_TRANSITION = "other"
"""Where names beyond NAMES_MAX are counted, so that the defect shows and memory stays bounded."""


class TransactionCounts(NamedTuple):
    """What one attempt asked of the store."""

    read_count: int
    """Point and range reads issued."""
    write_count: int
    """Sets, clears, atomic operations and versionstamped sets."""
    size_bytes: int
    """Size as FoundationDB accounts it (ARCHITECTURE 5)."""


NO_COUNTS = TransactionCounts(0, 0, 0)


class CountedTransaction(Protocol):
    """What an adapter's transaction may offer besides the port, when it knows the numbers without asking anybody."""

    def counts(self) -> TransactionCounts:
        """Return what the attempt has asked for so far, at the cost of building the tuple."""
        ...


@dataclass(slots=True)
class Histogram:
    """Counts in fixed buckets, with the sum, as Prometheus wants them."""

    bucket_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    """Observations in each bucket of LATENCY_BOUNDS_MS (not cumulative); the last bucket has no upper bound."""
    sum_ms: float = 0.0
    observation_count: int = 0

    def observe(self, latency_ms: float) -> None:
        """Count one latency."""
        self.bucket_counts[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += 1
        self.sum_ms += latency_ms
        self.observation_count += 1

    def quantile_ms(self, quantile: float) -> float:
        """Return the upper bound of the bucket that holds `quantile` (0 to 1): 0.0 without observations, inf above."""
        wanted = quantile * self.observation_count
        if wanted <= 0:
            return 0.0
        seen = 0
        for bound_ms, count in zip(LATENCY_BOUNDS_MS, self.bucket_counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound_ms
        return float("inf")

    def copy(self) -> Histogram:
        """Return an independent copy."""
        return Histogram(list(self.bucket_counts), self.sum_ms, self.observation_count)


@dataclass(slots=True)
class TransitionFigures:
    """Everything counted under one transition's name since the meter was made."""

    attempt_count: int = 0
    """Attempts begun, the first ones included."""
    commit_count: int = 0
    """Attempts that committed and said so."""
    conflict_count: int = 0
    """Attempts that failed with NotCommitted."""
    unknown_count: int = 0
    """Attempts whose outcome nobody told: unknown results, time-outs and cancellations while committing."""
    failure_count: int = 0
    """Runs ended by an exception of the body or by an error that is never retried."""
    exhausted_count: int = 0
    """Runs given up because the retry policy's bounds were reached."""
    retries_by_code: dict[int, int] = field(default_factory=dict)
    """Attempts that failed and may be run again, by FoundationDB's error code."""
    size_bytes: int = 0
    """Bytes of committed attempts, as FoundationDB accounts them; 0 where the adapter does not say."""
    read_count: int = 0
    """Reads issued by all attempts."""
    write_count: int = 0
    """Writes issued by all attempts."""
    run_latency: Histogram = field(default_factory=Histogram)
    """From the first attempt's begin to the answer, retries and backoff included, of runs that committed."""
    commit_latency: Histogram = field(default_factory=Histogram)
    """The commit alone, of attempts that committed."""

    def copy(self) -> TransitionFigures:
        """Return an independent copy."""
        return TransitionFigures(
            self.attempt_count,
            self.commit_count,
            self.conflict_count,
            self.unknown_count,
            self.failure_count,
            self.exhausted_count,
            dict(self.retries_by_code),
            self.size_bytes,
            self.read_count,
            self.write_count,
            self.run_latency.copy(),
            self.commit_latency.copy(),
        )


class Meter:
    """Figures by transition name."""

    def __init__(self) -> None:
        self._figures: dict[str, TransitionFigures] = {}

    def observe_attempt(self, name: str, counts: TransactionCounts) -> None:
        """Count one attempt that has ended, however it ended, with what it asked of the store."""
        figures = self._of(name)
        figures.attempt_count += 1
        figures.read_count += counts.read_count
        figures.write_count += counts.write_count

    def observe_commit(self, name: str, *, size_bytes: int, commit_ms: float, run_ms: float) -> None:
        """Count a commit, the time it took and the time of the whole run it ends."""
        figures = self._of(name)
        figures.commit_count += 1
        figures.size_bytes += size_bytes
        figures.commit_latency.observe(commit_ms)
        figures.run_latency.observe(run_ms)

    def observe_retry(self, name: str, error: StoreError, *, maybe_committed: bool) -> None:
        """Count an attempt that failed with a retryable `error`."""
        figures = self._of(name)
        figures.retries_by_code[error.code] = figures.retries_by_code.get(error.code, 0) + 1
        figures.conflict_count += isinstance(error, NotCommitted)
        figures.unknown_count += maybe_committed

    def observe_unknown(self, name: str) -> None:
        """Count a run that ended while its commit was under way and may still land."""
        self._of(name).unknown_count += 1

    def observe_failure(self, name: str) -> None:
        """Count a run ended by an exception that is not retried."""
        self._of(name).failure_count += 1

    def observe_exhausted(self, name: str) -> None:
        """Count a run given up at the bounds of its retry policy."""
        self._of(name).exhausted_count += 1

    def snapshot(self) -> dict[str, TransitionFigures]:
        """Return a copy of all figures, by transition name."""
        return {name: figures.copy() for name, figures in self._figures.items()}

    def _of(self, name: str) -> TransitionFigures:
        figures = self._figures.get(name)
        if figures is None:
            if len(self._figures) >= NAMES_MAX:
                name = OTHER_TRANSITION
            figures = self._figures.setdefault(name, TransitionFigures())
        return figures
