"""Where the time goes: `python -m perf.profile` samples a process under load with py-spy and ranks what it saw.

A sample belongs to the function that was running (own) and to each function on the stack (with callees). Idle threads are
not sampled. Areas group own samples by the part of the system the code is in, so that the ranking says whose the time is.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from perf.harness import Beside, measure_slice, open_site
from perf.measurement import Pace
from perf.workloads import workload_named
from topology.launcher import Launcher
from topology.tables import Role

__all__ = ["PROFILED", "Profile", "read_profiles", "read_samples", "sampler", "show_profile"]

RATE_HZ = 200
PROFILED = "three-step runs, 64 at once"
ROWS_SHOWN = 25
GRACE_S = 30.0
WARM_S = 2.0
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^():]+)(?::\d+)?\)")
_AREAS = (
    ("keyspace/store", "keyspace.store"),
    ("keyspace/transitions", "keyspace.transitions"),
    ("keyspace/queue", "keyspace.queue"),
    ("keyspace/records", "keyspace.records"),
    ("keyspace/", "keyspace"),
    ("services/dispatcher", "services.dispatcher"),
    ("services/lanes", "services.lanes"),
    ("services/fanout", "services.fanout"),
    ("services/gateway", "services.gateway"),
    ("services/runtime", "services.runtime"),
    ("ryusen/", "ryusen (SDK)"),
    ("perf/", "perf"),
    ("websockets/", "websockets"),
    ("uvicorn/", "uvicorn"),
    ("starlette/", "starlette"),
    ("anyio/", "anyio"),
    ("asyncio/", "asyncio"),
)


@dataclass(slots=True)
class Profile:
    """What was sampled.

    Attributes:
        sample_count: samples of threads that were not idle.
        own: by function, samples in which it was running.
        with_callees: by function, samples in which it was on the stack.
        areas: by part of the system, own samples.
    """

    sample_count: int = 0
    own: Counter[str] = field(default_factory=Counter)
    with_callees: Counter[str] = field(default_factory=Counter)
    areas: Counter[str] = field(default_factory=Counter)


def read_samples(lines: Iterable[str]) -> Profile:
    """Read collapsed stacks: frames from the outermost to the running one, by semicolons, then a count."""
    profile = Profile()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [_named(frame) for frame in stack.split(";") if frame]
        if not frames:
            continue
        samples = int(count)
        profile.sample_count += samples
        function, area = frames[-1]
        profile.own[function] += samples
        profile.areas[area] += samples
        for name in {name for name, _ in frames}:
            profile.with_callees[name] += samples
    return profile


def _named(frame: str) -> tuple[str, str]:
    """Return a frame's function, with the end of its path, and its area."""
    match = _FRAME.fullmatch(frame)
    if match is None:
        return frame, "(other)"
    path = match["file"]
    area = next((name for part, name in _AREAS if part in path), "(other)")
    return f"{match['function']} ({'/'.join(path.split('/')[-2:])})", area


def show_profile(profile: Profile, console: Console, title: str) -> None:
    """Print the areas and the functions, the costliest first."""
    total = max(profile.sample_count, 1)
    areas = Table(title=f"{title}: {profile.sample_count} samples, own time by area")
    areas.add_column("area")
    areas.add_column("share", justify="right")
    for area, samples in profile.areas.most_common():
        areas.add_row(area, f"{samples / total:.1%}")
    console.print(areas)
    for heading, counts in (("own time", profile.own), ("time with callees", profile.with_callees)):
        table = Table(title=f"{title}: {heading}")
        table.add_column("function")
        table.add_column("share", justify="right")
        for function, samples in counts.most_common(ROWS_SHOWN):
            table.add_row(function, f"{samples / total:.1%}")
        console.print(table)


def sampler(
    place: Path, roles: Sequence[Role], seconds: float, *, after_s: float = WARM_S, native_lock_only: bool = False
) -> Beside:
    """Return what samples a process of each of `roles` beside a load; the stacks are then in `place`, a file a process.

    Args:
        place: a folder that is there.
        roles: whose first process is sampled.
        seconds: for how long, at least 1.
        after_s: how long after the load's begin, such as its warm-up.
        native_lock_only: whether only what holds the interpreter's lock counts, so that waiting for disks does not.
    """

    async def sample(launcher: Launcher) -> None:
        await anyio.sleep(after_s)
        async with anyio.create_task_group() as group:
            for role in roles:
                group.start_soon(one, launcher, role, name=f"sample {role}")

    async def one(launcher: Launcher, role: Role) -> None:
        process = launcher.process(role)
        program = str(Path(sys.executable).with_name("py-spy"))
        command = [program, "record", "--pid", str(process.pid), "--duration", str(max(1, int(seconds)))]
        command += ["--rate", str(RATE_HZ), "--format", "raw", "--output", str(place / process.name)]
        command += ["--gil"] if native_lock_only else []
        with anyio.fail_after(seconds + GRACE_S):
            await anyio.run_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    return sample


def read_profiles(place: Path) -> dict[str, Profile]:
    """Return what a `sampler` left in `place`, by process."""
    return {path.name: read_samples(path.read_text("utf-8").splitlines()) for path in sorted(place.iterdir())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one workload, sample one process of it, print the ranking."""
    parser = argparse.ArgumentParser(prog="python -m perf.profile", description=__doc__)
    parser.add_argument("--workload", default=PROFILED, help="a row of the table (%(default)s)")
    parser.add_argument("--role", type=Role, default=Role.DISPATCHER, choices=list(Role), help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds sampled (%(default)s)")
    parser.add_argument(
        "--gil", action="store_true", help="only what holds the interpreter's lock: no waiting for disks"
    )
    parser.add_argument("--raw", type=Path, help="keep the collapsed stacks in this folder")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="ryusen-profile-"))
    raw: Path = options.raw or folder / "stacks"
    raw.mkdir(parents=True, exist_ok=True)

    async def run() -> None:
        workload = workload_named(options.workload)
        beside = sampler(raw, [options.role], options.seconds, native_lock_only=options.gil)
        async with open_site(workload.topology, folder / "site") as site:
            await measure_slice(site, workload, Pace(warm_s=WARM_S, seconds=options.seconds), beside=beside)

    try:
        anyio.run(run)
        profiles = read_profiles(raw)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, profile in profiles.items():
        show_profile(profile, Console(), f"{name} under {options.workload}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
