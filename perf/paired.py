"""Two variants side by side: each workload in turns on both, A B A B, so that what else the machine does meets both alike.

Only ratios are the point. A ratio is made of two slices that follow each other; the figure told is the median of the rounds'.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from perf.harness import ROOT, Site, Variant, grouped, measure_slice, open_site
from perf.measurement import Measurement, Pace, Slice, combined
from perf.profile import PROFILED, Profile, read_profiles, sampler
from perf.workloads import Workload
from topology.tables import Role

__all__ = ["FIGURES", "Pair", "TopFunctions", "measure_pairs", "variant_of"]

ROUNDS_MAX = 20
TOP_FUNCTIONS = 20
PROFILE_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One workload on both variants.

    Attributes:
        one: the figures of the first variant, all rounds together.
        other: the figures of the second.
        ratios: by figure, the first's divided by the second's, one for each round.
    """

    one: Measurement
    other: Measurement
    ratios: Mapping[str, list[float]]

    def ratio(self, figure: str) -> float | None:
        """Return the median of a figure's ratios; None when no round had both."""
        found = self.ratios.get(figure)
        return statistics.median(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopFunctions:
    """Where one process's time went.

    Attributes:
        samples: how many.
        areas: by part of the system, the share of its own samples.
        functions: the costliest functions by own time, each with its share.
    """

    samples: int
    areas: Mapping[str, float] = field(default_factory=dict)
    functions: list[tuple[str, float]] = field(default_factory=list)


FIGURES: tuple[tuple[str, Callable[[Measurement], float | None]], ...] = (
    ("runs a second", lambda found: found.completed_per_s if found.run_ms else found.acknowledged_per_s),
    ("p50 ms", lambda found: (found.run_ms or found.acknowledgement_ms).p50),
    ("p95 ms", lambda found: (found.run_ms or found.acknowledgement_ms).p95),
    ("p99 ms", lambda found: (found.run_ms or found.acknowledgement_ms).p99),
    ("transactions", lambda found: _a_unit(found, sum(use.get("commits", 0.0) for use in found.transitions.values()))),
    ("processor ms", lambda found: _a_unit(found, 1_000 * sum(found.cpu_s.values()))),
    *(
        (f"{role} ms", lambda found, name=f"{role}-0": _a_unit(found, 1_000 * found.cpu_s.get(name, 0.0)))
        for role in Role
    ),
)
"""What is compared, by name: rates, latencies, and what one run costs, over all processes but the load's and by process."""


def _a_unit(found: Measurement, value: float) -> float | None:
    return value / found.units if found.units and value else None


def variant_of(words: Sequence[str]) -> Variant:
    """Return the variant that words of the command line name: a checkout's folder, or settings as NAME=VALUE.

    Raises:
        ValueError: neither.
    """
    settings: dict[str, str] = {}
    checkout = ROOT
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            settings[name] = value
        elif (Path(word) / "keyspace").is_dir():
            checkout = Path(word).resolve()
        else:
            raise ValueError(f"{word!r} is neither NAME=VALUE nor a folder with a checkout of the project")
    named = [f"{name}={value}" for name, value in settings.items()]
    return Variant(
        name=", ".join([*named, *(["another checkout"] if checkout != ROOT else [])]),
        settings=settings,
        checkout=checkout,
    )


async def measure_pairs(
    workloads: Iterable[Workload],
    folder: Path,
    pace: Pace,
    variants: tuple[Variant, Variant],
    *,
    rounds: int,
    store: str | None = None,
    profiles: bool = False,
) -> tuple[list[Pair], dict[str, TopFunctions]]:
    """Measure every workload on both variants in turns, and where the first one's time goes.

    Both variants' processes live all the time: idle ones cost a few thousandths of a processor.

    Args:
        workloads: rows of the table.
        folder: private; logs and the embedded stores.
        pace: how long each slice is.
        variants: the two.
        rounds: slices of each variant and workload, 1 to 20.
        store: another store's address; the variants' settings must then tell their keys apart.
        profiles: whether to sample each process of the first variant, in a slice of its own that counts for nothing else.
    """
    assert 1 <= rounds <= ROUNDS_MAX, rounds
    pairs: list[Pair] = []
    tops: dict[str, TopFunctions] = {}
    for number, (name, group) in enumerate(grouped(workloads)):
        async with AsyncExitStack() as stack:
            one, other = [
                await stack.enter_async_context(
                    open_site(name, folder / f"{number}-{name}-{letter}", store=store, variant=variant)
                )
                for letter, variant in zip("ab", variants, strict=True)
            ]
            for workload in group:
                taken = [
                    (await measure_slice(one, workload, pace), await measure_slice(other, workload, pace))
                    for _ in range(rounds)
                ]
                pairs.append(_pair(workload, taken))
                if profiles and workload.name == PROFILED:
                    tops |= await _profiled(one, workload, pace, folder / "stacks")
    return pairs, tops


def _pair(workload: Workload, taken: list[tuple[Slice, Slice]]) -> Pair:
    ratios: dict[str, list[float]] = {}
    for slices in taken:
        mine, theirs = (combined(workload, [one]) for one in slices)
        for name, figure in FIGURES:
            above, below = figure(mine), figure(theirs)
            if above is not None and below:
                ratios.setdefault(name, []).append(round(above / below, 4))
    return Pair(
        one=combined(workload, [mine for mine, _ in taken]),
        other=combined(workload, [theirs for _, theirs in taken]),
        ratios=ratios,
    )


async def _profiled(site: Site, workload: Workload, pace: Pace, place: Path) -> dict[str, TopFunctions]:
    await anyio.Path(place).mkdir()
    seconds = min(PROFILE_S, pace.seconds)
    beside = sampler(place, list(Role), seconds, after_s=pace.warm_s, native_lock_only=True)
    await measure_slice(site, workload, pace, beside=beside)
    return {name: _top(profile) for name, profile in read_profiles(place).items()}


def _top(profile: Profile) -> TopFunctions:
    total = max(profile.sample_count, 1)
    return TopFunctions(
        samples=profile.sample_count,
        areas={area: round(count / total, 4) for area, count in profile.areas.most_common()},
        functions=[(name, round(count / total, 4)) for name, count in profile.own.most_common(TOP_FUNCTIONS)],
    )
