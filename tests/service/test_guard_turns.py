"""Secrets in turns of the library and the server: redacted, blocked or reported, also in errors and log lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidMessage, ModelUnavailable
from holdfast.models import to_chunks
from holdfast.secrets import Guard, make_redactor
from holdfast.server.logs import JsonLines
from tests.service.guard_kit import CANARY, GONE, KEY, REDACTION, assistant, desk, user
from tests.service.summary_kit import LABEL

# -- redact --------------------------------------------------------------------------


async def test_interrupted_reply_is_redacted(tmp_path: Path) -> None:
    chunks = list(to_chunks({"id": "x", "model": "m", "choices": [{"index": 0, "message": assistant(KEY)}]}))
    async with desk(tmp_path, REDACTION, lambda _: [chunks[0], ModelUnavailable("gone")]) as at:
        with pytest.raises(ModelUnavailable):
            await (await at.hf.session("s")).send("hi")
        assert await at.texts() == ["hi", GONE]
        at.check()


async def test_idempotency_key_replays_with_secrets(tmp_path: Path) -> None:
    async with desk(tmp_path, REDACTION, lambda _: f"it is {KEY}") as at:
        headers = {"idempotency-key": "once"}
        replies = [await at.chat(user(f"take {KEY}"), headers=headers) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 200]
        assert len(at.model.prompts) == 1
        assert await at.texts() == [f"take {GONE}", f"it is {GONE}"]
        assert (await at.chat(user("another"), headers=headers)).status_code == 422
        at.check()


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


# -- warn ----------------------------------------------------------------------------


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
