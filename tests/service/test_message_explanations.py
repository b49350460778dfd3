"""`session.explain`: what happened to messages over a session's turns, and how to bring them back."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from holdfast.agents import Agent, Llm, Roster
from holdfast.context.explain import BuildRecord, encode_record
from holdfast.context.recalled import RecallSettings
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import ModelCall
from holdfast.holdfast import Holdfast
from holdfast.limits import EXPLAIN_TEXT_CHARS
from holdfast.sessions import message_explanations
from holdfast.sessions.explanation import Explanation, MessageExplanation
from holdfast.sessions.handle import SessionHandle
from holdfast.stores.log import Append
from tests.service.scripted_model import ScriptedModel
from tests.service.summary_kit import TELLING, desk

SETTINGS = [
    ContextSettings("digest", {"budget": 500}),
    ContextSettings("token_window", {"budget": 500}),
    ContextSettings("salience", {"budget": 500}),
    ContextSettings("head_tail", {"window_size": 6}),
    ContextSettings("clear_tool_results", {"budget": 600, "clear_at_least": 50, "keep": 1}),
]
SEASICK = 4
"""The turn in which it is said."""


def open_with(settings: ContextSettings = SETTINGS[0], **more: Any) -> Holdfast:
    return Holdfast("sqlite://:memory:", roster=Roster(context=settings), **more)


async def talk(hf: Holdfast, turns: int = 20) -> SessionHandle:
    """Create a session with a tool round in each turn and one sentence worth keeping."""
    session = await hf.session("s", user_id="ada", system="Be brief.")
    for n in range(turns):
        asked = f"Where is order ORD-{n}? It was sent to {n} Harbour Street on 2026-03-{n % 28 + 1:02}."
        if n == SEASICK:
            asked = "By the way, I get seasick. " + asked
        async with session.turn(asked) as turn:
            call = {"id": f"c{n}", "type": "function", "function": {"name": "find", "arguments": f'{{"order": {n}}}'}}
            turn.add({"role": "assistant", "content": None, "tool_calls": [call]})
            turn.add({"role": "tool", "tool_call_id": f"c{n}", "content": f'{{"order": {n}, "state": "lost"}} ' * 6})
            await turn.next()
            turn.add(f"Order ORD-{n} is lost; a new one comes with parcel P{n}.")
    return session


def only_message(explanation: Explanation) -> MessageExplanation:
    (one,) = explanation.messages
    return one


SAID = SEASICK * 4
"""The message with it: a turn has four."""


# -- departure --------------------------------------------------------------------


async def test_departure_in_a_long_session_comes_from_recorded_frontiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is rebuilt for it, even if the message left before the calls that are read at once."""
    async with open_with(SETTINGS[1]) as hf:
        session = await talk(hf, 40)
        exact = only_message(await session.explain(seq=SAID)).departure
        assert exact is not None
        monkeypatch.setattr(message_explanations, "EXPLAIN_REBUILT", 10)
        assert only_message(await session.explain(seq=SAID)).departure == msgspec.structs.replace(
            exact, reason=exact.reason.partition(":")[0]
        )
        monkeypatch.setattr(message_explanations, "PAGE", 3)
        found = only_message(await session.explain(seq=SAID))
        assert found.departure is not None
        assert found.departure == msgspec.structs.replace(exact, reason=exact.reason.partition(":")[0])
        assert found.state == "no"
        assert only_message(await session.explain(text="I get seasick")).departure is None


async def test_departure_is_unknown_without_recorded_calls() -> None:
    async with open_with() as hf:
        session = await hf.session()
        for n in range(40):
            await session.append(
                {"role": "user", "content": f"I was in harbour number {n} and saw {n * 7} boats there."}
            )
        found = await session.explain(seq=2, turn=0)
        assert found.exact is None
        assert only_message(await session.explain(seq=2)).departure is None


