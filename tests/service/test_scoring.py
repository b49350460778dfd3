"""Scorers after turns: their input, their answers, their failures, and their scheduling."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.domain.messages import Message
from holdfast.domain.session import SessionRef
from holdfast.errors import ModelUnavailable
from holdfast.overlays.scorers import BATCH
from holdfast.overlays.scoring import PAUSE, TRIES, Scoring
from holdfast.stores.sessions import NewSession
from tests.service.scoring_kit import REF, RecordingScorer, by_length, call, open_rig, reply, user

# -- input and results -------------------------------------------------------------


async def test_scorer_gets_messages_as_sent_and_its_scores_are_stored() -> None:
    scorer = RecordingScorer(lambda messages: [0.25, 1.0, 0.5][: len(messages)])
    async with open_rig(scorer) as rig:
        await rig.say(user("Where is K-113?"), *call("get", "shipped"))
        assert await rig.score() == 3
        assert await rig.importances() == [0.25, 1.0, 0.5]
        assert rig.told == {0: 0.25, 1: 1.0, 2: 0.5}
    asked, call_asked, result_asked = scorer.batches[0]
    assert asked == {"role": "user", "content": "Where is K-113?"}
    assert call_asked["tool_calls"][0]["function"]["name"] == "get"
    assert (result_asked["role"], result_asked["content"]) == ("tool", "shipped")


async def test_plain_function_runs_in_a_thread() -> None:
    threads = []

    def scorer(messages: Sequence[dict[str, Any]]) -> list[float]:
        threads.append(threading.current_thread())
        return by_length(messages)

    async with open_rig(scorer) as rig:
        await rig.say(user("Hello."))
        assert await rig.score() == 1
    assert threads[0] is not threading.main_thread()


async def test_function_that_returns_an_awaitable_is_awaited() -> None:
    def scorer(messages: Sequence[dict[str, Any]]) -> Any:
        return RecordingScorer()(messages)

    async with open_rig(scorer) as rig:
        await rig.say(user("Hello."))
        assert await rig.score() == 1


async def test_messages_are_scored_once() -> None:
    scorer = RecordingScorer()
    async with open_rig(scorer) as rig:
        await rig.say(user("one"), reply("two"))
        assert await rig.score() == 2
        assert await rig.score() == 0
        await rig.say(user("three"))
        assert await rig.score() == 1
        assert [len(batch) for batch in scorer.batches] == [2, 1]
        again = Scoring(rig.store, lambda _: scorer, rig.clock)  # another process
        assert await again.score(REF, "mine") == 0
    assert len(scorer.batches) == 2


async def test_importance_given_for_one_message_of_a_unit_is_kept() -> None:
    """The highest of a unit decides, so its other messages must not be rated."""
    scorer = RecordingScorer(lambda messages: [0.9] * len(messages))
    async with open_rig(scorer) as rig:
        asked, result = call("get", "shipped")
        await rig.say(asked, importance=0.1)
        await rig.say(result)
        await rig.say(user("pinned"), pinned=True)
        await rig.say(user("free"))
        assert await rig.score() == 1
        assert await rig.importances() == [0.1, None, None, 0.9]


async def test_importance_given_during_scoring_is_kept() -> None:
    async with open_rig(None) as rig:
        await rig.say(user("one"), user("two"))

        async def scorer(messages: Sequence[dict[str, Any]]) -> list[float]:
            await rig.store.annotate(REF, 0, importance=0.05)
            return [0.9] * len(messages)

        rig.scorer = scorer
        assert await rig.score() == 1
        assert await rig.importances() == [0.05, 0.9]


async def test_calls_are_scored_together_with_their_results() -> None:
    scorer = RecordingScorer()
    async with open_rig(scorer) as rig:
        await rig.say(user("go"), *call("get", None))
        assert await rig.score() == 1
        await rig.say(Message(role="tool", content="shipped", tool_call_id="c"))
        assert await rig.score() == 2
    assert [message["role"] for message in scorer.batches[1]] == ["assistant", "tool"]


# -- failures ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [[0.5], [0.5, 0.5, 0.5], [0.5, 7], [0.5, float("nan")], [0.5, "high"], [True, False], "ab", None, {"a": 1, "b": 2}],
)
async def test_invalid_scores_are_dropped_and_retried(answer: Any) -> None:
    scorer = RecordingScorer(lambda messages: answer)
    async with open_rig(scorer) as rig:
        await rig.say(user("one"), user("two"))
        assert await rig.score() == 0
        assert await rig.importances() == [None, None]
        assert rig.scoring.counts.nonsense == 1
        assert await rig.score() == 0, "too early"
        assert len(scorer.batches) == 1
        rig.clock.now += PAUSE
        scorer.answer = by_length
        assert await rig.score() == 2


async def test_failing_batch_shrinks_and_is_finally_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One message that a scorer cannot handle must not block later ones."""
    poison = "the one it cannot take"

    def answer(messages: list[dict[str, Any]]) -> Any:
        return ValueError("no") if any(message["content"] == poison for message in messages) else by_length(messages)

    scorer = RecordingScorer(answer)
    async with open_rig(scorer) as rig:
        await rig.say(user(poison), *(user(f"message {number}") for number in range(2 * BATCH)))
        for _ in range(TRIES + 2):
            await rig.score()
            rig.clock.now += 100 * PAUSE
        found = await rig.importances()
        assert rig.scoring.counts.failed == TRIES
        assert rig.scoring.counts.given_up == 1
    assert found[0] is None
    assert None not in found[BATCH:]
    assert [len(batch) for batch in scorer.batches[:TRIES]] == [BATCH, BATCH // 2, BATCH // 4]
    assert "giving up on" in caplog.text
    assert poison not in caplog.text


async def test_unreachable_scorer_is_paused() -> None:
    """For all sessions, and the batch is not given up: it is retried when the scorer is back."""
    scorer = RecordingScorer(lambda messages: ModelUnavailable("down"))
    async with open_rig(scorer) as rig:
        await rig.say(user("one"))
        other = SessionRef("ada", "other")
        await rig.store.create(NewSession(id=other.id, user_id=other.user_id, timestamp=0))
        for _ in range(TRIES + 2):
            assert await rig.score() == 0
            assert await rig.scoring.score(other, "mine") == 0
            rig.clock.now += 1000 * PAUSE
        assert len(scorer.batches) == TRIES + 2
        scorer.answer = by_length
        assert await rig.score() == 1


async def test_retry_after_of_the_upstream_is_respected() -> None:
    scorer = RecordingScorer(lambda messages: ModelUnavailable("busy", status=429, retry_after=90.0))
    async with open_rig(scorer) as rig:
        await rig.say(user("one"))
        await rig.score()
        rig.clock.now += 89_000
        await rig.score()
        assert len(scorer.batches) == 1
        rig.clock.now += 1_000
        await rig.score()
        assert len(scorer.batches) == 2


# -- in the background -------------------------------------------------------------


async def test_one_run_per_session_and_later_messages_follow() -> None:
    gate, started = asyncio.Event(), asyncio.Event()
    batches = []

    async def scorer(messages: Sequence[dict[str, Any]]) -> list[float]:
        batches.append(len(messages))
        started.set()
        await gate.wait()
        return [0.5] * len(messages)

    async with open_rig(scorer) as rig:
        await rig.say(user("one"))
        rig.scoring.schedule(REF, "mine")
        await started.wait()
        await rig.say(user("two"))
        rig.scoring.schedule(REF, "mine")
        rig.scoring.schedule(REF, "mine")
        assert await rig.score() == 0
        gate.set()
        await rig.scoring.wait_until_idle()
        assert await rig.importances() == [0.5, 0.5]
    assert batches == [1, 1]


async def test_closing_cancels_running_work() -> None:
    started = asyncio.Event()

    async def scorer(messages: Sequence[dict[str, Any]]) -> list[float]:
        started.set()
        await asyncio.Event().wait()
        return []

    async with open_rig(scorer) as rig:
        await rig.say(user("one"))
        rig.scoring.schedule(REF, "mine")
        await started.wait()
        await rig.scoring.close()
        await rig.scoring.close()
        rig.scoring.schedule(REF, "mine")
        await rig.scoring.wait_until_idle()
        assert await rig.importances() == [None]


async def test_batches_are_bounded_and_contain_whole_units() -> None:
    scorer = RecordingScorer()
    async with open_rig(scorer) as rig:
        for number in range(BATCH):
            await rig.say(user(f"order {number}"), *call("get", f"state {number}", f"c{number}"))
        assert await rig.score() == 3 * BATCH
    sizes = [len(batch) for batch in scorer.batches]
    assert max(sizes) <= BATCH
    assert all(batch[0]["role"] != "tool" for batch in scorer.batches)
