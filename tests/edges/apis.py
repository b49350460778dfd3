"""A server with both APIs in front of an upstream of either kind, and the official client for each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anthropic import AsyncAnthropic

from holdfast.domain.session import SessionRef
from holdfast.testing import ScriptedUpstream
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.edges.server import CLIENT_KEY, UPSTREAM_KEY, Served, serving

Script = Sequence[Any] | Callable[[dict[str, Any]], Any]
CLAUDE = "claude"
"""The name of the llm that is Anthropic's; any other is OpenAI's."""

OURS = ("session_id", "session_mode", "agent")
SAMPLING = ("temperature", "top_k", "top_p")
"""What the API takes and this client has no name for any more."""


@dataclass(kw_only=True)
class Apis:
    """The server, its upstreams and its clients."""

    served: Served
    gpt: ScriptedUpstream
    claude: AnthropicUpstream
    client: Any
    """An `AsyncAnthropic` that tries nothing again by itself. (Its overloads want literal types; tests pass what may be wrong.)"""

    async def ask(self, messages: str | list[Any], *, stream: bool = False, **fields: Any) -> Any:
        """Run a turn through the Messages API, streamed or not; return its final message.

        Extra fields go into the body.
        """
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        own = {name: fields.pop(name) for name in (*OURS, *SAMPLING) if name in fields}
        asked = {"model": "gpt-4o", "max_tokens": 100, "messages": given, "extra_body": own, **fields}
        if not stream:
            return await self.client.messages.create(**asked)
        async with self.client.messages.stream(**asked) as events:
            return await events.get_final_message()

    async def chat(self, messages: str | list[Any], session_id: str | None = None, **fields: Any) -> Any:
        """Run a turn through the Chat Completions API; return the assistant's message."""
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        own = {"session_id": session_id} if session_id else {}
        asked = {"model": "gpt-4o", "messages": given, "extra_body": own, **fields}
        return (await self.served.client.chat.completions.create(**asked)).choices[0].message

    async def entries(self, session_id: str) -> Sequence[Any]:
        """Return the live entries of the session."""
        return await self.served.hf.store.entries(SessionRef("default", session_id))


@asynccontextmanager
async def serve_apis(gpt: Script = (), claude: Script = (), *more: str, **options: Any) -> AsyncIterator[Apis]:
    """Start a server with two scripted upstreams:

    `default` is OpenAI's, `claude` is Anthropic's. `more` adds lines of configuration.
    """
    async with ScriptedUpstream(gpt) as one, AnthropicUpstream(claude) as other:
        common = {"api_key": UPSTREAM_KEY, "timeout": "20s"}
        llms = {
            "default": {"model": "gpt-4o", "base_url": one.url, "profile": "openai", **common},
            CLAUDE: {"provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": other.url, **common},
        }
        async with serving("\n".join([f"llms: {json.dumps(llms)}", *more]), **options) as served:
            client = AsyncAnthropic(base_url=served.url, api_key=CLIENT_KEY, max_retries=0, http_client=served.http)
            yield Apis(served=served, gpt=one, claude=other, client=client)


@asynccontextmanager
async def claude_gateway(script: Script, *more: str) -> AsyncIterator[tuple[Served, AnthropicUpstream]]:
    """Start a server whose default model is Anthropic's."""
    async with AnthropicUpstream(script) as upstream:
        llm = {"provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": upstream.url, "api_key": UPSTREAM_KEY}
        async with serving("\n".join([f"llms: {json.dumps({'default': llm})}", *more])) as served:
            yield served, upstream
    assert upstream.violations == []
