"""Upstreams that refuse what their providers refuse, and that answer as their models do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.testing import Reply, ResponsesUpstream, ScriptedUpstream
from holdfast.testing.upstream import Received
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.providers.providers import PROVIDERS, find_fault, find_refusal, make_signature

Json = dict[str, Any]
MODELS: Final[Mapping[str, str]] = {
    "openai": "gpt-5",
    "azure": "gpt-4o",
    "gemini": "gemini-3-flash",
    "deepseek": "deepseek-reasoner",
    "openrouter": "anthropic/claude-sonnet-4.5",
    "anthropic": "claude-sonnet-4-5",
    "responses": "gpt-5",
}
"""Models whose names change what their providers refuse."""
CHAT: Final = tuple(name for name in PROVIDERS if PROVIDERS[name].api == "chat")
UPSTREAMS: Final = (*CHAT, "anthropic", "responses")
HEADER: Final = "x-provider"
MEDIA: Final = frozenset(
    {"part", "image_count", "image_format", "image_bytes", "image_pixels", "image_many_pixels", "request_bytes"}
)
"""Rules about media. What a model takes of them is learned from its first refusal."""
LEARNED: Final = frozenset({("generic", "field")})
"""Rules that are learned from the first refusal, because most servers at unknown addresses do not have them."""
_SEALED: Final = make_signature("openai", "thought")


@dataclass
class Strict:
    """What all upstreams of a run share.

    Attributes:
        reply: the next answer.
        bodies: the accepted requests of each upstream, oldest first.
        refusals: the rule of each refusal, with the upstream.
        learned: number of refusals that the product may learn from.
    """

    reply: Reply = field(default_factory=lambda: Reply(text="Hello."))
    bodies: dict[str, list[Json]] = field(default_factory=dict)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    learned: int = 0

    def judge(self, received: Received) -> Reply | None:
        """Return the refusal of a request, or None."""
        name = received.headers[HEADER]
        refusal = find_refusal(name, received.body)
        if refusal is None:
            self.bodies.setdefault(name, []).append(received.body)
            return None
        fault = find_fault(name, received.body)
        assert fault is not None
        if fault.rule not in MEDIA and (name, fault.rule) not in LEARNED:
            self.refusals.append((name, fault.rule))
        else:
            self.learned += 1
        return Reply(status=refusal[0], error=refusal[1])

    def list_servers(self) -> tuple[ScriptedUpstream, ...]:
        """Return a server for each API, to be started."""
        return (_Chat(self), _Messages(self), _Responses(self))


class _Chat(ScriptedUpstream):
    def __init__(self, strict: Strict) -> None:
        super().__init__(lambda _: strict.reply)
        self.find_refusal = strict.judge  # type: ignore[method-assign]


class _Messages(AnthropicUpstream):
    def __init__(self, strict: Strict) -> None:
        super().__init__(lambda _: strict.reply)
        self._strict = strict

    def find_refusal(self, received: Received) -> Reply | None:
        refusal = self._strict.judge(received) or super().find_refusal(received)
        if self.violations:
            self._strict.refusals.append(("anthropic", self.violations.pop()))
        return refusal


class _Responses(ResponsesUpstream):
    def __init__(self, strict: Strict) -> None:
        super().__init__(lambda _: strict.reply)
        self.find_refusal = strict.judge  # type: ignore[method-assign]

    def format_events(self, reply: Reply, body: Json, number: int) -> list[bytes]:
        pieces = super().format_events(reply, body, number)
        return [piece.replace(b'"sealed:', f'"{_SEALED}'.encode()) for piece in pieces]


def make_models(servers: Sequence[ScriptedUpstream], names: Iterable[str]) -> dict[str, Json]:
    """Return the `llms` of a configuration: one for each named upstream."""
    chat, messages, responses = servers
    found: dict[str, Json] = {}
    for name in names:
        own: Json = {"base_url": chat.url, "profile": name}
        if name == "anthropic":
            own = {"base_url": messages.url, "provider": "anthropic"}
        elif name == "responses":
            own = {"base_url": responses.url, "api": "responses"}
        model = MODELS.get(name, "some-model")
        found[name] = {"model": model, "api_key": "k", "headers": {HEADER: name}, "context_window": 200_000, **own}
    return found
