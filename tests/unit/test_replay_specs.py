"""What is replayed, as it is named: specs and compositions, each of them played, and the pages that name them."""

from __future__ import annotations

import pytest

from benchmarks.scripted_summaries import make_scripted_llm
from holdfast.context.settings import CLEARING, STRATEGIES
from holdfast.replay.player import play
from holdfast.replay.specs import Spec, parse_spec, parse_specs
from holdfast.replay.summaries import SummaryWriter
from tests.unit.test_replay import rounds

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
    ("texts", "specs"),
    [
        (["digest, none ,digest", "none"], ["digest", "none"]),
        (["token_window,preserve_recent=3,target=0.5,none"], ["token_window:preserve_recent=3,target=0.5", "none"]),
        (["token_window:target=0.5,preserve_recent=3"], ["token_window:target=0.5,preserve_recent=3"]),
        (
            [f"{CLEARING},keep=2+token_window,target=0.5,preserve_recent=3,digest@700"],
            [f"{CLEARING}:keep=2+token_window:target=0.5,preserve_recent=3", "digest@700"],
        ),
        ([f"{CLEARING}:keep=2+token_window,target=0.5"], [f"{CLEARING}:keep=2+token_window:target=0.5"]),
        ([f"{CLEARING}+token_window:target=0.5,budget=9"], [f"{CLEARING}+token_window@9:target=0.5"]),
        (["digest@700,digest@800"], ["digest@700", "digest@800"]),
    ],
)
def test_keys_after_a_comma_belong_to_the_strategy_before_them(texts: list[str], specs: list[str]) -> None:
    assert parse_specs(texts) == [*map(parse_spec, specs)]


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
