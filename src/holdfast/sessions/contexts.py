"""The prompt of a session's next or earlier model call, in the format of a provider's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.agents import Responder
from holdfast.context.dialects import Dialect
from holdfast.context.explain import Build, Run, list_decisions
from holdfast.context.fitting import move_media_after_results
from holdfast.context.parts import ShownPrompt
from holdfast.context.sources import MessageSource, join_sources, list_message_sources
from holdfast.domain.calibration import MeasuredCount
from holdfast.domain.messages import Message
from holdfast.domain.objects import Count
from holdfast.domain.session import SessionRef
from holdfast.engine.engine import Engine
from holdfast.media.outgoing import prepare_for_model
from holdfast.models.codecs import gemini
from holdfast.models.codecs.messages.blocks import encode_messages, map_blocks
from holdfast.models.codecs.messages.cache import MARK
from holdfast.sessions.prompt_lookup import FoundPrompt, PromptRequest, find_prompt
from holdfast.turns.prompt import count_by_provider
from holdfast.wire.openai import to_chat_message


class PromptSize(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a prompt."""

    conversation_tokens: Count
    """Tokens of the conversation. The strategy's budget limits this number."""
    total_tokens: Count
    """Tokens of the whole prompt: the conversation, the system prompt and the tools."""
    budget: Count
    """Maximum of `conversation_tokens`."""


class Context(PromptSize, frozen=True, kw_only=True):
    """The messages to send to a model, their token counts, and the decisions that led to them."""

    messages: list[dict[str, Any]]
    """Messages in the dialect's format: Chat Completions messages, Anthropic's messages, or Gemini's contents.

    Chat Completions messages begin with the system prompt.
    """
    hash: str
    """Hash of the messages. The same log, strategy and budget always give the same hash."""
    decisions: list[Run]
    """For ranges of the session's messages: whether the prompt contains them, and why."""
    provider_count: MeasuredCount
    """Tokens of the whole prompt according to the provider, or the best estimate of that number."""
    sent_hash: str | None = None
    """With `at_turn`: the hash that was recorded with the model call. If it equals `hash`, this prompt is the one that was sent."""
    system: list[dict[str, Any]] | dict[str, Any] | None = None
    """The system prompt, if the dialect sends it apart from the messages: Anthropic's `system` or Gemini's `systemInstruction`."""
    sources: list[MessageSource] = []
    """For each item of `messages`: the log entries that the message comes from. Empty for Gemini."""
    build: Build | UnsetType = UNSET
    """How the prompt was built, if REST was asked for it with `explain`."""

    def __repr__(self) -> str:
        size = f"{self.conversation_tokens:,} of {self.budget:,} tokens"
        return f"<context of {len(self.messages)} messages, {size}>"


async def preview_context(engine: Engine, ref: SessionRef, look: PromptRequest) -> Context:
    """Return a prompt of a session as it is sent. The provider counts its tokens, if the model is configured so.

    Raises the errors of `find_prompt`.
    """
    found = await find_prompt(engine, ref, look)
    llm, prompt = found.responder.llm, found.prompt
    counted = None if found.built is None else await count_by_provider(engine, ref, llm, found.built)
    messages = [one.message for one in prompt.messages]
    limits = engine.roster.find_profile(llm, engine.clock())
    as_chat = look.dialect == "openai"
    sent = await prepare_for_model(engine.store, ref, messages, prompt.list_sources, limits, as_chat=as_chat)
    context = to_context(found, sent, counted)
    return msgspec.structs.replace(context, build=found.explain()) if look.compare else context


def to_context(found: FoundPrompt, sent: Sequence[Message], provider: int | None = None) -> Context:
    """Return a prompt in the form that callers of the library get.

    Args:
        found: the prompt.
        sent: its messages as they are sent: with media, if the model accepts media.
        provider: the provider's token count; None: it did not count.
    """
    prompt, built, record, call = found.prompt, found.built, found.prompt.record, found.prompt.call
    system, messages = to_dialect(record.dialect, sent, found.responder)
    if built is not None:
        counted = built.describe_count(provider)
    else:
        reported = call.prompt_tokens if call else 0
        counted = MeasuredCount(reported or prompt.total_tokens, "provider" if reported else "estimate", 0.0)
    return Context(
        messages=messages,
        conversation_tokens=record.tokens,
        total_tokens=prompt.total_tokens,
        budget=record.limit,
        hash=prompt.hash if built is None else built.hash,
        decisions=list_decisions(record),
        system=system,
        sources=_list_sources(prompt, sent),
        provider_count=counted,
        sent_hash=call.hash.hex() if call else None,
    )


def _list_sources(prompt: ShownPrompt, sent: Sequence[Message]) -> list[MessageSource]:
    """Return, for each message in the dialect's format, the log entries that the message comes from; an empty list for Gemini."""
    sources = list_message_sources(prompt)
    match prompt.record.dialect:
        case "anthropic":
            return join_sources(sources, map_blocks(sent))
        case "gemini":
            return []
        case _:
            return join_sources(sources, [group for _, group in move_media_after_results(sent)])


def to_dialect(
    dialect: Dialect, sent: Sequence[Message], responder: Responder
) -> tuple[list[dict[str, Any]] | dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the system prompt and the messages in the format of a provider's API (the dialect).

    The system prompt is None if the dialect has it among the messages.
    """
    match dialect:
        case "anthropic":
            is_marked = responder.llm.params.get("cache_control") is not False
            request = encode_messages(sent, cache=MARK if is_marked else None)
            return request.get("system"), request["messages"]
        case "gemini":
            request = gemini.encode_messages(sent)
            return request.get("systemInstruction"), request["contents"]
        case _:
            return None, [to_chat_message(message) for message, _ in move_media_after_results(sent)]
