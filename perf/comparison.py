"""A paired run as a record on disk, as a table for people and as one for perf/README.md."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from perf.paired import FIGURES, Pair, TopFunctions
from perf.report import Scene

__all__ = ["COMPARISON_BEGIN", "COMPARISON_END", "Comparison", "comparison_lines", "print_comparison"]

COMPARISON_BEGIN = "<!-- newest comparison -->"
COMPARISON_END = "<!-- end of newest comparison -->"


class Comparison(Scene, frozen=True, kw_only=True):
    """Everything a paired run measured, and where.

    Attributes:
        one: the first variant, in words.
        other: the second.
        rounds: slices of each workload on each.
        pairs: one for each workload.
        profiles: by process of the first variant, where its time went.
    """

    one: str
    other: str
    rounds: int
    pairs: list[Pair]
    profiles: Mapping[str, TopFunctions]


def comparison_lines(found: Comparison, name: str) -> list[str]:
    """Return a comparison as the lines of tables for perf/README.md."""
    lines = [
        f"`results/{name}`: {found.one}, against {found.other}; {found.rounds} slices of {found.pace.seconds:g} s of each in turns. "
        f"{found.place()} A ratio is the median of the rounds' own.",
        "",
        "| workload | figure | with | against | ratio |",
        "|---|---|---|---|---|",
    ]
    for pair in found.pairs:
        title = f"{pair.one.workload.name} (others {pair.one.others_cores:.2f} and {pair.other.others_cores:.2f})"
        for figure, of_one, of_other, ratio in _rows(pair):
            lines.append(f"| {title} | {figure} | {of_one} | {of_other} | {ratio} |")
            title = ""
    for process, top in found.profiles.items():
        functions = ", ".join(f"`{name}` {share:.1%}" for name, share in top.functions)
        lines += ["", f"{process}, own time, the top {len(top.functions)} of {top.samples} samples: {functions}."]
    return lines


def print_comparison(found: Comparison, console: Console) -> None:
    """Show the figures."""
    console.print(f"{found.one}, against {found.other}. {found.place()}", highlight=False)
    table = Table(title="Both variants, and the medians of the rounds' ratios")
    for heading in ("workload", "figure", "with", "against", "ratio"):
        table.add_column(heading, justify="left" if heading in ("workload", "figure") else "right")
    for pair in found.pairs:
        title = pair.one.workload.name
        for figure, of_one, of_other, ratio in _rows(pair):
            table.add_row(title, figure, of_one, of_other, ratio)
            title = ""
    console.print(table)
    for process, top in found.profiles.items():
        shown = Table(title=f"{process}: own time of {top.samples} samples")
        shown.add_column("function")
        shown.add_column("share", justify="right")
        for name, share in top.functions:
            shown.add_row(name, f"{share:.1%}")
        console.print(shown)


def _rows(pair: Pair) -> list[tuple[str, str, str, str]]:
    rows = []
    for name, figure in FIGURES:
        ratio = pair.ratio(name)
        of_one, of_other = figure(pair.one), figure(pair.other)
        if of_one is not None or of_other is not None:
            rows.append((name, _shown(of_one), _shown(of_other), "" if ratio is None else f"{ratio:.2f}"))
    return rows


def _shown(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.2f}"
