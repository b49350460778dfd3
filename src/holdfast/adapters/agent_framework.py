"""A history provider and a chat middleware for Microsoft's Agent Framework: the log keeps every message, the model gets fewer.

A call of the model gets the *working set*: the prompt that Holdfast builds within a token budget.

    history = HoldfastHistoryProvider(hf, user_id="ada", budget=8000)
    agent = Agent(client, context_providers=[history], require_per_service_call_history_persistence=True)
    await agent.run("Where is my order?", session=agent.create_session(session_id="trip-7"))

Facts about agent-framework-core 1.23 that this module relies on:

- `before_run` adds messages to the context. The framework sends them, followed by `context.input_messages`. `after_run` stores the
  input and the reply.
- With `require_per_service_call_history_persistence`, both run around each call of the model, and the input of a call in a tool loop
  is only the results of the last calls. Otherwise both run once, and chat middleware sees the growing list of messages at each call.
- `HistoryProvider.before_run` removes resolved approvals from what `get_messages` returns, and `HistoryProvider.after_run` passes its
  `state` on to `save_messages`. Both are called here, so that the framework's own rules apply.
- `Message.to_dict` replaces the text of an `exception` by a marker, and leaves out `raw_representation`.
- A reply can be several messages, of which one may contain only reasoning.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from agent_framework import AgentSession, ChatContext, ChatMiddleware, Content, HistoryProvider, Message, SessionContext

import holdfast
from holdfast.adapters._shared import find_runner, finish_write, read_entries, to_chat
from holdfast.errors import BudgetTooSmall, InvalidMessage, NotFound

__all__ = ["HoldfastHistoryProvider", "WorkingSetMiddleware"]

Json = dict[str, Any]
SYSTEM: Final = frozenset({"system", "developer"})
ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
CALLS: Final = frozenset({"function_call", "computer_tool_call", "shell_tool_call"})
"""Types of contents that are tool calls, unless their results are in the same message."""
RESULTS: Final = frozenset({"function_result", "computer_tool_result", "shell_tool_result"})
APPROVALS: Final = frozenset({"function_approval_request", "function_approval_response"})
HIDDEN: Final = APPROVALS | {"oauth_consent_request", "text_reasoning", "usage"}
"""Types of contents that a prompt in Chat Completions format does not have."""
JOINED: Final = "holdfast_joined"
"""Key in an origin: True if its contents belong to the same message as those of the entry before."""
GENERATED: Final = "holdfast_generated"
"""Key in the `additional_properties` of a message that Holdfast wrote for a prompt."""
LOADED: Final = "holdfast_loaded"
"""Key of the state that `before_run` passes to `get_messages`: the messages to return."""
STORED: Final = "holdfast_stored"
"""Key of the state that `after_run` passes to `save_messages`: the input messages that are stored already."""
USER: Final = "holdfast_user"
"""Key of the same state: the owner of the session."""


@dataclasses.dataclass
class _Piece:
    """A message in Chat Completions format, and its source: a message of the framework with some or all of its contents."""

    message: Json | None
    """None if the source has nothing that this format has, for example a message that only approves a call."""
    own: Message
    at: int = -1
    """Index of the whole message in the list that was split."""
    seq: int = -1
    """Position in the log, or index of the piece; -1 for a message that Holdfast wrote."""
    is_joined: bool = False
    """True if the piece belongs to the same message as the piece before."""
    is_whole: bool = True
    """False if the piece was shortened or generated for the prompt."""

    @property
    def is_generated(self) -> bool:
        """True if Holdfast wrote the message for a prompt."""
        return bool(self.own.additional_properties.get(GENERATED))

    def make_entry(self, *, strict: bool) -> Json:
        """Return a message, or a note, for the log.

        Args:
            strict: False replaces values that JSON does not have by texts.
        """
        origin = {**self.own.to_dict(), **({JOINED: True} if self.is_joined else {})}
        origin = origin if strict else json.loads(json.dumps(origin, default=str))
        return {**(self.message or {"role": "note"}), "origin": origin}


class HoldfastHistoryProvider(HistoryProvider):
    """Stores the messages of agents, and loads the working set of a session instead of all its messages.

    Messages that are sent in full are exactly the stored ones, with reasoning and its protected data. Input is stored before the model
    is called. If a run is repeated with the same unanswered input, the input is not stored again.

    Args:
        hf: an open `Holdfast`; or a `holdfast.Portal()`, if agents run in several event loops.
        budget: maximum tokens of the conversation; None: the budget of `hf`, or as many tokens as the model's context window allows.
        strategy: name of the strategy; None: the strategy of `hf`, or `digest`.
        user_id: the owner of the sessions, or a function that returns it for an `AgentSession`.
        source_id: the provider's id in the framework.
        load_messages, store_inputs, store_context_messages, store_context_from, store_outputs: as in `HistoryProvider`.
        options: settings of the strategy; and `model`, whose tokenizer and context window apply.
    """

    def __init__(
        self,
        hf: holdfast.Holdfast | holdfast.Portal,
        *,
        budget: int | None = None,
        strategy: str | None = None,
        user_id: str | Callable[[AgentSession], str] = "default",
        source_id: str = "holdfast",
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self._hf, self._user_id = hf, user_id
        given = {"budget": budget, "strategy": strategy, **options}
        self._options = {name: value for name, value in given.items() if value is not None}

    async def get_messages(
        self, session_id: str | None, *, state: Json | None = None, user_id: str | None = None, **kwargs: Any
    ) -> list[Message]:
        """Return all messages of a session, exactly as they were saved. A session that does not exist has no messages.

        Args:
            session_id: the session.
            state: not used, except by this class itself.
            user_id: the owner; None: the provider's `user_id`.
            kwargs: not used.
        """
        if state is not None and LOADED in state:
            loaded: list[Message] = state[LOADED]
            return loaded
        if session_id is None:
            return []
        run, hf = find_runner(self._hf)
        try:
            session = await run(hf.get, session_id, user_id=self._find_user(user_id))
        except NotFound:
            return []
        pieces = [piece for entry in await run(session.entries) if (piece := _load(entry)) is not None]
        return [message for message, _ in _join(pieces)]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: Json | None = None,
        user_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Append messages to a session: all of them, or none if this fails or is cancelled. A cancelled call ends only after its write.

        Messages at the beginning that repeat the end of the session are not stored again, as in the framework's own providers.

        Args:
            session_id: the session.
            messages: the messages.
            state: not used, except by this class itself.
            user_id: the owner; None: the provider's `user_id`.
            kwargs: not used.

        Raises:
            ValueError: `session_id` is None.
        """
        given = state or {}
        stored = given.get(STORED, ())
        new = [message for message in messages if not any(message is one for one in stored)]
        if not new:
            return
        if session_id is None:
            raise ValueError("Holdfast stores messages in sessions: pass a session id")
        run, hf = find_runner(self._hf)
        session = await run(hf.session, session_id, user_id=self._find_user(user_id or given.get(USER)))
        newest, is_whole = await _read_newest(run, session, len(_split(new)))
        known = _count_known([message for message, _ in newest], new, is_whole=is_whole)
        if new := new[known:]:
            await _append(run, session, _split(new))

    async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: Json) -> None:
        """Store the input, and add the working set of the session to the context."""
        run, hf = find_runner(self._hf)
        handle = await run(hf.session, context.session_id, user_id=self._find_user(None, session))
        given, own = context.input_messages, []
        if self.store_inputs and not self.store_context_messages:
            own = await _store_input(run, handle, given)
        built = await run(handle.context, save=True, **self._options)
        seqs = [seq for source in built.sources if source.kind == "entry" for seq in source.seqs]
        input_seqs = {piece.seq for piece in own}
        entries = await read_entries(run, handle, [*seqs, *input_seqs])
        contents = [content for message in given for content in message.contents]
        calls = [content.function_call for content in contents if content.type in APPROVALS]
        answers = [*(content for content in contents if content.type in RESULTS), *(call for call in calls if call)]
        pieces = _load_working_set(built, entries, {answer.call_id for answer in answers if answer.call_id})
        if own:
            context.input_messages = _choose_input(given, own, pieces)
            context.metadata[self._stored_key] = context.input_messages
        history = [message for message, _ in _join(piece for piece in pieces if piece.seq not in input_seqs)]
        await super().before_run(agent=agent, session=session, context=context, state={LOADED: history})
        context.extend_middleware(self.source_id, WorkingSetMiddleware(**{**self._options, "budget": built.budget}))

    async def after_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: Json) -> None:
        """Store the reply, and the input if it is not stored yet."""
        given = {STORED: context.metadata.get(self._stored_key, ()), USER: self._find_user(None, session)}
        await super().after_run(agent=agent, session=session, context=context, state=given)

    @property
    def _stored_key(self) -> str:
        return f"{STORED}:{self.source_id}"

    def _find_user(self, user_id: str | None, session: AgentSession | None = None) -> str:
        if user_id is not None or isinstance(self._user_id, str):
            return user_id or str(self._user_id)
        if session is None:
            raise ValueError("user_id of this provider is a function: pass user_id=… too")
        return self._user_id(session)


