from __future__ import annotations

import pytest

from kvdiag.causes import CAUSES, OUTCOMES, Cause, label_pairs


def test_the_causes_are_those_of_the_contract() -> None:
    """Names are other people's label values: this list only grows."""
    assert list(CAUSES) == [
        "first_turn",
        "local_hit",
        "remote_hit",
        "below_threshold",
        "missing_metadata",
        "feature_off",
        "prefix_diverged",
        "expired_remote_read",
        "expired_handoff",
        "suspect_kv",
        "peer_unreachable",
        "transfer_failed",
        "slow_transfer",
        "queueing",
        "kv_pressure",
        "compute_bound",
        "client",
        "upstream_error",
        "router_overhead",
        "unexplained",
    ], "a new cause goes into this list too; CONTRIBUTING.md has all the places"


def test_outcomes_are_the_ways_in_which_a_turn_ends_well() -> None:
    assert {"first_turn", "local_hit", "remote_hit", "below_threshold"} == OUTCOMES


@pytest.mark.parametrize("cause", [cause for cause in CAUSES.values() if cause.kind == "fault"], ids=lambda c: c.name)
def test_every_fault_says_what_to_change_for_each_detail(cause: Cause) -> None:
    assert cause.next_step
    assert set(cause.next_steps) <= set(cause.details)
    for detail in (None, *cause.details):
        assert cause.remedy(detail)


def test_label_pairs_hold_each_cause_alone_and_with_each_detail() -> None:
    pairs = label_pairs()
    assert len(pairs) == len(set(pairs))
    assert ("remote_hit", "") in pairs
    assert ("missing_metadata", "consumed") in pairs
    assert ("remote_hit", "consumed") not in pairs
