"""`python -m simulation`: play one scenario for a person to read, or soak."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from simulation.play import play
from simulation.scenario import make_scenario
from simulation.shrink import shrink, table
from simulation.soak import PROCESSES_MAX, RECORD, code_digest, commit_of, read_record, soak, write_record


@click.group()
def main() -> None:
    """Random scenarios of the whole service under faults, repeatable from a seed."""


@main.command("play")
@click.argument("seed", type=int)
@click.option("--shrink/--whole", "is_shrunk", default=True, help="Shorten a failing scenario before it is shown.")
def play_one(seed: int, is_shrunk: bool) -> None:
    """Play the scenario of SEED and print its steps; the exit code is 1 when a rule is broken."""

    async def body() -> bool:
        played = await play(make_scenario(seed))
        if played.broken is not None and is_shrunk:
            played = await shrink(played)
        click.echo(table(played))
        click.echo(f"digest {played.digest}")
        return played.broken is None

    sys.exit(0 if asyncio.run(body()) else 1)


@main.command("soak")
@click.option("--seeds", default=2_000, show_default=True, help="Scenarios to play at most.")
@click.option("--minutes", default=30.0, show_default=True, help="Minutes to play at most.")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, PROCESSES_MAX))
@click.option("--record", "path", default=RECORD, type=click.Path(path_type=Path), help="Where what was done is kept.")
def soak_more(seeds: int, minutes: float, processes: int, path: Path) -> None:
    """Go on with the soak after the last seed done, and record it; the exit code is 1 when a scenario fails."""
    record = read_record(path)
    entry = record.entry_of(code_digest(), commit_of())
    begun_at = entry.done

    def on_slice(seconds: float) -> None:
        write_record(path, record)
        pace = (entry.done - begun_at) / max(seconds, 0.001)
        click.echo(
            f"seed {entry.last}: {entry.done} done with this code, {len(entry.failed)} failed, {pace:.1f} a second"
        )

    soak(record, entry, seeds=seeds, minutes=minutes, processes=processes, on_slice=on_slice)
    for seed, sentence in entry.failed.items():
        click.echo(f"FAILED seed {seed}: {sentence}\n  python -m simulation play {seed}")
    sys.exit(1 if entry.failed else 0)


if __name__ == "__main__":
    main()
