"""`python -m perf`: run the workloads, show the figures, and record them when asked to."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
from rich.console import Console

from perf.harness import Measurement, Pace, measure_all
from perf.report import PAGE, RESULTS, look_before, next_path, print_report, scene, write_report, write_summary
from perf.workloads import WORKLOADS, workload_named
from topology.check import clear_store

CONSOLE_CHARS = 150
TINY = Pace(warm_s=0.2, seconds=1.0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument("--seconds", type=float, default=Pace().seconds, help="seconds that count, each (%(default)s)")
    parser.add_argument("--warm", type=float, default=Pace().warm_s, help="seconds before them (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a second each: whether it runs, not how fast it is")
    parser.add_argument("--only", action="append", metavar="WORKLOAD", help="this workload; may be repeated")
    parser.add_argument("--store", help="another store than an embedded one in a temporary folder, such as fdb:PATH")
    parser.add_argument("--record", action="store_true", help=f"write the next numbered file of {RESULTS.name}/")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the harness and return the exit code: 1 when anything offered was not accepted and completed."""
    options = _parser().parse_args(arguments)
    pace = TINY if options.tiny else Pace(warm_s=options.warm, seconds=options.seconds)
    workloads = WORKLOADS if not options.only else tuple(workload_named(name) for name in options.only)
    folder = Path(tempfile.mkdtemp(prefix="ryusen-perf-"))

    before = look_before(folder)
    # On a shared store the run has keys of its own, which go when it ends.
    prefix = f"perf-{secrets.token_hex(4)}/" if options.store else ""

    async def run() -> list[Measurement]:
        try:
            return await measure_all(workloads, folder, pace, store=options.store, settings={"key_prefix": prefix})
        finally:
            if options.store:
                await clear_store(options.store, prefix=prefix)

    try:
        found = anyio.run(run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # The kind of store is part of the record; where it lies on this machine is not.
    engine = options.store.partition(":")[0] if options.store else "embedded"
    report = scene(engine, {}, pace, before, found)
    print_report(report, Console(width=None if sys.stdout.isatty() else CONSOLE_CHARS))
    if options.record:
        path = next_path(RESULTS, report.commit)
        write_report(report, path)
        write_summary(report, path.name, PAGE)
        sys.stdout.write(f"recorded as {path}\n")
    return 1 if any(sum(m.errors.values()) + m.unfinished for m in found) else 0


if __name__ == "__main__":
    sys.exit(main())
