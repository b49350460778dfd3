"""What is replayed, as it is named: specs and compositions, each of them played, and the pages that name them."""

from __future__ import annotations

import pytest

from holdfast.context.settings import CLEARING, STRATEGIES
from holdfast.errors import InvalidRequest
from holdfast.replay import Spec, SummaryWriter, make_scripted_llm, parse_spec, parse_specs, play
from tests.unit.test_replay import RECORDED, rounds

# -- specs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spec", "label"),
    [
        ("digest", Spec("digest"), "digest"),
        ("digest@2048", Spec("digest", {}, 2048), "digest"),
        (" none @ 512 ", Spec("none", {}, 512), "none"),
        (
            "token_window:preserve_recent=3,target=0.5",
            Spec("token_window", {"preserve_recent": 3, "target": 0.5}),
            "token_window:preserve_recent=3,target=0.5",
        ),
        ("token_window:budget=900", Spec("token_window", {}, 900), "token_window"),
        ("head_tail@900:window_size=4", Spec("head_tail", {"window_size": 4}, 900), "head_tail:window_size=4"),
        (
            "clear_tool_results:keep=2,clear_at_least=500+token_window",
            Spec("token_window", {CLEARING: {"keep": 2, "clear_at_least": 500}}),
            "clear_tool_results:keep=2,clear_at_least=500+token_window",
        ),
        (
            " clear_tool_results + digest@700:target=0.5",
            Spec("digest", {"target": 0.5, CLEARING: True}, 700),
            "clear_tool_results+digest:target=0.5",
        ),
        (
            'salience:clear_tool_results={"exclude_tools": ["a,b", "c+d"]}',
            Spec("salience", {CLEARING: {"exclude_tools": ["a,b", "c+d"]}}),
            'clear_tool_results:exclude_tools=["a,b","c+d"]+salience',
        ),
        ("none:clear_tool_results=false", Spec("none", {CLEARING: False}), "none"),
        (
            'summary_buffer:prompt="one, two+3",summarizer_llm=gpt-4o',
            Spec("summary_buffer", {"prompt": "one, two+3", "summarizer_llm": "gpt-4o"}),
            'summary_buffer:prompt="one, two+3",summarizer_llm=gpt-4o',
        ),
        ('summary_buffer:prompt="7"', Spec("summary_buffer", {"prompt": "7"}), 'summary_buffer:prompt="7"'),
    ],
)
def test_specs(text: str, spec: Spec, label: str) -> None:
    """A strategy, a budget of its own, its keys, and what it is composed of; its label means the same."""
    assert parse_spec(text) == spec
    assert parse_spec(text).label == label
    assert parse_spec(label).label == label
    assert parse_spec(label).make_strategy(900) == spec.make_strategy(900)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "unknown strategy"),
        ("digset", "did you mean 'digest'"),
        ("digest@", "not a number of tokens"),
        ("digest@8k", "not a number of tokens"),
        ("digest@0", "not a number of tokens"),
        ("digest@1000:budget=2000", "two budgets"),
        ("token_window:preserve_recent", "not KEY=VALUE"),
        ("token_window:preserve=3", "did you mean 'preserve_recent'"),
        ("token_window:preserve_recent=many", "expected an integer"),
        ("digest:target=1.5", "expected a number above 0"),
        ("digest:target=" + "[" * 100_000, "expected a number"),
        ("digest+token_window", "digest cannot be followed by another strategy; only clear_tool_results"),
        ("token_window+clear_tool_results", r"before another strategy: clear_tool_results\+token_window"),
        ("clear_tool_results+clear_tool_results", "appears twice"),
        ("clear_tool_results+clear_tool_results+digest", "appears twice"),
        ("clear_tool_results+digest:clear_tool_results=true", "appears twice"),
        ("clear_tool_results+", "between two strategies"),
        ("+digest", "between two strategies"),
        ("clear_tool_results@900+digest", "the budget belongs to the last strategy, as digest@N"),
        ("clear_tool_results:kep=2+digest", r"clear_tool_results.kep: unknown key; did you mean 'keep'"),
        ("clear_tool_result+digest", "did you mean 'clear_tool_results'"),
        ("salience:scorer=gpt-4o", "scorer cannot be used here"),
    ],
)
def test_what_is_no_spec(text: str, said: str) -> None:
    """Says what would be right."""
    with pytest.raises(InvalidRequest, match=said):
        parse_spec(text)


def test_a_list_of_specs() -> None:
    """Commas part specs and keys: what is no strategy's name goes with the spec before it; each counts once."""
    found = parse_specs(
        ["digest,target=0.5,clear_tool_results:keep=2,clear_at_least=500+token_window,preserve_recent=3", "none,none@7"]
    )
    assert [(spec.label, spec.budget) for spec in found] == [
        ("digest:target=0.5", None),
        ("clear_tool_results:keep=2,clear_at_least=500+token_window:preserve_recent=3", None),
        ("none", None),
        ("none", 7),
    ]
    assert len(parse_specs(["digest", "digest,digest@5,digest@5"])) == 2
    with pytest.raises(InvalidRequest, match="'keep=2' must follow a strategy"):
        parse_specs(["digest", "keep=2,digest"])


def test_a_spec_plays_with_its_keys() -> None:
    """A window of one message finds less than one of twenty."""
    found = [
        play([RECORDED], parse_spec(text), 10_000).result for text in ("buffer_window:window_size=1", "buffer_window")
    ]
    assert [result.strategy for result in found] == ["buffer_window:window_size=1", "buffer_window"]
    assert found[0].recall is not None
    assert found[0].recall < 1.0 == found[1].recall


# -- every strategy ------------------------------------------------------------------------


COMPOSED = [f"{CLEARING}:clear_at_least=100,keep=1+{name}" for name in STRATEGIES if name != CLEARING]


@pytest.mark.parametrize("text", [*STRATEGIES, *COMPOSED])
def test_every_strategy_and_composition_is_played(text: str) -> None:
    """Within the budget, without an orphan; the label says what it was."""
    with SummaryWriter(make_scripted_llm()) as writer:
        spec = parse_spec(text)
        result = play([rounds(12)], spec, 700, writer=writer).result
    assert (result.strategy, result.calls, result.orphans) == (text, 24, 0.0)
    assert result.refused == 0 or spec.strategy == "none"
    bounded = spec.strategy not in ("head_tail", "buffer_window", "none")
    assert not bounded or result.tokens_per_call <= 700 + 20
    assert (result.summaries > 0) is (spec.strategy == "summary_buffer")


def test_a_composition_clears_before_the_other_strategy_works() -> None:
    """What is cleared need not leave: more of the conversation stays, less of the results."""
    plain, cleared = (
        play([rounds(12)], parse_spec(name), 10_000).result
        for name in ("none", f"{CLEARING}:trigger=300,keep=1,clear_at_least=50+none")
    )
    assert cleared.tokens_per_call < 0.7 * plain.tokens_per_call
    assert cleared.refused == plain.refused == 0
