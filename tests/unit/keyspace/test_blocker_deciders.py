"""The deciders around a blocked run by table: each combination of what they may be given."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from sample_records import ITEM, ITEM_ID, NOW_MS, OTHER_ID, RUN

from keyspace.errors import Refusal
from keyspace.history import HistoryKind
from keyspace.lifecycle import ItemState, Phase
from keyspace.records.blocker import BlockerRecord, BlockReason, CallSite
from keyspace.records.release import HeadRecord
from keyspace.records.run import RunRecord
from keyspace.records.work import InstanceRecord
from keyspace.transitions import block_run, probe_definition, rediscover_run
from keyspace.transitions.block_run import DefinitionConflict
from keyspace.transitions.probe_definition import Probe
from keyspace.transitions.rediscover_run import RediscoverOutcome
from keyspace.waiting import waiting_for

FIRST, AGAIN = CallSite(location="a.py:1", name="a"), CallSite(location="b.py:2")
CONFLICT = DefinitionConflict("twice", FIRST, AGAIN)
EARLIER = BlockerRecord(
    reason=BlockReason.DUPLICATE_STEP_ID,
    step_id="twice",
    first=CallSite(),
    duplicate=CallSite(),
    first_seen_at_ms=5,
    seen_at_ms=9,
    count=4,
    position="01",
    head_position="02",
    probe_count=3,
)
POSITIONS = ("", "01", "02", "03")


def instance(position: str) -> InstanceRecord:
    return InstanceRecord(
        instance="i", application="shop", session="s", release="r", connected_at_ms=1, position=position
    )


def test_conflicts() -> None:
    """RFD 2, "updates the blocker's last observation and count, or replaces the blocker when it names a different step"."""
    for earlier, position, head_position in itertools.product(
        (None, EARLIER, msgspec.structs.replace(EARLIER, step_id="other")), (None, *POSITIONS), (None, *POSITIONS[1:])
    ):
        outcome = block_run.decide(
            earlier,
            CONFLICT,
            "i",
            None if position is None else instance(position),
            None if head_position is None else HeadRecord(release_id="h", position=head_position),
            NOW_MS,
        )
        made, where = outcome.blocker, (earlier and earlier.step_id, position, head_position)
        is_same = earlier is not None and earlier.step_id == "twice"
        assert (made.step_id, made.first, made.duplicate, made.seen_at_ms) == ("twice", FIRST, AGAIN, NOW_MS), where
        assert (made.count, made.first_seen_at_ms, made.probe_count) == ((5, 5, 3) if is_same else (1, NOW_MS, 0))
        assert outcome.kind is (
            HistoryKind.DEFINITION_BLOCKED if earlier is None else HistoryKind.DEFINITION_STILL_BLOCKED
        )
        assert outcome.replaces == ("other" if earlier is not None and not is_same else "")
        assert made.probe_item is None
        told = max(position or "", "" if earlier is None else earlier.head_position)
        assert outcome.is_outdated == ((head_position or "") > told), where
        assert made.needs_probe == (not position or (head_position or "") > position), where


def test_probes() -> None:
    """Only the probe that a blocked run at rest names, and only when it is due, looks again."""
    waiting = msgspec.structs.replace(EARLIER, probe_item=ITEM_ID)
    for run, blocker, item, phase, owned in itertools.product(
        (RUN, None), (waiting, EARLIER, None), (ITEM, None), Phase, (None, OTHER_ID)
    ):
        run_now = None if run is None else msgspec.structs.replace(run, phase=phase, item_id=owned)
        outcome = probe_definition.decide(run_now, blocker, item, ITEM.vesting_ms)
        is_wanted = run is not None and blocker is waiting and phase is Phase.DEFINITION_BLOCKED and owned is None
        expected = Probe.GONE if item is None else Probe.FIRED if is_wanted else Probe.NOT_WANTED
        assert outcome is expected, (run, blocker, item, phase, owned)
    at_rest = msgspec.structs.replace(RUN, phase=Phase.DEFINITION_BLOCKED, item_id=None)
    assert probe_definition.decide(at_rest, waiting, ITEM, ITEM.vesting_ms - 1) is Probe.NOT_DUE


@pytest.mark.parametrize("phase", list(Phase))
def test_requests(phase: Phase) -> None:
    """RFD 2, "deduplicated against existing discovery work"; every phase but DefinitionBlocked refuses."""
    run = msgspec.structs.replace(RUN, phase=phase)
    later = msgspec.structs.replace(ITEM, state=ItemState.READY, vesting_ms=NOW_MS + 1)
    expected = {
        None: RediscoverOutcome.ACCEPTED,
        later: RediscoverOutcome.HASTENED,
        msgspec.structs.replace(later, vesting_ms=NOW_MS): RediscoverOutcome.ALREADY_REQUESTED,
        msgspec.structs.replace(later, state=ItemState.LEASED): RediscoverOutcome.ALREADY_REQUESTED,
        msgspec.structs.replace(later, state=ItemState.AUTHORIZED): RediscoverOutcome.ALREADY_REQUESTED,
    }
    for item, outcome in expected.items():
        if phase is Phase.DEFINITION_BLOCKED:
            assert rediscover_run.decide(run, item, NOW_MS) is outcome
        else:
            with pytest.raises(Refusal) as refused:
                rediscover_run.decide(run, item, NOW_MS)
            assert (refused.value.code, refused.value.details["phase"]) == ("run_not_blocked", phase.value)


def blocked(**fields: object) -> RunRecord:
    return msgspec.structs.replace(RUN, phase=Phase.DEFINITION_BLOCKED, **fields)


@pytest.mark.case(76)
def test_a_blocked_run_says_what_to_fix() -> None:
    """Case 076, "runs that wait for ... a fix of a duplicate id": the id, both places, since when, and what to do."""
    blocker = msgspec.structs.replace(EARLIER, first=FIRST, duplicate=AGAIN)
    waiting = waiting_for(blocked(item_id=None), None, NOW_MS, blocker=blocker)
    assert waiting is not None
    assert (waiting.word, waiting.since_ms, waiting.until_ms) == ("fix", 5, None)
    probed = msgspec.structs.replace(blocker, probe_item=ITEM_ID, probe_count=1)
    until = waiting_for(blocked(item_id=None), None, NOW_MS, blocker=probed)
    assert until is not None and until.until_ms == probed.seen_at_ms + 120_000, "when it is looked at by itself"
    assert waiting.sentence == (
        "Step id 'twice' is used twice in one pass, first at a.py:1 (a), again at b.py:2. "
        "Give one of the two calls another id and deploy."
    )


@pytest.mark.case(76)
@pytest.mark.parametrize(("state", "word"), [(ItemState.READY, "worker"), (ItemState.AUTHORIZED, "running")])
def test_a_blocked_run_that_is_looked_at_says_both(state: ItemState, word: str) -> None:
    """Case 076: while its next pass waits or runs, the conflict is named all the same."""
    waiting = waiting_for(blocked(), msgspec.structs.replace(ITEM, state=state), NOW_MS, blocker=EARLIER)
    assert waiting is not None and waiting.word == word
    assert waiting.sentence.startswith("Step id 'twice' is used twice in one pass. ")
