"""Counts over time: sums, costs, and the blocks in which a store keeps them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.activity import (
    FINE,
    HOURLY,
    RESOLUTIONS,
    ActivityCounts,
    Steps,
    merge_block,
    read_block,
)
from holdfast.limits import LEARNED_BYTES

HUGE = ActivityCounts(*[2**63 - 1] * len(ActivityCounts.__struct_fields__))
COUNTS = st.builds(ActivityCounts, *[st.integers(0, 10**12)] * len(ActivityCounts.__struct_fields__))


@given(st.lists(st.dictionaries(st.integers(0, 287).map(lambda n: n * FINE.step), COUNTS)))
def test_blocks_add_up_whatever_the_order_of_writes(writes: list[Steps]) -> None:
    data = None
    for steps in writes:
        data = merge_block(data, 0, steps, FINE.step)
    stored = ActivityCounts.sum_up(read_block(data, 0).values())
    assert stored == ActivityCounts.sum_up(counts for steps in writes for counts in steps.values())


def test_full_block_fits_into_the_store() -> None:
    for resolution in RESOLUTIONS:
        data = merge_block(None, 0, dict.fromkeys(range(0, resolution.block, resolution.step), HUGE), resolution.step)
        assert data is not None
        assert len(data) <= LEARNED_BYTES


def test_later_block_replaces_an_earlier_one_and_never_the_other_way() -> None:
    first, later = 10, 10 + HOURLY.blocks
    assert HOURLY.name_block(first) == HOURLY.name_block(later)
    old = merge_block(None, first, {first * HOURLY.block: ActivityCounts(turns=5)}, HOURLY.step)
    new = merge_block(old, later, {later * HOURLY.block: ActivityCounts(turns=2)}, HOURLY.step)
    assert [counts.turns for counts in read_block(new, later).values()] == [2]
    assert read_block(new, first) == {}
    assert merge_block(new, first, {first * HOURLY.block: ActivityCounts(turns=1)}, HOURLY.step) is None
