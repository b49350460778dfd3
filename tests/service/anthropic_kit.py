"""Shared by tests of Anthropic's client: a scripted upstream as strict as the API, the client, and blocks of every kind."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from holdfast.models.anthropic import AnthropicModel
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.clocks import Pauses

Json = dict[str, Any]
KEY = "sk-ant-api03-0123456789abcdef"
HI: Json = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "Hi"}]}
SEARCH: list[Json] = [
    {"type": "text", "text": "Searching. "},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "kelp"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "text", "text": "It is kelp.", "citations": [{"type": "web_search_result_location", "url": "u"}]},
]


@contextlib.asynccontextmanager
async def open_model(
    script: Any = (), *, key: str | None = KEY, model: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[AnthropicUpstream, AnthropicModel, Pauses]]:
    """Open a scripted upstream and a model that calls it."""
    pauses = Pauses()
    async with AnthropicUpstream(script, **options) as upstream:
        client = AnthropicModel(upstream.url, key, sleep=pauses, random=lambda: 0.0, clock=lambda: 7.5, **(model or {}))
        try:
            yield upstream, client, pauses
        finally:
            await client.close()
