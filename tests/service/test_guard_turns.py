"""Secrets in turns of the library and the server: redacted, blocked or reported, also in errors and log lines."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.messages import Message
from holdfast.errors import InvalidMessage, ModelUnavailable, SecretBlocked
from holdfast.models.collect import to_chunks
from holdfast.secrets.guard import Guard, Sweep
from holdfast.secrets.redactor import make_redactor
from holdfast.server.logs import JsonLines
from holdfast.tokens import STORED
from tests.service.guard_kit import CANARY, GONE, GUARD, KEY, REDACTION, assistant, desk, user
from tests.service.summary_kit import LABEL

# -- redact --------------------------------------------------------------------------


async def test_summary_is_redacted_in_the_view(tmp_path: Path) -> None:
    """A model may make up a secret that was removed."""
    text = f"The user asks about orders; the key is {KEY}."

    def say(request: dict[str, Any]) -> str:
        return (
            text
            if "ORD-0000" not in str(request["messages"][-1]) and "ummar" in str(request["messages"][0])
            else "so " * 50
        )

    async with desk(tmp_path, REDACTION, say, strategy="summary_buffer", budget=1000, summarizer_llm="default") as at:
        session = await at.hf.session("s")
        for number in range(8):
            await session.send(f"question about order {number}: " + "why not " * 40)
            await at.hf.engine.compactor.wait_until_idle()
        found = await session.compactions()
        assert [one for one in found if GONE in one.text]
        prompt = [one["content"] for one in (await session.context()).messages]
        assert any(one.startswith(LABEL) and GONE in one for one in prompt)
        at.check()


# -- block ---------------------------------------------------------------------------


async def test_block_in_an_open_turn_rejects_the_added_message(tmp_path: Path) -> None:
    async with desk(tmp_path, GUARD % "block") as at:
        session = await at.hf.session("s")
        async with session.turn("hi") as turn:
            with pytest.raises(SecretBlocked):
                turn.add(user(KEY))
            turn.add(f"no {KEY}")
        assert await at.texts() == ["hi", f"no {GONE}"]


# -- errors and logs -------------------------------------------------------------------


async def test_errors_do_not_quote_secrets(tmp_path: Path) -> None:
    async with desk(tmp_path, REDACTION) as at:
        for body in (
            {"messages": [{"role": KEY, "content": "x"}]},
            {"messages": [{"role": "user", "content": "x", "metadata": KEY}]},
            {"messages": [user("x")], KEY: 1},
        ):
            reply = await at.http.post("/v1/sessions/s/messages", json=body)
            assert reply.status_code == 400
            assert GONE in reply.text
            assert CANARY not in reply.text
        session = await at.hf.session("s")
        for given in ({"role": KEY, "content": "x"}, {"role": "user", "content": "x", "pinned": KEY}):
            with pytest.raises(InvalidMessage) as caught:
                await session.append(given)
            assert CANARY not in f"{caught.value!r} {caught.value.param}"
        with pytest.raises(InvalidMessage, match="anthropic_key"):
            await session.send({"role": KEY, "content": "x"})
        for stream in (False, True):
            reply = await at.chat({"role": KEY, "content": "x"}, stream=stream)
            assert (reply.status_code, GONE in reply.text, CANARY in reply.text) == (400, True, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_the_upstream_are_redacted(tmp_path: Path, stream: bool) -> None:
    chunks = list(to_chunks({"id": "x", "model": "m", "choices": [{"index": 0, "message": assistant("half")}]}))
    async with desk(tmp_path, REDACTION, lambda _: [*chunks[:1], ModelUnavailable(f"refused {KEY}")]) as at:
        reply = await at.chat(user("hi"), stream=stream)
        assert GONE in reply.text
        assert CANARY not in reply.text


def test_log_lines_are_redacted() -> None:
    lines = JsonLines(Guard(make_redactor()))
    error = ValueError(f"no {KEY}")
    record = logging.LogRecord("holdfast", logging.ERROR, "f", 1, "oh %s", (KEY,), (ValueError, error, None))
    record.__dict__["fields"] = {"k": KEY}
    said = json.loads(lines.format(record))
    assert (said["message"], said["k"]) == (f"oh {GONE}", GONE)
    assert said["error"] == f"ValueError: no {GONE}"


# -- combined, and large texts -------------------------------------------------------------


async def test_long_messages_are_scanned_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{'word ' * 40_000}{KEY} {'word ' * 40_000}"
    here, looked = threading.get_ident(), set[tuple[bool, bool]]()
    message = Sweep.clean_message

    def record(sweep: Sweep, one: Message, place: str) -> Message:
        looked.add((len(one.text) > 64_000, threading.get_ident() != here))
        return message(sweep, one, place)

    monkeypatch.setattr(Sweep, "clean_message", record)
    async with desk(tmp_path, REDACTION) as at:
        session = await at.hf.session("s")
        others = [await at.hf.session(f"s{n}") for n in range(5)]
        await asyncio.gather(session.send(text), *(other.send(f"hi {KEY}") for other in others))
        assert looked == {(True, True), (False, False)}
        entry = (await session.entries())[0]
        assert entry.message.text == text.replace(KEY, GONE)
        assert entry.tokens == STORED.message(entry.message)
        at.check()
