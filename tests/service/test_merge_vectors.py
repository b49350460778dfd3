"""How a request changes a log: the tables of what mistral.rs does and promises, as tests of the gateway (merge,
media, write-back). Rows follow the promised behaviour; where docs/reconcile.md differs, it takes precedence, and
the test says so. Words are those of the tables; `r` is the model's answer to the request of the row.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.simulator.gateway import open_gateway
from tests.service.simulator.notation import message, messages, words
from tests.service.simulator.vectors import (
    ONE,
    OTHER,
    URLS,
    create_session,
    good,
    live,
    make_image_message,
    pictures,
    whole,
    with_picture,
)

Data = dict[str, Any]

# -- merge -----------------------------------------------------------------------

TWO = "u1 tc1 t1 a1 u2 tc2 t2"
MERGED: dict[str, tuple[str, str, str, str, str]] = {
    "1": ("u1 tc1 t1", "u1 a1 u2", "auto", "u1 tc1 t1 a1 u2", "continued"),
    "2": (TWO, "u1 a1 u2 a2 u3", "auto", f"{TWO} a2 u3", "continued"),
    "3": (TWO, "u1 a1 u2'", "auto", "u1 tc1 t1 a1 u2'", "edited"),
    "4": (TWO, "u1'", "transcript", "u1'", "replaced"),
    # Without an assistant message it is a delta, unless the request says it is a transcript.
    "4, auto": (TWO, "u1'", "auto", f"{TWO} u1'", "delta"),
    "5": (TWO, "u1 a1' u2", "auto", "u1 tc1 t1 a1' u2", "edited"),
    "6": (TWO, "u1", "transcript", "u1 tc1 t1", "regenerated"),
    "6, auto": (TWO, "u1", "auto", f"{TWO} u1", "delta"),
    "7": (TWO + " a2", "u1 a1 u2", "auto", TWO, "regenerated"),
    "7, unanswered": (TWO, "u1 a1 u2", "auto", TWO, "replayed"),
    "8": (TWO, "u3", "auto", f"{TWO} u3", "delta"),
    "8, delta": (TWO, "u3", "delta", f"{TWO} u3", "delta"),
    "8, transcript": (TWO, "u3", "transcript", "u3", "replaced"),
    "9": ("u1 tc1 t1", "u1 tc1 t1 a1 u2", "auto", "u1 tc1 t1 a1 u2", "continued"),
    "9, later": (TWO, "u1 tc1 t1 a1 u2 tc2 t2 a2 u3", "auto", f"{TWO} a2 u3", "continued"),
    "9, the last only": (TWO, "u1 a1 u2 tc2 t2 a2 u3", "auto", f"{TWO} a2 u3", "continued"),
    "9, the first only": (TWO, "u1 tc1 t1 a1 u2 a2 u3", "auto", f"{TWO} a2 u3", "continued"),
    "11": ("u1 tc1 t1", "u1 u2", "transcript", "u1 tc1 t1 u2", "continued"),
    "11, answered": ("u1 tc1 t1 a1", "u1 u2", "transcript", "u1 tc1 t1 u2", "edited"),
    "11, auto": ("u1 tc1 t1", "u1 u2", "auto", "u1 tc1 t1 u1 u2", "delta"),
    "12": ("", "u1 a1 u2", "auto", "u1 a1 u2", "new"),
    "12, a delta": ("", "u1", "auto", "u1", "new"),
}


@pytest.mark.parametrize("row", MERGED)
@pytest.mark.parametrize("stream", [False, True])
async def test_request_with_an_id_follows_the_merge_table(row: str, stream: bool) -> None:
    """Checks the live path, the reported relation, the prompt, and that nothing is lost."""
    log, sent, mode, wanted, relation = MERGED[row]
    async with open_gateway() as gateway:
        await create_session(gateway, log)
        answer = good(await gateway.chat(messages(sent), session_id="s", session_mode=mode, stream=stream))
        assert await live(gateway) == f"{wanted} r"
        assert answer.session["reconciled"] == relation
        assert answer.session_id == answer.last["session_id"] == "s"
        assert set((await whole(gateway)).split()) == {*log.split(), *sent.split(), "r"}
        assert words(gateway.speaker.prompts[-1]) == wanted
        await (await gateway.hf.session("s")).verify()
        retired = [entry.seq for entry in await gateway.log("s", retired=True) if entry.retired_by is not None]
        assert answer.session.get("edited_at") == (retired[0] if retired else None)


UNNAMED = {row: case for row, case in MERGED.items() if case[2] == "auto" and row in ("2", "3", "7", "9, later")}


@pytest.mark.parametrize("user", ["ada", "default"])
@pytest.mark.parametrize("row", UNNAMED)
async def test_request_without_an_id_follows_the_merge_table(row: str, user: str) -> None:
    """The same rows if the session of a user, or of the only user, is matched by content: an assistant message is in common."""
    log, sent, _, wanted, relation = UNNAMED[row]
    async with open_gateway() as gateway:
        await create_session(gateway, log, user=user)
        named: Data = {} if user == "default" else {"user": user}
        answer = good(await gateway.chat(messages(sent), **named))
        assert answer.session_id == "s"
        assert (await live(gateway, user=user), answer.session["reconciled"]) == (f"{wanted} r", relation)


@pytest.mark.parametrize("named", [False, True])
async def test_row_10_system_prompt_is_kept_next_to_the_log(named: bool) -> None:
    """A stored system prompt does not hide the tool history."""
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 tc1 t1 a1", system="sys")
        answer = good(await gateway.chat(messages("u1 a1 u2"), session_id="s" if named else None))
        assert answer.session_id == "s"
        assert await live(gateway) == "u1 tc1 t1 a1 u2 r"
        assert words(gateway.speaker.prompts[-1]) == "sys u1 tc1 t1 a1 u2"


# -- media -----------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
async def test_resent_text_keeps_its_picture(named: bool) -> None:
    """Some clients drop images from their history: the message keeps the one it was stored with."""
    async with open_gateway() as gateway:
        await with_picture(gateway, "a1")
        answer = good(await gateway.chat(messages("u1 a1 u2"), session_id="s" if named else None))
        assert (answer.session_id, answer.session["reconciled"]) == ("s", "continued")
        assert await live(gateway) == "u1 a1 u2 r"
        assert pictures(gateway.speaker.prompts[-1]) == URLS[:1]


@pytest.mark.parametrize("named", [False, True])
async def test_new_picture_is_added_after_the_resent_one(named: bool) -> None:
    async with open_gateway() as gateway:
        await with_picture(gateway, "a1")
        sent = [make_image_message("u1", ONE), message("a1"), make_image_message("u2", OTHER)]
        answer = good(await gateway.chat(sent, session_id="s" if named else None))
        assert answer.session_id == "s"
        assert pictures(gateway.speaker.prompts[-1]) == URLS
        assert len(await gateway.log("s")) == 4


@pytest.mark.parametrize("named", [False, True])
async def test_same_text_with_another_picture_is_another_message(named: bool) -> None:
    """Without an id nothing is in common; with an id it is an edit."""
    async with open_gateway() as gateway:
        await with_picture(gateway, "a1 u2 a2")
        sent = [make_image_message("u1", OTHER), *messages("a1 u3")]
        answer = good(await gateway.chat(sent, session_id="s" if named else None))
        assert (answer.session_id == "s") == named
        assert pictures(gateway.speaker.prompts[-1]) == URLS[1:]
        assert len(await gateway.log("s")) == 4


async def test_picture_of_an_edited_message_is_no_longer_sent() -> None:
    """It stays in the log."""
    async with open_gateway() as gateway:
        session = await gateway.hf.session("s")
        await session.append([*messages("u1 a1"), make_image_message("u2", ONE), *messages("a2")])
        good(await gateway.chat(messages("u1 a1 u2' a3 u4"), session_id="s"))
        assert pictures(gateway.speaker.prompts[-1]) == []
        assert await live(gateway) == "u1 a1 u2' a3 u4 r"
        assert await whole(gateway) == "u1 a1 u2 a2 u2' a3 u4 r"


# -- write-back ------------------------------------------------------------------


async def test_turn_with_a_client_tool_is_stored_completely() -> None:
    """Call, result and reply; the next request with the same id includes them all."""
    calls = message("tc1")

    def say(request: Data) -> Data | str:
        return calls if words(request["messages"]) == "u1" else "a1"

    async with open_gateway(say) as gateway:
        tools = [{"type": "function", "function": {"name": "find"}}]
        first = good(await gateway.chat(messages("u1"), session_id="s", tools=tools))
        assert first.message["tool_calls"] == calls["tool_calls"]
        good(await gateway.chat(messages("t1"), session_id="s", tools=tools))
        assert await live(gateway) == "u1 tc1 t1 a1"
        good(await gateway.chat(messages("u1 a1 u2"), session_id="s"))
        assert words(gateway.speaker.prompts[-1]) == "u1 tc1 t1 a1 u2"
        assert len({entry.turn_id for entry in (await gateway.log("s"))[:4]}) == 1


async def test_user_message_is_stored_if_the_model_fails() -> None:
    """mistral.rs stores nothing here; Holdfast stores the user's message first, and a retry adds nothing."""
    async with open_gateway() as gateway:
        await create_session(gateway, "u1 a1")
        gateway.speaker.breaks = 0
        assert (await gateway.chat(messages("u1 a1 u2"), session_id="s")).status >= 500
        assert await live(gateway) == "u1 a1 u2"
        answer = good(await gateway.chat(messages("u1 a1 u2"), session_id="s"))
        assert answer.session["reconciled"] == "replayed"
        assert await whole(gateway) == "u1 a1 u2 r"
