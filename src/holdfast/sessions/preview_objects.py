"""The request for a preview of a session's context, and its result, in the forms for the library and for providers' APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.agents import Responder
from holdfast.context.build import WorkingSet
from holdfast.context.dialects import Dialect
from holdfast.context.explain import BuildRecord, Run
from holdfast.context.fitting import move_media_after_results
from holdfast.context.presence import Departure
from holdfast.context.settings import ContextSettings
from holdfast.context.sources import MessageSource, join_sources, list_message_sources
from holdfast.domain.messages import Message
from holdfast.domain.objects import Count
from holdfast.domain.session import Entry, ModelCall
from holdfast.models.codecs import gemini
from holdfast.models.codecs.messages.blocks import encode_messages, map_blocks
from holdfast.models.codecs.messages.cache import MARK
from holdfast.sessions.prompt_sections import DividedPrompt
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
    """Build the context that the model saw at its last call in this turn; None: build it from the current state."""
    call: int | None = None
    """With `at_turn`: the number of the call in the turn, from 0; None: the last call of the turn that used the view."""
    touch: bool = True
    """True: the preview counts as use of the session. Previews of a past turn, or with `explain`, never count."""
    use_recorded: bool = False
    """True: with `at_turn`, use the settings with which the turn was sent instead of `settings`, if they were recorded."""
    save: bool = False
    """True if the caller sends the prompt to a model. The next prompt then continues from this one."""
    explain: bool = False
    """True: compare the working set with the prompt that was sent last. That prompt is rebuilt from the log."""
    through: int | None = None
    """With `at_turn`, if no prompt of the turn can be rebuilt: `seq` of the last message of the prompt to build instead; None: the last one
    before the reply that ended the turn."""
    compare: bool = False
    """True: also return the prompt that was sent before, if past prompts are rebuilt."""
    trace: frozenset[int] = frozenset()
    """`seq` of messages for which to find when they left the prompt, if past prompts are rebuilt."""


class SentPrompt(NamedTuple):
    """A recorded model call and its rebuilt prompt."""

    call: ModelCall
    prompt: DividedPrompt
    is_exact: bool
    """True if the rebuilt prompt equals the sent one."""


class Preview(NamedTuple):
    """A working set that was built for a `PreviewRequest`, with details about how it was built."""

    built: WorkingSet
    call: ModelCall | None = None
    """The recorded model call whose prompt was rebuilt; None if no recorded prompt was rebuilt."""
    record: BuildRecord | None = None
    """The record of how the prompt of `call` was built."""
    summaries: dict[str, Any] | None = None
    """For an explanation: the summary in use, or the reason why no summary can be made, and until when that applies."""
    provider: int | None = None
    """The provider's token count of the prompt, if the model is configured to ask for it and the provider answered."""
    sent: Sequence[Message] = ()
    """Messages of the prompt as they are sent: with media, if the model accepts media."""
    marked: bool = True
    """True if messages for Anthropic get marks for its prompt cache."""
    entries: Sequence[Entry] = ()
    """All live messages of the session, if they were read to rebuild past prompts; otherwise empty."""
    departures: Mapping[int, Departure] = {}
    """Model call at which each message in `PreviewRequest.trace` left the prompt, by `seq`. Messages that did not leave the prompt are
    missing."""
    before: SentPrompt | None = None
    """With `PreviewRequest.compare`: the prompt that the same agent sent before this one; None if there is none."""
    not_sent: str | None = None
    """With `PreviewRequest.at_turn`, if no prompt of the turn could be rebuilt: the reason, and what was built instead."""

    @property
    def is_exact(self) -> bool | None:
        """True if the rebuilt prompt equals the sent one; None if no recorded prompt was rebuilt."""
        return self.call.hash.hex() == self.built.hash if self.call else None

    def explain(self) -> dict[str, Any]:
        """Return an explanation of how the prompt was built.

        For a past call, the explanation has the recorded budget, without its calculation from the model's context window.
        """
        explained = self.built.explain()
        if self.record is not None:
            arithmetic = {"input": self.record.input_budget, "system_and_tools": self.record.overhead}
            kept = {name: explained["budget"][name] for name in ("conversation", "used", "counter")}
            explained["budget"] = {**arithmetic, **kept}
            recalled = self.record.describe_recalled()
            explained |= {"recalled": recalled} if recalled else {}
        explained |= {"not_sent": self.not_sent} if self.not_sent else {}
        return explained | ({"summaries": self.summaries} if self.summaries else {})


def to_context(found: Preview) -> Context:
    """Convert a preview to a `Context`, the form that callers of the library get."""
    built = found.built
    system, messages = to_dialect(built.request.dialect, found.sent, marked=found.marked)
    return Context(
        messages=messages,
        conversation_tokens=built.tokens,
        total_tokens=built.total_tokens,
        budget=built.budget,
        hash=built.hash,
        decisions=built.list_decisions(),
        system=system,
        sources=_list_sources(found),
        provider_count=built.describe_count(found.provider).to_wire(),
        sent_hash=found.call.hash.hex() if found.call else None,
    )


def _list_sources(found: Preview) -> list[MessageSource]:
    """Return, for each message in the dialect's format, the log entries that the message comes from; an empty list for Gemini."""
    sources = list_message_sources(found.built)
    match found.built.request.dialect:
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
