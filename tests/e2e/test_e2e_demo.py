"""The demo and the benchmarks as a newcomer runs them, and both from a fresh clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from rich.console import Console

from perf.comparison import COMPARISON_BEGIN, COMPARISON_END, Comparison, comparison_lines, print_comparison
from perf.figures import cpu_seconds, percentile, read_transitions, subtract, summary
from perf.harness import Variant, measure_all
from perf.measurement import Pace
from perf.paired import measure_pairs, variant_of
from perf.profile import read_samples, show_profile
from perf.report import (
    PAGE,
    RESULTS,
    SUMMARY_BEGIN,
    SUMMARY_END,
    Report,
    look_before,
    next_path,
    print_report,
    scene,
    summary_lines,
    write_report,
    write_summary,
)
from perf.workloads import WORKLOADS
from topology.process import clean_environment

ROOT = Path(__file__).parent.parent.parent
DEMO_S_MAX = 120.0
CLONE_S_MAX = 900.0
CLONE_VARIABLE = "RYUSEN_FRESH_CLONE"
CLONE_TESTS = ("tests/unit/sdk/test_sdk_examples.py", "tests/unit/services/runtime", "tests/e2e/test_e2e_cli.py")
"""What depends on the folder and its environment: files beside the code, commands that were installed, processes."""
TINY = Pace(warm_s=0.0, seconds=20.0, count_max=4)


async def _run(arguments: list[str], folder: Path, seconds_max: float) -> subprocess.CompletedProcess[bytes]:
    with anyio.fail_after(seconds_max):
        return await anyio.run_process(
            arguments, cwd=folder, env=clean_environment({}), stderr=subprocess.STDOUT, check=False
        )


async def test_the_demo_kills_a_dispatcher_and_completes_everything(tmp_path: Path) -> None:
    """Would catch a demo that no longer shows what the README promises."""
    done = await _run([sys.executable, "-m", "topology.demo"], ROOT, DEMO_S_MAX)
    told = done.stdout.decode()
    assert done.returncode == 0, told
    for words in ("killed with -9", "25 of 25 runs ended", "in words", "The function returned", "0 problems"):
        assert words in told
    assert "FAULT" not in told


async def test_the_demo_says_when_something_is_not_so(tmp_path: Path) -> None:
    """Would catch a demo that ends well whatever happened: here an order that no step can read."""
    orders = tmp_path / "orders.jsonl"
    line = {"sku": "A", "quantity": 1, "price_cents": 100}
    lines = [{"id": "good", "customer": "A", "lines": [line]}, {"id": "bad", "customer": 7, "lines": [line]}]
    orders.write_text("".join(json.dumps(order) + "\n" for order in lines))
    done = await _run([sys.executable, "-m", "topology.demo", "--orders", str(orders)], ROOT, DEMO_S_MAX)
    told = done.stdout.decode()
    assert done.returncode == 1, told
    assert "FAULT: run" in told
    assert "of order bad is failed" in told


@pytest.mark.parametrize("topology", ["bare", "demo"])
async def test_each_benchmark_runs_in_small(topology: str, tmp_path: Path) -> None:
    """HOUSE 14: every workload of the table, a few units each, so that no benchmark rots."""
    workloads = [workload for workload in WORKLOADS if workload.topology == topology]
    found = await measure_all(workloads, tmp_path / "site", TINY)
    assert [measurement.workload for measurement in found] == workloads
    for measurement in found:
        assert measurement.errors == {}
        assert measurement.unfinished == 0
        assert measurement.accepted == measurement.offered >= TINY.count_max
        assert measurement.acknowledgement_ms.count == measurement.accepted
        assert measurement.transitions["accept_event"]["commits"] == measurement.accepted
        if measurement.workload.awaits_run:
            assert measurement.runs == measurement.accepted
            assert measurement.run_ms is not None
            assert measurement.run_ms.count == measurement.runs
            settled = [measurement.transitions.get(name, {}) for name in ("accept_success", "continue_run")]
            assert sum(use.get("commits", 0.0) for use in settled) == measurement.workload.steps * measurement.runs
    report = scene(Report, store="embedded", pace=TINY, before=look_before(tmp_path), settings={}, measurements=found)
    path = next_path(tmp_path, "abcdef123456")
    write_report(report, path)
    assert path.name == "001-abcdef1.json"
    assert json.loads(path.read_bytes())["commit"] == report.commit
    assert next_path(tmp_path, "abcdef123456").name == "002-abcdef1.json"
    with (tmp_path / "shown").open("w") as shown:
        print_report(report, Console(file=shown, width=200))
    assert workloads[0].name in (tmp_path / "shown").read_text()
    page = tmp_path / "page"
    page.write_text(f"before {SUMMARY_BEGIN} old {SUMMARY_END} after")
    write_summary(summary_lines(report, path.name), page)
    told = page.read_text()
    assert told.startswith("before") and told.endswith("after") and " old " not in told
    assert all(f"| {workload.name} |" in told for workload in workloads)


async def test_a_paired_run_in_small(tmp_path: Path) -> None:
    """Would catch a comparison whose two sides are the same, or whose ratios are the wrong way round."""
    workload = next(workload for workload in WORKLOADS if workload.steps == 3 and workload.concurrency == 1)
    variants = (Variant(), variant_of(["continuation=off"]))
    pairs, profiles = await measure_pairs([workload], tmp_path / "sites", TINY, variants, rounds=2)
    (pair,) = pairs
    assert profiles == {}
    assert pair.one.accepted == pair.other.accepted == 2 * TINY.count_max
    assert not pair.one.errors and not pair.other.errors
    assert pair.one.transitions["continue_run"]["commits"] == 3 * pair.one.runs
    assert "continue_run" not in pair.other.transitions
    # The pass behind each step is leased, read and answered by itself: four transactions more a step, reads included.
    ratio = pair.ratio("transactions")
    assert ratio is not None and ratio < 0.8
    found = scene(
        Comparison,
        store="embedded",
        pace=TINY,
        before=look_before(tmp_path),
        one=variants[0].name,
        other=variants[1].name,
        rounds=2,
        pairs=pairs,
        profiles=profiles,
    )
    path = next_path(tmp_path, "abcdef123456")
    write_report(found, path)
    assert json.loads(path.read_bytes())["pairs"][0]["ratios"]["transactions"] == pair.ratios["transactions"]
    with (tmp_path / "shown").open("w") as shown:
        print_comparison(found, Console(file=shown, width=200))
    assert "continuation=off" in (tmp_path / "shown").read_text()
    assert any(workload.name in line for line in comparison_lines(found, path.name))


def test_what_to_compare_with_is_a_setting_or_a_checkout(tmp_path: Path) -> None:
    """Would catch a misspelt word that compares the project with itself."""
    assert variant_of(["continuation=off", "lease_ms=9000"]).settings == {"continuation": "off", "lease_ms": "9000"}
    (tmp_path / "keyspace").mkdir()
    other = variant_of([str(tmp_path)])
    assert other.checkout == tmp_path and other.environment["PYTHONPATH"].startswith(str(tmp_path))
    with pytest.raises(ValueError, match="neither"):
        variant_of(["continuation"])


@pytest.mark.parametrize(
    ("holds", "begin", "end"),
    [("measurements", SUMMARY_BEGIN, SUMMARY_END), ("pairs", COMPARISON_BEGIN, COMPARISON_END)],
)
def test_the_page_shows_the_newest_result(holds: str, begin: str, end: str) -> None:
    """Would catch figures in the README that belong to no record."""
    names = [path.name for path in RESULTS.glob("*.json") if holds in json.loads(path.read_bytes())]
    shown = PAGE.read_text("utf-8").partition(begin)[2].partition(end)[0]
    assert f"`results/{max(names)}`" in shown if names else "None is recorded yet." in shown


def test_figures_are_what_they_are_called() -> None:
    """Would catch a percentile or a difference of counters that is off by one."""
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([7.0], 0.5) == 7.0
    assert summary(values[::-1]).p95 == 95
    assert str(percentile([], 0.5)) == "nan"
    text = (
        "# TYPE ryusen_transition_commits_total counter\n"
        'ryusen_transition_commits_total{transition="accept_event"} 5.0\n'
        "# TYPE ryusen_transition_attempts_total counter\n"
        'ryusen_transition_attempts_total{transition="accept_event"} 6.0\n'
        'ryusen_transition_attempts_total{transition="idle"} 2.0\n'
    )
    after = read_transitions(text)
    assert after == {"accept_event": {"commits": 5.0, "attempts": 6.0}, "idle": {"attempts": 2.0}}
    before = {"accept_event": {"commits": 1.0, "attempts": 1.0}, "idle": {"attempts": 2.0}}
    assert subtract(after, before) == {"accept_event": {"commits": 4.0, "attempts": 5.0}}
    assert cpu_seconds(os.getpid()) > 0


def test_samples_are_ranked_by_function_and_area(tmp_path: Path) -> None:
    """Would catch a profile that counts a recursive function twice or gives a callee's time to nobody."""
    profile = read_samples(
        [
            "main (a/services/dispatcher/pump.py:1);twice (a/keyspace/tx.py:5);twice (a/keyspace/tx.py:6) 3",
            "main (a/services/dispatcher/pump.py:1) 1",
            "[native] 2",
        ]
    )
    assert profile.sample_count == 6
    assert profile.own == {"twice (keyspace/tx.py)": 3, "main (dispatcher/pump.py)": 1, "[native]": 2}
    assert profile.with_callees["twice (keyspace/tx.py)"] == 3
    assert profile.with_callees["main (dispatcher/pump.py)"] == 4
    assert profile.areas == {"keyspace": 3, "services.dispatcher": 1, "(other)": 2}
    with (tmp_path / "shown").open("w") as shown:
        show_profile(profile, Console(file=shown, width=120), "dispatcher")
    assert "50.0%" in (tmp_path / "shown").read_text()


@pytest.mark.xdist_group("clone")
@pytest.mark.skipif(
    os.environ.get(CLONE_VARIABLE) != "1",
    reason=f"{CLONE_VARIABLE} is not 1: a fresh clone makes its own virtual environment, which takes minutes",
)
async def test_a_fresh_clone_shows_the_demo_and_passes_tests(tmp_path: Path) -> None:
    """Would catch anything that works only in the folder it was written in."""
    clone = tmp_path / "clone"
    cloned = await _run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], tmp_path, 60)
    assert cloned.returncode == 0, cloned.stdout.decode()
    demo = await _run(["make", "demo"], clone, CLONE_S_MAX)
    assert demo.returncode == 0, demo.stdout.decode()
    assert "each effect happened once" in demo.stdout.decode()
    planned = await _run(["make", "-n", "test"], clone, 60)
    assert b"-m pytest" in planned.stdout
    tested = await _run([".venv/bin/python", "-m", "pytest", "-q", *CLONE_TESTS], clone, CLONE_S_MAX)
    assert tested.returncode == 0, tested.stdout.decode()[-4_000:]
