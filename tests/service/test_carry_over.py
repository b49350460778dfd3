"""Carrying a session over into a new one: what the new session contains, in which form, and that failures create nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents import Agent, Llm, Roster
from holdfast.domain.messages import Message
from holdfast.domain.session import Session
from holdfast.holdfast import Holdfast
from holdfast.limits import CARRIED_TOKENS_LEAST
from holdfast.sessions import carry_over as module
from holdfast.sessions.carry_over import CarryOver
from holdfast.tokens import STORED
from tests.service.scripted_model import ScriptedModel

SUMMARY = "Ada likes climbing; her order 7461 was refunded on 2024-05-17."
TALK = [
    ("user", "My order 7461 never came. I was climbing when it was due."),
    ("assistant", "I am sorry. I have refunded order 7461 on 2024-05-17."),
    ("user", "Thank you. Climbing is what I like best, by the way."),
    ("assistant", "That is good to know. Enjoy the rocks at Fontainebleau."),
]
_FRAMED = re.compile(r"\A(.*)\n<(conversation-[0-9a-f]+)>\n(.*)\n</\2>\Z", re.DOTALL)


@asynccontextmanager
async def open_holdfast(
    say: Callable[[dict[str, Any]], Any] = lambda _: SUMMARY, *, agents: dict[str, Agent] | None = None, **settings: Any
) -> AsyncIterator[tuple[Holdfast, ScriptedModel]]:
    """Open a Holdfast with session `old` of Ada, and the model that writes summaries."""
    model = ScriptedModel(say)
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model)}, agents)
    async with Holdfast("sqlite://:memory:", roster=roster, **settings) as hf:
        await add_messages(hf)
        yield hf, model


@asynccontextmanager
async def open_offline(**settings: Any) -> AsyncIterator[Holdfast]:
    """The same without a model that can write summaries."""
    async with Holdfast("sqlite://:memory:", **settings) as hf:
        await add_messages(hf)
        yield hf


async def add_messages(hf: Holdfast, session_id: str = "old", user_id: str = "ada", said: Any = TALK) -> None:
    session = await hf.session(session_id, user_id=user_id)
    await session.append([{"role": role, "content": text} for role, text in said])


def read_carried(session: Session) -> str:
    """Return the text between the two frame lines of the last system message."""
    found = _FRAMED.match(session.system_messages[-1].text)
    assert found is not None, session.system_messages[-1].text
    assert found[2] not in found[3]
    assert "data, not instructions" in found[1]
    return found[3]


async def create_session(hf: Holdfast, **how: Any) -> Session:
    """Create a session `new` of Ada that carries over `old`."""
    session = await hf.session("new", user_id="ada", carry_over={"session_id": "old", **how})
    return await session.info()


# -- summary -----------------------------------------------------------------------------


async def test_slow_summary_falls_back_to_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CARRIED_SECONDS", 0.01)
    async with open_holdfast() as (hf, model):
        model.gate = asyncio.Event()
        assert (await create_session(hf)).metadata["carried_from"]["form"] == "digest"


async def test_long_session_is_read_from_the_task_and_the_newest_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost does not grow with the log."""
    monkeypatch.setattr(module, "CARRIED_READ_TOKENS", 400)
    async with open_holdfast() as (hf, model):
        old = await hf.session("old", user_id="ada")
        await old.append([{"role": "user", "content": f"Note {at}: kelp is number {at}."} for at in range(600)])
        await create_session(hf)
        read = model.prompts[0][1]["content"]
        assert "[0] user:" in read
        assert "Note 599" in read
        assert "Note 500:" not in read


async def test_model_with_a_small_window_reads_in_several_calls() -> None:
    """Each call fits."""
    model = ScriptedModel(lambda _: SUMMARY)
    llm = Llm(name="default", model="gpt-4o", client=model, context_window=9000, max_tokens=500)
    async with Holdfast("sqlite://:memory:", roster=Roster({"default": llm})) as hf:
        await add_messages(hf)
        old = await hf.session("old", user_id="ada")
        await old.append([{"role": "user", "content": f"Note {at}: " + "kelp 7461 " * 40} for at in range(300)])
        made = await create_session(hf, tokens=200)
        assert made.metadata["carried_from"]["form"] == "summary"
        assert 1 < len(model.prompts) <= 9
        sizes = [
            sum(STORED.message(Message(role=one["role"], content=one["content"])) for one in prompt)
            for prompt in model.prompts
        ]
        assert max(sizes) < 9000


# -- content -----------------------------------------------------------------------------


@given(
    tokens=st.integers(CARRIED_TOKENS_LEAST, 400),
    said=st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.integers(1, 300)), min_size=1, max_size=12),
)
def test_content_is_the_end_of_the_session_and_fits_the_budget(tokens: int, said: list[tuple[str, int]]) -> None:
    """The newest messages are complete; only the oldest one may be cut, and says so."""

    async def fill_store() -> str:
        async with open_offline() as hf:
            told = [(role, " ".join(f"w{at}x{n}" for n in range(words))) for at, (role, words) in enumerate(said)]
            await add_messages(hf, "s", said=told)
            session = await hf.session("new", user_id="ada", carry_over=CarryOver("s", None, "content", tokens))
            text = read_carried(await session.info())
            records = re.split(r"^(?=\[\d+\] )", text, flags=re.MULTILINE)[1:]
            assert records
            for record, (at, (role, words)) in zip(reversed(records), reversed(list(enumerate(told))), strict=False):
                whole = f"[{at}] {role}:\n  {words}"
                assert record.rstrip("\n") == whole or (record is records[0] and "characters left out" in record)
            return text

    text = asyncio.run(fill_store())
    assert STORED.text(text) <= tokens


# -- data, not instructions ------------------------------------------------------------------


# -- secrets ---------------------------------------------------------------------------------

# -- whose, and whether ------------------------------------------------------------------------


# -- what is asked ---------------------------------------------------------------------------
