"""The simulation itself: the same seed is the same scenario everywhere, failures are found and made short, the soak goes on."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from keyspace.lifecycle import RUN, Phase, RunEvent
from keyspace.records.event import NoMatch, Operation
from keyspace.transitions import accept_event, expand_event, invoke_function, lose_lease
from simulation import soak as soaking
from simulation.__main__ import main
from simulation.coverage import edges_noticed
from simulation.play import play
from simulation.scenario import MOVES, Draws, make_scenario
from simulation.shrink import shrink, table

TESTS = Path(__file__).parents[1]
SEEDS = range(9_001, 9_006)
PLANTED_SEEDS_MAX = 60

_DIGESTS = f"""
import asyncio
from simulation.play import play
from simulation.scenario import make_scenario
for seed in range({SEEDS.start}, {SEEDS.stop}):
    print(asyncio.run(play(make_scenario(seed))).digest)
"""


async def test_a_seed_is_the_same_scenario_in_every_process() -> None:
    """A failing seed is worth nothing unless it fails again: whatever the order of sets, and in one process or another."""
    here = [(await play(make_scenario(seed))).digest for seed in SEEDS]
    assert len(set(here)) == len(SEEDS), "a digest that is always the same tells nothing"
    path = os.pathsep.join((str(TESTS), *sys.path))
    for hash_seed in ("0", "4711"):
        asked = await anyio.run_process(
            [sys.executable, "-c", _DIGESTS], env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        )
        assert asked.stdout.decode().split() == here


def test_a_choice_stays_while_other_candidates_come_and_go() -> None:
    """What the shrinker rests on: taking something away changes only the choices that fell on it."""
    names = [f"w{number}" for number in range(20)]
    chosen = Draws(1, "move").choose(names, str)
    others = [name for name in names if name != chosen]
    for gone in others:
        assert Draws(1, "move").choose([name for name in names if name != gone], str) == chosen
    assert Draws(1, "move").choose(others, str) != chosen


async def test_a_planted_fault_is_found_and_told_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost effect that is dispatched again (FILLED-IN 10, C6) is found, and shrinks to a trace that a person can read."""
    monkeypatch.setattr(lose_lease, "may_redeliver", lambda run, item, attempt: run.stop is None)
    for seed in range(1, PLANTED_SEEDS_MAX):
        played = await play(make_scenario(seed))
        if played.broken is not None:
            break
    else:
        raise AssertionError("the planted fault was never found")
    short = await shrink(played)
    assert short.broken is not None and short.broken.rule == played.broken.rule
    assert len(short.scenario.moves) <= 15 < MOVES
    again = await play(short.scenario)
    assert again.digest == short.digest
    told = table(short)
    assert "BROKEN" in told and "a worker starts" in told
    assert len(told.splitlines()) == len(short.trace) + 2


def _nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> NoMatch:
        return NoMatch.FUNCTION

    monkeypatch.setattr(expand_event, "find_target", nothing)


def _keys_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoke_function, "claim_of", lambda _, key: accept_event.claim_of(Operation.EVENT_SUBMIT, key))


def _one_content_is_as_good_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoke_function, "invocation_fingerprint", lambda _: "1:same")


@pytest.mark.parametrize(
    ("plant", "rules"),
    [
        (_nothing_is_found, {"an acknowledged invocation is answered", "fsck C2"}),
        (_keys_are_shared, {"an invocation is not refused", "fsck C11"}),
        (_one_content_is_as_good_as_another, {"one key one content"}),
    ],
    ids=["nothing is found", "keys are shared", "one content is as good as another"],
)
async def test_a_fault_of_direct_invocations_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], rules: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said of invocations can be found broken: RFD 2, "An operator or a tool may start one function directly"."""
    plant(monkeypatch)
    for seed in range(1, PLANTED_SEEDS_MAX):
        played = await play(make_scenario(seed))
        if played.broken is not None:
            break
    assert played.broken is not None and played.broken.rule in rules


async def test_edges_are_noticed_and_the_tables_left_as_they_were() -> None:
    """A scenario must not change the machines it looks at."""
    before = {state: dict(edges) for state, edges in RUN.items()}
    seen: Counter[str] = Counter()
    with edges_noticed(seen):
        assert RUN[Phase.RUNNING][RunEvent.COMPLETED] is Phase.TERMINAL
    assert seen == {"edge: run, running: completed": 1}
    assert before == RUN and all(type(edges) is dict for edges in RUN.values())


def test_the_soak_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts for the code it was played with; new code goes on with new seeds and counts from nothing."""
    path = tmp_path / "soak.json"
    asked = ["soak", "--seeds", "3", "--record", str(path)]
    for expected_last in (soaking.FIRST_SEED + 2, soaking.FIRST_SEED + 5):
        done = CliRunner().invoke(main, asked)
        assert done.exit_code == 0, done.output
        (entry,) = soaking.read_record(path).entries
        assert (entry.first, entry.last, entry.failed) == (soaking.FIRST_SEED, expected_last, {})
        assert entry.code == soaking.code_digest()
    record = soaking.read_record(path)
    later = record.entry_of("other code", "abc")
    assert (later.first, later.done) == (soaking.FIRST_SEED + 6, 0)