# -- remedies ------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "is_large"), [(2, False), (20, True), (200, True)])
async def test_pinning_says_if_the_budget_may_be_too_small(lines: int, *, is_large: bool) -> None:
    """A small pinned message is sent whole. A large one is shortened, and the text announced it."""
    async with open_with() as hf:
        session = await talk(hf)
        await session.send("Where is my parcel?\n" + "It is not here.\n" * lines)
        for n in range(8):
            await session.send(f"And order ORD-{n}, which was sent to {n} Harbour Street?" * 4)
        matches = (await session.explain(text="Where is my parcel")).messages
        found = next(one for one in matches if one.role == "user")
        (pin,) = [one for one in found.remedies if one.kind == "pin"]
        assert ("or fewer if the budget of 500 tokens is too small for it" in pin.text) == is_large
        await session.annotate(found.seq, pinned=True)
        assert only_message(await session.explain(seq=found.seq)).state == ("part" if is_large else "whole")


@pytest.mark.parametrize("limit", ["EXPLAIN_BUDGETED", "EXPLAIN_BUDGETED_TOKENS"])
async def test_no_larger_budget_is_suggested_for_a_long_session(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Each budget that is tried takes one build."""
    async with open_with() as hf:
        session = await talk(hf)
        monkeypatch.setattr(message_explanations, limit, 70)
        budgets = [one.budget for one in only_message(await session.explain(seq=SAID)).remedies if one.kind == "budget"]
        assert budgets == [None]


async def test_longer_history_is_suggested_for_messages_outside_it() -> None:
    hf = open_with()
    hf.roster.max_history_turns = 8
    async with hf:
        found = only_message(await (await talk(hf)).explain(seq=SAID))
        assert found.state == "no"
        assert [one.kind for one in found.remedies] == ["pin", "history", "recall"]


async def test_dropping_a_summary_is_suggested() -> None:
    """A summary is a compaction like any other, and its source tokens are counted."""
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        found = await (await at.session()).explain(seq=2)
        assert only_message(found).decision == "compacted"
        assert "summary" in [one.kind for one in only_message(found).remedies]
        (summary,) = found.compactions
        assert summary.kind == "summary"
        assert summary.source_tokens > summary.tokens > 0
        assert TELLING not in str(only_message(found))


async def test_recall_is_suggested_if_the_agent_may_search() -> None:
    agent = Agent(name="a", context=SETTINGS[0], recalls={"conversation": RecallSettings()})
    async with Holdfast("sqlite://:memory:", roster=Roster(agents={"a": agent})) as hf:
        session = await hf.session("t", agent="a")
        for n in range(30):
            await session.append(
                {"role": "user", "content": f"I was in harbour number {n} and saw {n * 7} boats there."}
            )
        remedies = only_message(await session.explain(seq=2)).remedies
        assert remedies[-1].text.startswith("ask about it")


async def test_recall_is_not_suggested_for_a_tool_result() -> None:
    """Recall finds what the user and the assistant said, not results of tools."""
    async with open_with(ContextSettings("digest", {"budget": 500})) as hf:
        session = await hf.session("t")
        for n in range(20):
            call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            async with session.turn(f"How many boats are in harbour {n}?") as turn:
                turn.add({"role": "assistant", "content": None, "tool_calls": [call]})
                turn.add({"role": "tool", "tool_call_id": f"c{n}", "content": f"harbour {n}: " + f"boat {n}, " * 30})
                turn.add("I counted them.")
        kinds = {}
        for seq in (4, 6):
            found = only_message(await session.explain(seq=seq))
            kinds[found.role] = [remedy.kind for remedy in found.remedies]
        assert kinds == {"user": ["pin", "budget", "recall"], "tool": ["pin", "budget"]}


# -- turns that were sent with other settings ------------------------------------------


def without_remedies(explanation: Explanation) -> Explanation:
    """Return the explanation without what would help now, which depends on the current settings."""
    messages = tuple(msgspec.structs.replace(one, remedies=()) for one in explanation.messages)
    return msgspec.structs.replace(explanation, messages=messages)


async def test_summarized_turn_is_explained_after_a_change_of_strategy() -> None:
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        await at.talk(2)
        last = len(at.chat.prompts) - 1
        before = await (await at.session()).explain(seq=2, turn=last)
        at.hf.roster.context = ContextSettings("digest", {"budget": 20_000})
        after = await (await at.session()).explain(seq=2, turn=last)
        assert without_remedies(after) == without_remedies(before)
        assert [one.kind for one in before.compactions] == ["summary"]


async def test_first_line_says_that_a_turn_cannot_be_rebuilt() -> None:
    """Without the settings in its record, as 0.1 wrote it, or with another model."""
    async with open_with() as hf:
        session = await talk(hf, 3)
        for n, (strategy, options) in enumerate([("", None), ("mine", {}), ("digest", {"budget": 500})], start=1):
            last = (await hf.store.calls(session.ref, limit=1))[0]
            record = msgspec.json.decode(last.build, type=BuildRecord)
            told = msgspec.structs.replace(record, strategy=strategy, options=options)
            call = msgspec.structs.replace(last, turn_id=2 + n, view="other", build=encode_record(told))
            await session.append([{"role": "user", "content": "And?"}, {"role": "assistant", "content": "No."}])
            await hf.store.append(session.ref, Append(timestamp=last.timestamp, calls=[call]))
        for turn, what, used in (
            (3, "settings (strategy digest, budget 500)", "its settings are not recorded"),
            (4, "settings (strategy digest, budget 500)", "it had strategy mine"),
            (5, "agent and model, and the settings (strategy digest, budget 500)", "it had the same settings"),
        ):
            found = await session.explain(seq=0, turn=turn)
            assert found.exact is None
            assert found.not_sent == (
                f"no call of this turn was sent with the current {what}; this is what they would give; "
                f"the last call went to offline: {used}"
            )
            assert str(found).startswith(f"session s, turn {turn}: no call of this turn was sent")


# -- messages that are never in a prompt -----------------------------------------------


async def test_recalled_message_in_a_past_prompt_is_found_in_its_record() -> None:
    """The record does not contain its text."""
    async with open_with(SETTINGS[1]) as hf:
        session = await talk(hf)
        last = (await hf.store.calls(session.ref, limit=1))[0]
        record = msgspec.json.decode(last.build, type=BuildRecord)
        told = msgspec.structs.replace(record, recalled=(f"s#{SAID}", "other#9", "s#x"))
        call: ModelCall = msgspec.structs.replace(last, build=encode_record(told))
        await hf.store.append(session.ref, Append(timestamp=last.timestamp, calls=[call]))
        found = only_message(await session.explain(seq=SAID, turn=19))
        assert found.state == "part"
        assert [(one.block, one.words) for one in found.excerpts] == [("recalled", "")]
        assert "recalled, in words" in str(found)


# -- selecting messages ---------------------------------------------------------------


@pytest.mark.parametrize("folds", ["", "Straße " * 30])
async def test_the_words_around_a_match_are_shown(folds: str) -> None:
    """Wherever in the message they are."""
    for preface, after in (("", "x " * 200), ("Hello there. " * 40, ""), ("Hello there. " * 40, "Good\nbye. " * 40)):
        text = f"{folds}{preface}I must NOT\n eat nuts. {after}"
        found = message_explanations.quote_match(text, "not eat  NUTS")
        assert "I must NOT eat nuts." in found
        assert found.strip("…") in " ".join(text.split())
        assert found.startswith("…") == bool(folds + preface)
        assert found.endswith("…") == bool(after)
        assert len(found) <= 102
    assert message_explanations.quote_match("word " * 100, "word " * 40) == "word " * 39 + "word…"
    assert message_explanations.quote_match("short", "HO") == "short"
    async with open_with() as hf:
        session = await hf.session()
        await session.append({"role": "user", "content": "Hello there. " * 40 + "I must not eat nuts."})
        explanation = await session.explain(text="NUTS")
        match = only_message(explanation).match
        assert match is not None
        assert match.endswith("there. I must not eat nuts.")
        assert f"\n  {match}\n" in str(explanation)
        assert only_message(await session.explain(seq=0)).match is None


async def test_budgets_are_suggested_for_the_first_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in sessions in which a few searches are quick."""
    async with open_with(SETTINGS[1]) as hf:
        session = await talk(hf)

        async def suggest() -> list[int | None]:
            explained = (await session.explain(text="It was sent to")).messages
            return [remedy.budget for one in explained for remedy in one.remedies if remedy.kind == "budget"]

        found = await suggest()
        assert len(found) > 4
        assert all(found[:3])
        assert not any(found[3:])
        monkeypatch.setattr(message_explanations, "EXPLAIN_BUDGETED", 80 * 3 - 1)
        assert not any(await suggest())
        assert only_message(await session.explain(seq=SAID)).remedies[1].budget is not None


async def test_search_is_bounded_and_returns_where_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_with() as hf:
        session = await talk(hf)
        monkeypatch.setattr(message_explanations, "_PAGE", 10)
        monkeypatch.setattr(message_explanations, "EXPLAIN_SCANNED", 30)
        found = await session.explain(text="seasick")
        assert (found.messages, found.before) == ((), 50)
        assert only_message(await session.explain(text="seasick", before=50 - 30)).seq == SAID


async def test_both_explanations_list_every_message_of_the_prompt() -> None:
    """The system prompt and the tools too, which are not part of the conversation's budget."""
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
    async with open_with() as hf:
        session = await hf.session("s", user_id="ada", system="Be brief.")
        async with session.turn("Hi.", tools=[tool]) as turn:
            first, *rows = turn.explain().splitlines()
            turn.add("Hello.")
        found = await session.explain(turn=0)
        assert found.overhead == turn.explanation()["overhead"]
        assert first.startswith("2 messages, strategy digest, ")
        assert str(found).splitlines()[1:] == rows
        assert first.partition(", ")[2] == str(found).splitlines()[0].partition("sent: ")[2]
        assert [row.split()[0] for row in rows] == ["system", "tools", "0"]
        assert found.budget == (await session.explain()).budget
        assert (await session.explain()).overhead["tools"] == 0


async def test_prompt_in_another_dialect_is_explained_as_sent() -> None:
    """It is rebuilt byte for byte, and its text is found."""
    llm = Llm(name="default", model="claude-sonnet-4-5", client=ScriptedModel("ok"), dialect="anthropic")
    settings = ContextSettings("digest", {"budget": 600})
    async with Holdfast("sqlite://:memory:", roster=Roster({"default": llm}, context=settings)) as hf:
        session = await talk(hf, 12)
        assert session.responder.llm.dialect == "anthropic"
        for seq, turn in ((SAID, SEASICK), (SAID, 11), (44, 11)):
            found = await session.explain(seq=seq, turn=turn)
            assert found.exact is True
            assert (only_message(found).state == "whole") == (seq // 4 == turn)
        assert only_message(await session.explain(seq=47)).state == "whole"


# -- side effects and concurrency --------------------------------------------------------


async def test_messages_are_not_scanned_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building prompts and searching text happen in other threads."""
    threads = set()
    for name in ("_build_explanation", "_select_matches"):
        work = getattr(message_explanations, name)

        def record_thread(*args: Any, work: Any = work, **more: Any) -> Any:
            threads.add(threading.current_thread())
            return work(*args, **more)

        monkeypatch.setattr(message_explanations, name, record_thread)
    async with open_with() as hf:
        session = await talk(hf, 8)
        found = await session.explain(text="order")
        assert len(found.messages) == message_explanations.MATCHES
        assert all(len(one.text) <= EXPLAIN_TEXT_CHARS for one in found.messages)
    assert threads
    assert threading.main_thread() not in threads
