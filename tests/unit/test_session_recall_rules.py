"""What is recalled of the session itself changes nothing that stands before it, whatever the strategy, dialect and budget."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from holdfast.context.build import draft
from holdfast.context.recalled import SESSION_LEAST, SESSION_MOST, Recall, compute_session_share
from holdfast.context.settings import RECALLING, STRATEGIES, ContextSettings, is_recalling
from holdfast.context.strategies import make_strategy
from holdfast.errors import BudgetTooSmall
from tests.unit.context_rules import check_rules
from tests.unit.strategies import draw_recalled_item, events, log_of, requests


@pytest.mark.parametrize("name", sorted(RECALLING))
@given(data=st.data())
def test_what_stands_before_the_block_does_not_depend_on_it(name: str, data: st.DataObject) -> None:
    request, entries = data.draw(requests(name)), log_of(data.draw(events)).entries
    request = msgspec.structs.replace(request, recall=Recall())
    items = data.draw(st.lists(draw_recalled_item().filter(lambda one: one.kind == "session"), min_size=1, max_size=4))
    try:
        drafted = draft(request, None, (), entries)
    except BudgetTooSmall:
        return
    without, made = drafted.finish(), drafted.finish(items)
    check_rules(request, made, entries)
    event("recalled" if made.recalled else "no room")
    rest = [one for one in made.messages if made.recalled is None or one is not made.recalled.message]
    assert rest == list(without.messages)
    assert made.hash == drafted.finish(items[::-1]).hash or len({one.score for one in items}) < len(items)


@given(limit=st.integers(1, 1_000_000))
def test_the_share_is_bounded(limit: int) -> None:
    assert compute_session_share(limit) <= min(limit // 4, SESSION_MOST)
    assert compute_session_share(limit) == 0 or limit >= SESSION_LEAST


def test_every_strategy_has_the_switch() -> None:
    for name in STRATEGIES:
        assert make_strategy(ContextSettings(name)).recall == is_recalling(name, "auto") == (name in RECALLING)
        assert make_strategy(ContextSettings(name, {"recall": "on"})).recall
        assert not make_strategy(ContextSettings(name, {"recall": "off"})).recall
