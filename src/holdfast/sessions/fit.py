"""Fit a conversation into a token budget without a store, a session or a model call."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents import Responder, Roster
from holdfast.context.build import Request, build
from holdfast.context.dialects import Dialect, check_dialect
from holdfast.context.escaping import derive_marker
from holdfast.context.settings import ContextSettings, parse
from holdfast.domain.calibration import Learned
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, encode_without_origin
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.errors import InvalidRequest
from holdfast.sessions.contexts import Context, to_context
from holdfast.sessions.prompt_lookup import FoundPrompt
from holdfast.tokens import STORED
from holdfast.wire.openai import split_system
from holdfast.wire.sendable import Sendable, check_text, parse_sendable, refuse_notes

if TYPE_CHECKING:
    from holdfast.sessions.handle import SessionHandle


def fit(
    messages: Sequence[Sendable],
    *,
    budget: int | None = None,
    strategy: str | None = None,
    model: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    max_tokens: int | None = None,
    dialect: Dialect = "openai",
    session: SessionHandle | None = None,
    **options: Any,
) -> Context:
    """Return the messages of a conversation that a model should see, within a budget and valid for its provider.

    Nothing is stored and no model is called. The result depends only on the arguments and, for the label of texts that
    Holdfast adds, on this process. If messages are added at the end, the beginning of the result stays the same until
    old messages have to be left out, so that a provider's prompt cache is used. The function uses the processor for about two
    milliseconds per 10 messages: call it in a thread if that would block an event loop.

    Args:
        messages: the whole conversation in order: dicts, messages of an SDK, or `holdfast.Message`. Leading system messages are the system
            prompt.
        budget: maximum tokens of the conversation, without the system prompt and tools; None: as many as the model's context window allows.
        strategy: name of the strategy; None: `digest`.
        model: the model whose context window and tokenizer apply; None: no limit but `budget`, counted with o200k.
        tools: tool schemas that will be sent too.
        max_tokens: the longest reply, which the context window must leave free; None: the default reserve.
        dialect: the format of the messages: `openai`, `anthropic` or `gemini`.
        session: the session whose strategy, settings and model apply if the other arguments do not name them. Its log is not read. None:
            the defaults above apply.
        options: settings of the strategy, for example `window_size=4` with `head_tail`.

    Returns:
        The messages to send. For each item of `messages`, `sources` has the numbers of the given messages that it comes from, counted from
        0 without the system prompt.

    Raises:
        InvalidRequest: neither `budget`, `model` nor `session` is given, or a setting, the strategy or the dialect is unknown.
        InvalidMessage: a message is invalid; the error names its position.
        BudgetTooSmall: no valid working set fits; the error says how many tokens are needed.
    """
    if budget is None and model is None and session is None:
        raise InvalidRequest("give a budget in tokens, or the model whose context window applies", param="budget")
    given = {"strategy": strategy, "budget": budget, **options}
    base = None if session is None else session.responder.context
    settings = parse({name: value for name, value in given.items() if value is not None}, where="", base=base)
    responder = Roster().find_responder() if session is None else session.responder
    parsed = parse_sendable(messages).messages
    refuse_notes(parsed)
    system, conversation = split_system(parsed)
    entries = _make_entries(conversation)
    request = _make_request(responder, settings, model, max_tokens, tools)
    request = msgspec.structs.replace(request, system=system, dialect=check_dialect(dialect))
    built = build(request.with_marker(_derive_marker(conversation)), None, (), entries)
    return to_context(FoundPrompt(built.show(), built, responder), built.messages)


def _make_request(
    responder: Responder,
    settings: ContextSettings,
    model: str | None,
    max_tokens: int | None,
    tools: Sequence[Mapping[str, Any]],
) -> Request:
    responder = msgspec.structs.replace(responder, context=settings)
    if model is not None:
        check_text(model, "model")
        llm = msgspec.structs.replace(responder.llm, model=model, name=model)
        responder = msgspec.structs.replace(responder, llm=llm)
    made = responder.make_request(Learned(), max_tokens, tools)
    # Recall searches an index of the session, and there is neither.
    return msgspec.structs.replace(made, strategy=msgspec.structs.replace(made.strategy, recall=False))


def _make_entries(conversation: Sequence[Message]) -> list[Entry]:
    new = [NewEntry(message=one, tokens=STORED.message(one), timestamp=0) for one in conversation]
    return extend(Tail(), new)[0]


@cache
def _get_secret() -> bytes:
    return secrets.token_bytes(32)


def _derive_marker(conversation: Sequence[Message]) -> str:
    """Return a text that marks blocks written by Holdfast. It stays the same while messages are added, and cannot be guessed."""
    first = next((one for one in conversation if one.role == "user"), None)
    identity = b"" if first is None else encode_without_origin(first)
    return derive_marker(_get_secret(), hashlib.blake2b(identity, digest_size=16).hexdigest())
