"""The request for a preview of a session's context, and its result, in the forms for the library and for providers' APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.agents import Responder
from holdfast.context.build import WorkingSet
from holdfast.context.dialects import Dialect
from holdfast.context.explain import (
    PrefixBreak,
    Run,
    describe_overhead,
    describe_prefix,
    describe_recorded,
    find_break,
    list_decisions,
    measure_compactions,
)
from holdfast.context.fitting import move_media_after_results
from holdfast.context.parts import ShownPrompt
from holdfast.context.prefix_diff import Prefix
from holdfast.context.settings import ContextSettings
from holdfast.context.sources import MessageSource, join_sources, list_message_sources
from holdfast.domain.calibration import MeasuredCount
from holdfast.domain.messages import Message
from holdfast.domain.objects import Count
from holdfast.models.codecs import gemini
from holdfast.models.codecs.messages.blocks import encode_messages, map_blocks
from holdfast.models.codecs.messages.cache import MARK
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
    provider_count: dict[str, Any] = {}
    """Tokens of the whole prompt according to the provider: the number (`tokens`), the method (`how`), and the `margin` of error, from 0 to
    1."""
    sent_hash: str | None = None
    """With `at_turn`: the hash that was recorded with the model call. If it equals `hash`, this prompt is the one that was sent."""
    system: list[dict[str, Any]] | dict[str, Any] | None = None
    """The system prompt, if the dialect sends it apart from the messages: Anthropic's `system` or Gemini's `systemInstruction`."""
    sources: list[MessageSource] = []
    """For each item of `messages`: the log entries that the message comes from. Empty for Gemini."""

    def __repr__(self) -> str:
        size = f"{self.conversation_tokens:,} of {self.budget:,} tokens"
        return f"<context of {len(self.messages)} messages, {size}>"


class PreviewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to build a working set without calling a model: for which agent, settings and turn."""

    responder: Responder
    settings: ContextSettings
    system: tuple[Message, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    dialect: Dialect = "openai"
    at_turn: int | None = None
    """Return the prompt of the last model call in this turn; None: build it from the current state."""
    touch: bool = True
    """True: the preview counts as use of the session. Previews of a past turn, or with `explain`, never count."""
    use_recorded: bool = False
    """True: with `at_turn`, return the prompt that was sent; False: build it with `settings`."""
    save: bool = False
    """True if the caller sends the prompt to a model. The next prompt then continues from this one."""
    explain: bool = False
    """True: compare the working set with the prompt that was sent last."""
    fresh: bool = False
    """True: if no turn uses the same settings, build from the whole log, and not from what an earlier preview saved. Not for long sessions."""
    through: int | None = None
    """With `at_turn`, if the prompt is built: `seq` of its last message; None: the last one before the reply that ended the turn."""


class Preview(NamedTuple):
    """A prompt for a `PreviewRequest`: one that was sent, or one that was built."""

    prompt: ShownPrompt
    built: WorkingSet | None
    """The working set; None: the prompt was sent."""
    summaries: dict[str, Any] | None = None
    """For an explanation: the summary in use, or the reason why no summary can be made, and until when that applies."""
    provider: int | None = None
    """The provider's token count of the prompt, if the model is configured to ask for it and the provider answered."""
    sent: Sequence[Message] = ()
    """Messages of the prompt as they are sent: with media, if the model accepts media."""
    marked: bool = True
    """True if messages for Anthropic get marks for its prompt cache."""
    before: ShownPrompt | None = None
    """With `PreviewRequest.explain`: the prompt that was sent before; None if there is none."""
    not_sent: str | None = None
    """With `PreviewRequest.at_turn`, if no prompt of the turn is recorded: the reason, and what was built instead."""

    def explain(self) -> dict[str, Any]:
        """Return an explanation of how the prompt was built. That of a past call has no calculation from the model's context window."""
        if self.built is not None:
            explained = self.built.explain()
        else:
            record, recalled = self.prompt.record, describe_recorded(self.prompt.record)
            explained = {
                "strategy": {"strategy": record.strategy, **record.options},
                "budget": {
                    "input": record.input_budget,
                    "system_and_tools": sum(record.overhead),
                    "conversation": record.limit,
                    "used": record.tokens,
                },
                "overhead": describe_overhead(record),
                **({"recalled": recalled} if recalled else {}),
                "frontier": record.frontier,
                "compactions": [one.to_wire() for one in measure_compactions(record, list_decisions(record))],
                "prefix": describe_prefix(*compare_prefix(self.before, self.prompt)),
                "hash": self.prompt.hash,
            }
        explained |= {"not_sent": self.not_sent} if self.not_sent else {}
        return explained | ({"summaries": self.summaries} if self.summaries else {})


def compare_prefix(before: ShownPrompt | None, now: ShownPrompt) -> tuple[Prefix, PrefixBreak | None]:
    """Return the common prefix of a prompt and the one before, and where it ends."""
    if before is None:
        return Prefix(0, None), None
    pairs = zip(before.messages, now.messages, strict=False)
    common = next((at for at, (old, new) in enumerate(pairs) if old.message != new.message), None)
    shorter = min(len(before.messages), len(now.messages))
    prefix = Prefix(shorter if common is None else common, len(before.messages))
    return prefix, find_break(prefix, before.record, now.record)


def to_context(found: Preview) -> Context:
    """Convert a preview to a `Context`, the form that callers of the library get."""
    prompt, built, record = found.prompt, found.built, found.prompt.record
    system, messages = to_dialect(record.dialect, found.sent, marked=found.marked)
    if built is not None:
        counted = built.describe_count(found.provider)
    else:
        reported = prompt.call.prompt_tokens if prompt.call else 0
        counted = MeasuredCount(reported or prompt.total_tokens, "provider" if reported else "estimate", 0.0)
    return Context(
        messages=messages,
        conversation_tokens=record.tokens,
        total_tokens=prompt.total_tokens,
        budget=record.limit,
        hash=prompt.hash if built is None else built.hash,
        decisions=list_decisions(record),
        system=system,
        sources=_list_sources(found),
        provider_count=counted.to_wire(),
        sent_hash=prompt.call.hash.hex() if prompt.call else None,
    )


def _list_sources(found: Preview) -> list[MessageSource]:
    """Return, for each message in the dialect's format, the log entries that the message comes from; an empty list for Gemini."""
    sources = list_message_sources(found.prompt)
    match found.prompt.record.dialect:
        case "anthropic":
            return join_sources(sources, map_blocks(found.sent))
        case "gemini":
            return []
        case _:
            return join_sources(sources, [group for _, group in move_media_after_results(found.sent)])


def to_dialect(
    dialect: Dialect, sent: Sequence[Message], *, marked: bool
) -> tuple[list[dict[str, Any]] | dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the system prompt and the messages in the format of a provider's API (the dialect).

    The system prompt is None if the dialect has it among the messages.
    """
    match dialect:
        case "anthropic":
            request = encode_messages(sent, cache=MARK if marked else None)
            return request.get("system"), request["messages"]
        case "gemini":
            request = gemini.encode_messages(sent)
            return request.get("systemInstruction"), request["contents"]
        case _:
            return None, [to_chat_message(message) for message, _ in move_media_after_results(sent)]
