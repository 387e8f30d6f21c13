"""`python -m perf`: run the workloads, show the figures, and record them when asked to.

With `--against`, the named workloads run in turns as the project is and as the words say: another value of a setting
(`continuation=off`) or another checkout's folder. One record holds both and their ratios.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
from rich.console import Console

from perf.comparison import COMPARISON_BEGIN, COMPARISON_END, Comparison, comparison_lines, print_comparison
from perf.harness import DEFAULT, Variant, measure_all
from perf.measurement import Measurement, Pace
from perf.paired import Pair, TopFunctions, measure_pairs, variant_of
from perf.report import (
    PAGE,
    RESULTS,
    SUMMARY_BEGIN,
    SUMMARY_END,
    Report,
    Scene,
    look_before,
    next_path,
    print_report,
    scene,
    summary_lines,
    write_report,
    write_summary,
)
from perf.workloads import PAIRED, WORKLOADS, Workload, workload_named
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
    parser.add_argument("--against", action="append", metavar="WORD", help="NAME=VALUE or a checkout; may be repeated")
    parser.add_argument("--rounds", type=int, default=2, help="with --against: slices of each variant (%(default)s)")
    parser.add_argument("--no-profile", action="store_true", help="with --against: do not sample the processes")
    return parser


async def _measure(options: argparse.Namespace, folder: Path, pace: Pace) -> list[Measurement]:
    async with _apart(options.store, [DEFAULT]) as (variant,):
        return await measure_all(_workloads(options, WORKLOADS), folder, pace, store=options.store, variant=variant)


async def _compare(
    options: argparse.Namespace, folder: Path, pace: Pace, other: Variant
) -> tuple[list[Pair], dict[str, TopFunctions]]:
    async with _apart(options.store, [DEFAULT, other]) as variants:
        return await measure_pairs(
            _workloads(options, PAIRED),
            folder,
            pace,
            (variants[0], variants[1]),
            rounds=options.rounds,
            store=options.store,
            profiles=not options.no_profile,
        )


@asynccontextmanager
async def _apart(store: str | None, variants: Sequence[Variant]) -> AsyncIterator[list[Variant]]:
    """Give each variant keys of its own on a shared store, and remove them in the end; an embedded one is each one's alone."""
    if store is None:
        yield list(variants)
        return
    prefixes = [f"perf-{secrets.token_hex(4)}/" for _ in variants]
    try:
        yield [
            replace(variant, settings={**variant.settings, "key_prefix": prefix})
            for variant, prefix in zip(variants, prefixes, strict=True)
        ]
    finally:
        for prefix in prefixes:
            await clear_store(store, prefix=prefix)


def _workloads(options: argparse.Namespace, usual: tuple[Workload, ...]) -> tuple[Workload, ...]:
    return tuple(workload_named(name) for name in options.only) if options.only else usual


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the harness and return the exit code: 1 when anything offered was not accepted and completed."""
    options = _parser().parse_args(arguments)
    pace = TINY if options.tiny else Pace(warm_s=options.warm, seconds=options.seconds)
    other = variant_of(options.against) if options.against else None
    console = Console(width=None if sys.stdout.isatty() else CONSOLE_CHARS)
    folder = Path(tempfile.mkdtemp(prefix="ryusen-perf-"))
    try:
        # The kind of store is part of the record; where it lies on this machine is not.
        engine = options.store.partition(":")[0] if options.store else "embedded"
        place = partial(scene, store=engine, pace=pace, before=look_before(folder))
        if other is None:
            found = anyio.run(_measure, options, folder, pace)
            report = place(Report, settings={}, measurements=found)
            print_report(report, console)
            _record(options, report, partial(summary_lines, report), SUMMARY_BEGIN, SUMMARY_END)
        else:
            pairs, profiles = anyio.run(_compare, options, folder, pace, other)
            found = [measurement for pair in pairs for measurement in (pair.one, pair.other)]
            words = {"one": DEFAULT.name, "other": other.name, "rounds": options.rounds}
            comparison = place(Comparison, pairs=pairs, profiles=profiles, **words)
            print_comparison(comparison, console)
            _record(options, comparison, partial(comparison_lines, comparison), COMPARISON_BEGIN, COMPARISON_END)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if any(sum(m.errors.values()) + m.unfinished for m in found) else 0


def _record(options: argparse.Namespace, found: Scene, lines: Callable[[str], list[str]], begin: str, end: str) -> None:
    if options.record:
        path = next_path(RESULTS, found.commit)
        write_report(found, path)
        write_summary(lines(path.name), PAGE, begin=begin, end=end)
        sys.stdout.write(f"recorded as {path}\n")


if __name__ == "__main__":
    sys.exit(main())
