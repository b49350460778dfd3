"""Placing where texts repeat: equal replies, windows of equal chats, and what changes while a request waits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import CLAUDE, Served, apis, assistant, gateway, until, user
from tests.behaviour.kit.placing import Client, holding, logs, prompt, reply_to

Row = dict[str, Any]
ADA: Row = {"user": "ada"}
KEY = {"idempotency-key": "k"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def agree(_: Row) -> str:
    """Return the same reply to everything."""
    return "ok"


async def chat(served: Served, *texts: str, **fields: Any) -> Client:
    """Return a client of Ada that has said these texts."""
    client = Client(served, **ADA, **fields)
    for text in texts:
        await client.say(text)
    return client


async def test_early_message_is_edited_although_all_replies_are_equal() -> None:
    """More replies than are compared have the text of the one before it."""
    async with gateway(agree) as served:
        ada = await chat(served, *(f"q{number}" for number in range(20)))
        ada.history = ada.history[:2]
        await ada.say("edited")
        assert await logs(served) == {ada.session_id: ada.seen}
