"""A model's reasoning beside its message: the fields and parts in which clients keep it, and who signed it.

Anthropic's own content parts (`thinking`, `redacted_thinking`); LiteLLM's `thinking_blocks`, the same outside the content;
OpenRouter's `reasoning_details`, of several vendors; plain text in `reasoning_content` (DeepSeek, vLLM) or `reasoning`.
Google's signatures stand on calls, or in `extra_content` (its OpenAI endpoint) and `provider_specific_fields` (LiteLLM).
A signature goes back to the vendor that gave it, unchanged; nobody else can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.domain.messages import REASONING_PARTS, Message, Part, ToolCall

THINKING = REASONING_PARTS
"""Types of the parts that hold reasoning."""
Vendor = Literal["anthropic", "gemini"]
_FORMATS: dict[str, Vendor] = {"anthropic-claude-v1": "anthropic", "google-gemini-v1": "gemini"}
"""OpenRouter's `format` of a detail; one without it is Anthropic's, the first that had any."""


class Thought(msgspec.Struct, frozen=True, gc=False):
    """One piece of reasoning."""

    text: str = ""
    vendor: Vendor | None = None
    """Who takes `signature` and `sealed` back."""
    signature: str | None = None
    sealed: str | None = None
    """The encrypted reasoning itself, where there is no text, or a signature alone."""
    call_id: str | None = None
    """The call that a sealed piece belongs to."""

    def signed_by(self, vendor: Vendor) -> bool:
        """Whether `vendor` takes it back as its own reasoning."""
        return self.vendor == vendor and bool(self.signature or self.sealed)


def thoughts(message: Message) -> list[Thought]:
    """The reasoning of `message`, of one source: clients that send several send the same text several times."""
    content = message.content if isinstance(message.content, tuple) else ()
    parts = [thought_of(part) for part in content if part.type in THINKING]
    return parts or beside(message)


def beside(message: Message) -> list[Thought]:
    """The reasoning that stands in fields of `message`; none where its content has some."""
    if isinstance(message.content, tuple) and any(part.type in THINKING for part in message.content):
        return []
    extra = message.extra
    made = [_block(item) for item in _objects(extra.get("thinking_blocks"))]
    made = made or [_detail(item) for item in _objects(extra.get("reasoning_details"))]
    made = [thought for thought in made if thought.text or thought.signature or thought.sealed]
    if made:
        return made
    texts = (extra.get(name) for name in ("reasoning_content", "reasoning"))
    return next(([Thought(text)] for text in texts if isinstance(text, str) and text.strip()), [])


def thought_of(part: Part) -> Thought:
    """The reasoning in a part of a type in `THINKING`."""
    return _block({"type": part.type, **part.extra})


def signature_of(fields: Mapping[str, Any]) -> str | None:
    """Google's signature in the fields of a message, part or call."""
    nested: list[Any] = [fields]
    if isinstance(of_google := fields.get("extra_content"), Mapping):
        nested.append(of_google.get("google"))
    nested.append(fields.get("provider_specific_fields"))
    for place in nested:
        for name in ("thoughtSignature", "thought_signature"):
            if isinstance(place, Mapping) and (signature := _text(place.get(name))):
                return signature
    return None


def call_signature(call: ToolCall) -> str | None:
    """Google's signature on a call."""
    return signature_of(call.extra) or signature_of(call.function_extra)


def _block(block: Mapping[str, Any]) -> Thought:
    if block.get("type") == "redacted_thinking":
        return Thought(vendor="anthropic", sealed=_text(block.get("data")))
    return Thought(_text(block.get("thinking")) or "", "anthropic", _text(block.get("signature")))


def _detail(detail: Mapping[str, Any]) -> Thought:
    form = detail.get("format")
    vendor = _FORMATS.get(form) if isinstance(form, str) else "anthropic"
    if detail.get("type") == "reasoning.encrypted":
        return Thought(vendor=vendor, sealed=_text(detail.get("data")), call_id=_text(detail.get("id")))
    text = _text(detail.get("text")) or _text(detail.get("summary")) or ""
    return Thought(text, vendor, _text(detail.get("signature")))


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