class WorkingSetMiddleware(ChatMiddleware):
    """Fits the messages of each call of a model into a token budget. Nothing is stored.

    `HoldfastHistoryProvider` adds one to each run, so that long tool loops are bounded too. Use it alone with another history provider.

    Args:
        budget: maximum tokens of the conversation; None: as many tokens as the context window of `model` allows.
        strategy: name of the strategy; None: `digest`.
        model: the model whose tokenizer and context window apply; None: counted with o200k.
        options: settings of the strategy.
    """

    def __init__(
        self, *, budget: int | None = None, strategy: str | None = None, model: str | None = None, **options: Any
    ) -> None:
        given = {"strategy": strategy, "model": model, **options}
        self._options = {name: value for name, value in given.items() if value is not None}
        self._budget = budget

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Replace the messages of this call, and call the model."""
        context.messages = await asyncio.to_thread(self._fit, context.messages)
        await call_next()

    def _fit(self, messages: Sequence[Message]) -> list[Message]:
        split = _split(messages)
        own = [piece for piece in split if not piece.is_generated]
        given = [piece for piece in own if piece.message is not None]
        built, generated = self._build(given, [piece for piece in split if piece.is_generated])
        first = next((at for at, piece in enumerate(given) if piece.own.role not in SYSTEM), len(given))
        made = _restore(built, dict(enumerate(given[first:])), leading=given[:first])
        for extra in [*_find_notes(own, made), *generated]:
            _insert(made, extra)
        counts = Counter(piece.at for piece in split)
        return [
            messages[parts[0].at]
            if all(piece.is_whole for piece in parts) and len(parts) == counts[parts[0].at]
            else message
            for message, parts in _join(made)
        ]

    def _build(self, given: list[_Piece], generated: list[_Piece]) -> tuple[holdfast.Context, list[_Piece]]:
        """Fit messages into what earlier texts of Holdfast leave of the budget, or into the whole budget without these texts."""
        chats = [piece.message for piece in given]
        if generated and self._budget is not None:
            tokens = holdfast.fit([piece.message for piece in generated], budget=2**31).conversation_tokens
            with suppress(BudgetTooSmall):
                return holdfast.fit(chats, budget=max(1, self._budget - tokens), **self._options), generated
        return holdfast.fit(chats, budget=self._budget, **self._options), []


# -- the log -------------------------------------------------------------------


async def _append(run: Callable[..., Awaitable[Any]], session: holdfast.SessionHandle, pieces: list[_Piece]) -> Any:
    try:
        return await finish_write(run(session.append, [piece.make_entry(strict=True) for piece in pieces]))
    except InvalidMessage:  # properties may have values that JSON does not have
        return await finish_write(run(session.append, [piece.make_entry(strict=False) for piece in pieces]))


async def _read_newest(
    run: Callable[..., Awaitable[Any]], session: holdfast.SessionHandle, count: int
) -> tuple[list[tuple[Message, list[_Piece]]], bool]:
    """Return the messages in the newest entries of the log, each with its pieces, and whether these are all messages.

    Args:
        run: the function that `find_runner` returned.
        session: the session.
        count: number of entries to read.
    """
    entries = (await run(session.entries, limit=count, descending=True))[::-1]
    pieces = [piece for entry in entries if (piece := _load(entry)) is not None]
    first = next((at for at, piece in enumerate(pieces) if not piece.is_joined), len(pieces))
    return _join(pieces[first:]), len(entries) < count


def _count_known(known: Sequence[Message], messages: Sequence[Message], *, is_whole: bool) -> int:
    """Return the number of messages up to the last one that is stored already, if callers repeat the end of a conversation.

    The rules are those of the framework's own providers. One user message without an id may be meant to be repeated, so it is new.

    Args:
        known: the newest stored messages.
        messages: the messages to store.
        is_whole: True if `known` are all stored messages.
    """
    stored, given = [_identify(one) for one in known], [_identify(one) for one in messages]
    may_repeat = bool(known) and known[-1].role == "user" and known[-1].message_id is None
    if is_whole and stored:
        for at in range(len(given) - len(stored) + 1):
            if given[at : at + len(stored)] == stored:
                if at == 0 and len(stored) == 1 and may_repeat:
                    break
                return at + len(stored)
    for overlap in range(min(len(stored), len(given)), 0, -1):
        if stored[-overlap:] == given[:overlap] and not (overlap == 1 and may_repeat):
            return overlap
    return 0


def _identify(message: Message) -> tuple[str, ...]:
    """Return an id that equal messages share."""
    if message.message_id is not None:
        return ("id", str(message.message_id))
    contents = [content.to_dict() for content in message.contents]
    return (str(message.role), json.dumps(contents, sort_keys=True, default=str))


async def _store_input(
    run: Callable[..., Awaitable[Any]], session: holdfast.SessionHandle, messages: Sequence[Message]
) -> list[_Piece]:
    """Store the input of a run, and return its pieces with their positions in the log.

    Pieces of messages that the caller repeats from the history are left out. If the input is the end of the log already, because an
    earlier run with it failed, its stored pieces are returned.
    """
    pieces = _split(messages)
    if not pieces:
        return []
    newest, is_whole = await _read_newest(run, session, len(pieces))
    unanswered = newest[-len(messages) :]
    seqs = [piece.seq for _, parts in unanswered for piece in parts]
    same = [_identify(message) for message, _ in unanswered] == [_identify(message) for message in messages]
    if not same or len(seqs) != len(pieces):
        known = _count_known([message for message, _ in newest], messages, is_whole=is_whole)
        pieces = [piece for piece in pieces if piece.at >= known]
        seqs = [entry.seq for entry in (await _append(run, session, pieces)).entries] if pieces else []
    return [dataclasses.replace(piece, seq=seq) for piece, seq in zip(pieces, seqs, strict=True)]


def _load(entry: Any) -> _Piece | None:
    """Return the piece that an entry of the log stores. None for a note of another program; its messages are converted."""
    origin = entry.message.origin
    is_own = isinstance(origin, dict) and origin.get("type") == "message" and isinstance(origin.get("contents"), list)
    if not is_own:
        return None if entry.is_note else _Piece(made := to_chat(entry.message), _convert(made), seq=entry.seq)
    own = Message.from_dict({name: value for name, value in origin.items() if name != JOINED})
    message = None if entry.is_note else to_chat(entry.message)
    return _Piece(message, own, seq=entry.seq, is_joined=JOINED in origin)


# -- working set -> messages ----------------------------------------------------


def _load_working_set(built: holdfast.Context, entries: Sequence[Any], answered: Collection[str]) -> list[_Piece]:
    """Convert a working set of a session to pieces.

    Args:
        built: the working set.
        entries: entries of the log, at least those in the working set.
        answered: ids of calls whose results the run adds itself.
    """
    stored = [piece for entry in entries if (piece := _load(entry)) is not None]
    pieces = _restore(built, {piece.seq: piece for piece in stored}, answered=answered)
    for note in _find_notes(stored, pieces):
        _insert(pieces, note)
    return pieces


def _restore(
    built: holdfast.Context,
    known: dict[int, _Piece],
    *,
    leading: Sequence[_Piece] = (),
    answered: Collection[str] = (),
) -> list[_Piece]:
    """Convert a working set to pieces. Pieces that are sent in full are the known ones.

    Args:
        built: the working set.
        known: pieces by the number that the working set's sources have for them.
        leading: the pieces of the leading system messages, which have no numbers; empty: they are converted.
        answered: ids of calls for which no placeholder is needed.
    """
    sources = [(message, source, known.get(source.seqs[0]) if source.seqs else None) for message, source in _zip(built)]
    # Chat Completions need media of results in a message of the user; this framework has them in the result.
    moved = {
        id(piece) for message, _, piece in sources if piece and message["role"] == "user" and piece.own.role == "tool"
    }
    made: list[_Piece] = []
    systems = iter(leading)
    for message, source, piece in sources:
        if source.kind == "added" and message.get("tool_call_id") in answered:
            continue
        if source.kind == "entry" and piece and id(piece) in moved:
            made += [piece] if message["role"] == "tool" else []
        elif source.kind == "entry" and piece and source.verbatim:
            made.append(piece)
        elif source.kind == "system" and leading:
            made.append(next(systems))
        else:
            own = _convert(message)
            own.additional_properties |= {} if source.kind in ("entry", "system", "added") else {GENERATED: True}
            seq, joined = (piece.seq, piece.is_joined) if piece else (-1, False)
            joined = joined and source.kind == "entry"
            made.append(_Piece(dict(message), own, seq=seq, is_joined=joined, is_whole=False))
    return made


def _zip(built: holdfast.Context) -> Iterable[tuple[Json, Any]]:
    return zip(built.messages, built.sources, strict=True)


def _find_notes(pieces: Sequence[_Piece], made: Sequence[_Piece]) -> list[_Piece]:
    """Return the pieces that no prompt contains and that belong to a working set: those directly before a message that is sent in full.

    Examples are reasoning that comes in a message of its own, and approvals, which the framework needs.
    """
    sent = {piece.seq for piece in made if piece.is_whole}
    found: list[_Piece] = []
    follows = True
    for piece in reversed(pieces):
        if piece.message is not None:
            follows = piece.seq in sent
        elif follows:
            found.append(piece)
    return found[::-1]


def _insert(pieces: list[_Piece], extra: _Piece) -> None:
    pieces.insert(next((at for at, piece in enumerate(pieces) if piece.seq >= extra.seq), len(pieces)), extra)


def _choose_input(messages: Sequence[Message], own: Sequence[_Piece], pieces: Sequence[_Piece]) -> list[Message]:
    """Return the input as the working set contains it. Messages that are sent in full stay the same objects.

    Args:
        messages: the input.
        own: its pieces in the log.
        pieces: the working set.
    """
    sent = {piece.seq: piece for piece in pieces}
    chosen: list[Message] = []
    for at, group in itertools.groupby(own, key=lambda piece: piece.at):
        parts = [sent.get(piece.seq) for piece in group if piece.message is not None]
        if all(piece is not None and piece.is_whole for piece in parts):
            chosen.append(messages[at])
        else:
            chosen += [message for message, _ in _join(piece for piece in parts if piece is not None)]
    return chosen


def _join(pieces: Iterable[_Piece]) -> list[tuple[Message, list[_Piece]]]:
    """Join pieces of the same message. Return messages, each with its pieces."""
    joined: list[tuple[Message, list[_Piece]]] = []
    for piece in pieces:
        if piece.is_joined and joined and joined[-1][1][-1].seq == piece.seq - 1:
            message, parts = joined[-1]
            whole = copy.copy(message)
            whole.contents = [*message.contents, *piece.own.contents]
            joined[-1] = (whole, [*parts, piece])
        else:
            joined.append((piece.own, [piece]))
    return joined


# -- messages ------------------------------------------------------------------


def _split(messages: Sequence[Message]) -> list[_Piece]:
    """Convert messages. A message with several results becomes several pieces, because each is a message in Chat Completions format."""
    pieces: list[_Piece] = []
    for at, message in enumerate(messages):
        for number, contents in enumerate(_group(message)):
            own = message
            if len(contents) < len(message.contents):
                own = copy.copy(message)
                own.contents = contents
            pieces.append(_Piece(_to_chat(own), own, at, len(pieces), is_joined=number > 0))
    return pieces


def _group(message: Message) -> list[list[Content]]:
    """Divide the contents of a message that is no reply so that each part has at most one result."""
    groups: list[list[Content]] = [[]]
    for content in message.contents:
        has_result = any(one.type in RESULTS for one in groups[-1])
        if message.role != "assistant" and content.type in RESULTS and has_result:
            groups.append([])
        groups[-1].append(content)
    return groups


def _to_chat(message: Message) -> Json | None:
    """Convert a message to Chat Completions format; None if nothing in it can be converted."""
    visible = [content for content in message.contents if content.type not in HIDDEN]
    if not visible:
        return None
    if message.role == "assistant":
        return _to_reply(visible)
    result = next((content for content in visible if content.type in RESULTS), None)
    if result is not None:
        parts = [
            part
            for content in visible
            for part in (_list_result(content) if content is result else [_to_part(content)])
        ]
        return {"role": "tool", "tool_call_id": result.call_id or "unknown", "content": _simplify(parts)}
    role = message.role if message.role in ROLES - {"tool"} else "user"
    return {"role": role, "content": _simplify([_to_part(content) for content in visible])}


def _to_reply(contents: Sequence[Content]) -> Json:
    answered = {content.call_id for content in contents if content.type in RESULTS}
    calls, texts = [], []
    for content in contents:
        if content.type in CALLS and content.call_id not in answered:
            function = {"name": content.name or content.tool_name or content.type, "arguments": _to_arguments(content)}
            calls.append({"id": content.call_id or "unknown", "type": "function", "function": function})
        else:
            texts.append(content.text if content.type == "text" else _describe(content))
    reply: Json = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    return {**reply, "tool_calls": calls} if calls else reply


def _to_arguments(content: Content) -> str:
    if isinstance(content.arguments, str):
        return content.arguments
    if content.arguments is not None or content.type == "function_call":
        return json.dumps(content.arguments or {}, ensure_ascii=False, default=str)
    return json.dumps({"commands": content.commands, "actions": content.actions}, ensure_ascii=False, default=str)


def _list_result(content: Content) -> list[Json]:
    if content.type != "function_result":
        return [{"type": "text", "text": _describe(content)}]
    return [_to_part(item) for item in content.items or ()] or [{"type": "text", "text": str(content.result or "")}]


def _to_part(content: Content) -> Json:
    """Convert a content to a part of a message."""
    uri, kind = content.uri or "", (content.media_type or "").split("/")[0]
    if content.type == "text":
        return {"type": "text", "text": content.text or ""}
    if content.type in ("data", "uri") and kind == "image":
        return {"type": "image_url", "image_url": {"url": uri}}
    if content.type == "data" and kind == "audio" and "base64," in uri:
        form = {"mpeg": "mp3", "x-wav": "wav"}.get(subtype := str(content.media_type).split("/")[1], subtype)
        return {"type": "input_audio", "input_audio": {"data": uri.partition("base64,")[2], "format": form}}
    if content.type == "data":
        return {"type": "file", "file": {"filename": content.name or "file", "file_data": uri}}
    return {"type": "text", "text": _describe(content)}


def _simplify(parts: list[Json]) -> str | list[Json]:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _describe(content: Content) -> str:
    """Return a content of another kind as JSON, without media data."""
    return json.dumps(_drop_data(content.to_dict()), ensure_ascii=False, default=str)


def _drop_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_data(one) for name, one in value.items() if one not in ({}, None)}
    if isinstance(value, list):
        return [_drop_data(one) for one in value]
    return value[:40] if isinstance(value, str) and value.startswith("data:") else value


def _convert(message: Json) -> Message:
    """Convert a message that was shortened or generated for a prompt, or that another program wrote."""
    content = message.get("content") or ""
    items = [Content.from_text(content)] if isinstance(content, str) else [_load_part(part) for part in content]
    if message["role"] == "tool":
        return Message("tool", [Content.from_function_result(message["tool_call_id"], result=items)])
    calls = [
        Content.from_function_call(call["id"], call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return Message(message["role"], [*(items if content or not calls else []), *calls])


def _load_part(part: Json) -> Content:
    image = part.get("image_url")
    if part["type"] == "image_url" and image:
        return Content.from_uri(image["url"], media_type=None if image["url"].startswith("data:") else "image/*")
    return Content.from_text(str(part.get("text") or f"[{part['type']}]"))
