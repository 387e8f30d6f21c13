"""The workloads as a table (FILLED-IN 8): what is offered, to which topology, and what ends one unit of it."""

from __future__ import annotations

from dataclasses import dataclass

from perf.app import BINDINGS_MANY, EVENT_OF_BINDINGS, PIPELINE_EVENT

__all__ = ["PAIRED", "WORKLOADS", "Workload", "workload_named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One row.

    Attributes:
        name: how it is called in reports.
        matrix: the row of the workload matrix it is a part of.
        topology: by name, where it runs.
        event: what is submitted.
        concurrency: callers in a closed loop.
        keyed: whether submissions bear idempotency keys.
        awaits_run: whether a caller goes on only when the run has ended; else the acknowledgement is enough.
        payload_bytes: about how long the payload is, and each step's value.
        steps: steps of a run; 0 where runs are not executed.
    """

    name: str
    matrix: str
    topology: str
    event: str
    concurrency: int
    keyed: bool = False
    awaits_run: bool = False
    payload_bytes: int = 300
    steps: int = 0


SUBMIT_CONCURRENCY = 16
RUN_CONCURRENCIES = (1, 16, 64)
SHAPE_CONCURRENCY = 16


def _submissions(bindings: int, *, keyed: bool) -> Workload:
    return Workload(
        name=f"submit, {bindings} bindings{', keyed' if keyed else ''}",
        matrix="W1",
        topology="bare",
        event=EVENT_OF_BINDINGS[bindings],
        concurrency=SUBMIT_CONCURRENCY,
        keyed=keyed,
    )


def _runs(concurrency: int, *, steps: int = 3, payload_bytes: int = 300) -> Workload:
    shape = {1: "one-step", 3: "three-step", 20: "twenty-step"}[steps]
    size = "" if payload_bytes < 1_000 else f" of {payload_bytes // 1_000} kB"
    return Workload(
        name=f"{shape} runs{size}, {concurrency} at once",
        matrix="W2",
        topology="demo",
        event=PIPELINE_EVENT,
        concurrency=concurrency,
        awaits_run=True,
        payload_bytes=payload_bytes,
        steps=steps,
    )


WORKLOADS: tuple[Workload, ...] = (
    *(_submissions(bindings, keyed=keyed) for bindings in (0, 1, BINDINGS_MANY) for keyed in (False, True)),
    *(_runs(concurrency) for concurrency in RUN_CONCURRENCIES),
    *(_runs(SHAPE_CONCURRENCY, steps=steps) for steps in (1, 20)),
    *(_runs(SHAPE_CONCURRENCY, payload_bytes=size) for size in (10_000, 90_000)),
)
"""In the order in which they run; those of one topology stand together and share its processes."""

PAIRED = tuple(_runs(concurrency) for concurrency in RUN_CONCURRENCIES)
"""What is compared when nothing else is asked for."""

_BY_NAME = {workload.name: workload for workload in WORKLOADS}
assert len(_BY_NAME) == len(WORKLOADS), "names are unique"


def workload_named(name: str) -> Workload:
    """Return the workload of that name.

    Raises:
        LookupError: there is none.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise LookupError(f"there is no workload {name!r}; there are {', '.join(_BY_NAME)}") from None
