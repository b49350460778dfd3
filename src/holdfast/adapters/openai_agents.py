"""A session and an input filter for the OpenAI Agents SDK: the session keeps every item, the model gets fewer.

A call of the model gets the *working set*: the prompt that Holdfast builds within a token budget.

    session = HoldfastSession(hf, "trip-7", user_id="ada")
    config = RunConfig(call_model_input_filter=working_set_filter(session, budget=8000))
    await Runner.run(agent, "Where is my order?", session=session, run_config=config)

Facts about openai-agents 0.24 that this module relies on:

- The runner saves a reply together with the outputs of its calls, before the next call of the model.
- The runner passes the filter a copy of all items.
- To repeat a failed call, the runner compares the newest items of `get_items(limit=…)` and `pop_item`, so these methods return exactly the
  stored items.
- The runner passes `wrapper` only to sessions whose four methods all accept it. It is one object per run, and a run that continues a session
  first reads it.
- From what a run has read, the runner drops calls without an output, outputs whose call was cut off by the limit, the reasoning of both, and
  all but the last of several items with the same id.
- An agent that is used as a tool runs with the configuration of the outer run, filter included, but without its session.
- A streamed run stores its input after the filter was called for the first time.
"""

from __future__ import annotations

import asyncio
import json
import uuid
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from agents.memory import SessionSettings
from agents.run_config import CallModelData, ModelInputData

import holdfast
from holdfast.adapters._shared import finish_write
from holdfast.errors import Conflict, StaleSession, StoreError

__all__ = ["HoldfastSession", "working_set_filter"]

Json = dict[str, Any]
CALL_IDS: Final = ("call_id", "approval_request_id", "id")
"""Fields in which an output contains the id of its call, in the order in which they are tried."""
TRIES: Final = 64
"""Maximum number of attempts to remove the newest item while other processes change the session."""
READS: Final = 16
"""Maximum number of runs for which a session remembers what they have read."""
PAGE: Final = 20
"""Number of the oldest entries that are read to find out if a call's items can be the whole log."""


class _Stored(NamedTuple):
    """An entry of the log, and its items."""

    seq: int
    items: list[Json]


class _Read(NamedTuple):
    """The newest entries of a session, as a run has read them when it started."""

    run: weakref.ref[Any]
    entries: list[_Stored]
    whole: bool
    """True if no older entries exist."""


class HoldfastSession:
    """A session of the Agents SDK, stored in a session of Holdfast. Implements the protocol `agents.memory.Session`.

    Items are returned unchanged. Consecutive items of one reply, such as reasoning, text and parallel calls, are one message.

    Args:
        hf: an open `Holdfast`; or a `holdfast.Portal()`, if the runner is used without `await` or from several event loops.
        session_id: the id of the session, which is created when it is used first.
        user_id: the owner of the session.
        session_settings: `limit` is the number of newest items that the runner reads. With a filter, 100 are enough.
    """

    def __init__(
        self,
        hf: holdfast.Holdfast | holdfast.Portal,
        session_id: str,
        *,
        user_id: str = "default",
        session_settings: SessionSettings | Json | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = SessionSettings().resolve(session_settings)
        self._hf, self._user_id = hf, user_id
        self._handle: holdfast.SessionHandle | None = None

    async def get_items(self, limit: int | None = None, wrapper: Any = None) -> list[Any]:
        """Return all items, or the newest ones, oldest first.

        Args:
            limit: maximum number of items; None: the limit in `session_settings`, or all items.
            wrapper: the run that reads. `working_set_filter` then knows what the run has read. Other methods do not use it.
        """
        limit = self.session_settings.limit if limit is None else limit
        if limit is None:
            entries, whole = await _read_entries(self), True
        else:
            entries, whole = await self._read_newest(limit)
        if wrapper is not None:
            _remember(self, _Read(weakref.ref(wrapper), entries, whole))
        return [item for entry in entries for item in entry.items]

    async def add_items(self, items: Sequence[Any], wrapper: Any = None) -> None:
        """Append items to the session: all of them, or none if this fails. A cancelled call ends only after the items are stored."""
        if items:
            await finish_write(self.run("append", [message for message, _ in _to_messages(items)]))

    async def pop_item(self, wrapper: Any = None) -> Any:
        """Remove and return the newest item, or return None if there are no items. Concurrent calls return different items.

        A cancelled call ends only after the item is removed.
        """
        return await finish_write(self._pop())

    async def clear_session(self, wrapper: Any = None) -> None:
        """Remove all items. They stay in the session's log, but are no longer part of the conversation.

        A cancelled call ends only after the items are removed.
        """
        await finish_write(self.run("clear"))

    async def run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the session's `SessionHandle`, in the event loop of the `Holdfast`.

        Args:
            method: its name, for example `context`.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        handle = await self.open()
        run: Callable[..., Awaitable[Any]] = self._hf.run if isinstance(self._hf, holdfast.Portal) else _run_here
        return await run(getattr(handle, method), *args, **kwargs)

    async def open(self) -> holdfast.SessionHandle:
        """Return the session's `SessionHandle`, which can only be used in the event loop of the `Holdfast`."""
        if self._handle is None:
            if isinstance(self._hf, holdfast.Portal):
                self._handle = await self._hf.run(self._hf.hf.session, self.session_id, user_id=self._user_id)
            else:
                self._handle = await self._hf.session(self.session_id, user_id=self._user_id)
        return self._handle

    async def _read_newest(self, limit: int) -> tuple[list[_Stored], bool]:
        """Return the entries of the newest `limit` items, and whether these are all items. The oldest entry may lack items."""
        newest: list[_Stored] = []
        missing = limit
        stop: int | None = None
        while missing > 0 and stop != 0:
            read = await _read_entries(self, limit=missing, stop=stop, descending=True)
            stop = read[-1].seq if read else 0
            for seq, items in read:
                if missing > 0:
                    newest.append(_Stored(seq, items[-missing:]))
                    missing -= len(items)
        return newest[::-1], missing >= 0 and stop == 0

    async def _pop(self) -> Any:
        for _ in range(TRIES):
            marker = (await self.run("info")).log_marker
            read = await self.run("entries", limit=1, descending=True)
            while read and read[0].is_note:
                read = await self.run("entries", limit=1, stop=read[0].seq, descending=True)
            if not read:
                return None
            *kept, newest = _to_items(read[0])
            messages = [message for message, _ in _to_messages(kept)]
            # The key shows whether an attempt has popped the item although the store's answer was lost.
            write = {"retire_from": read[0].seq, "expect_log": marker, "idempotency_key": uuid.uuid4().hex}
            try:
                try:
                    await self.run("append", messages, **write)
                except StoreError:
                    await self.run("append", messages, **write)
            except StaleSession:
                continue
            return newest
        raise Conflict(f"session {self.session_id!r} is being written to constantly: try again")


def working_set_filter(
    session: HoldfastSession, *, strategy: str | None = None, budget: int | None = None, **options: Any
) -> Callable[[CallModelData[Any]], Awaitable[ModelInputData]]:
    """Return a filter for `RunConfig.call_model_input_filter` that replaces the items of a call by the working set.

    The working set comes from the session's log if the log explains the items of the call. Such items begin with all items that a run has
    read from the session, or with the whole log. Then come the items that were stored since, and at the end items that are not stored yet.
    Otherwise only the items of the call are fitted into the budget, with the same strategy. This applies if a handoff or a
    `session_input_callback` has removed or changed items, and to other agents that get the filter with the `RunConfig`, such as an agent that
    is used as a tool. So nothing of the session reaches a prompt that was not made from the session.

    Messages that are sent in full are the call's own items.

    Args:
        session: the session of the run. The same object must be passed to the runner.
        strategy: name of the strategy; None: the strategy of the `Holdfast`.
        budget: maximum tokens of the conversation; None: the budget of the `Holdfast`, or as many tokens as the model's context window
            allows.
        options: `model`, `tools`, and settings of the strategy; see `SessionHandle.context`.
    """
    given = {"strategy": strategy, "budget": budget, **options}
    options = {name: value for name, value in given.items() if value is not None}

    async def filter_input(data: CallModelData[Any]) -> ModelInputData:
        items: list[Any] = data.model_data.input
        explained = await _explain(session, items)
        made = await _build(session, items, explained, options) if explained else None
        if made is None:
            made = await _fit(session, _to_messages(items), options)
        return ModelInputData(input=_drop_dangling(made), instructions=data.model_data.instructions)

    return filter_input


async def _run_here(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    return await function(*args, **kwargs)


# -- items -> messages -----------------------------------------------------------


def _to_messages(items: Iterable[Any]) -> list[tuple[Json, list[Any]]]:
    """Convert items to messages, each with its items. Consecutive items of the model are one message."""
    pairs: list[tuple[Json, list[Any]]] = []
    reply: list[Any] = []
    for item in items:
        role = _find_role(item)
        if role == "assistant":
            reply.append(item)
            continue
        pairs += [(_make_reply(reply), reply)] if reply else []
        reply = []
        pairs.append((_make_message(role, item), [item]))
    return [*pairs, (_make_reply(reply), reply)] if reply else pairs


def _find_role(item: Json) -> str:
    if "role" in item:
        role = item["role"]
        return role if role in ("user", "system", "developer") else "assistant"
    kind = str(item.get("type"))
    return "tool" if kind.endswith("output") or kind == "mcp_approval_response" else "assistant"


def _make_message(role: str, item: Json) -> Json:
    """Convert an item that is not part of a reply to a message. Fields that a message cannot have are stored in `origin`."""
    field = "output" if role == "tool" else "content"
    content = item.get(field)
    rest: Any = {name: value for name, value in item.items() if name not in ("role", field)}
    if not _is_content(content):
        content, rest = json.dumps(rest if content is None else content, ensure_ascii=False), [item]
    message = {"role": role, "content": content}
    if role == "tool":
        message["tool_call_id"] = next((str(item[name]) for name in CALL_IDS if item.get(name)), "unknown")
    return {**message, "origin": rest} if rest else message


def _is_content(content: Any) -> bool:
    """Return True if a message can have this content unchanged."""
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(
        isinstance(part, dict)
        and isinstance(part.get("type"), str)
        and ("text" not in part or isinstance(part["text"], str))
        for part in content
    )


def _make_reply(items: list[Any]) -> Json:
    """Convert the items of a reply to one message. The items are also stored in the message's `origin`."""
    texts, calls = [], []
    for item in items:
        kind, call_id = (
            item.get("type"),
            item.get("call_id") or (item.get("type", "").endswith("request") and item["id"]),
        )
        if "role" in item:
            texts.append(_read_text(item.get("content")))
        elif call_id:
            arguments = item.get("arguments", item.get("input"))
            if not isinstance(arguments, str):
                arguments = json.dumps(item.get("action", arguments), ensure_ascii=False)
            function = {"name": item.get("name") or kind, "arguments": arguments}
            calls.append({"id": str(call_id), "type": "function", "function": function})
        elif kind != "reasoning":  # tools of the provider: their results are part of the prompt
            texts.append(
                json.dumps({name: value for name, value in item.items() if name != "result"}, ensure_ascii=False)
            )
    message: Json = {"role": "assistant", "content": "\n".join(filter(None, texts)), "origin": items}
    return {**message, "tool_calls": calls} if calls else message


def _read_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        str(part.get("text") or part.get("refusal") or "") for part in content or () if isinstance(part, dict)
    )


# -- messages -> items -----------------------------------------------------------


def _to_items(entry: Any) -> list[Json]:
    """Return the items of a log entry. A note has no items. Entries that another program wrote are converted."""
    message, stored = entry.message, entry.message.origin
    if entry.is_note:
        return []
    if isinstance(stored, list):
        return stored
    content: Any = message.content
    if isinstance(content, tuple):
        content = [
            {"type": part.type, **({} if part.text is None else {"text": part.text}), **part.extra} for part in content
        ]
    if message.role == "tool":
        made = stored or {"type": "function_call_output", "call_id": message.tool_call_id}
        return [{"output": content, **made}]
    if message.role != "assistant":
        return [{"role": message.role, "content": content, **(stored or {})}]
    calls = [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
    ]
    return _convert({"role": "assistant", "content": message.text, "tool_calls": calls}, [])


def _convert(message: Json, own: Sequence[Json]) -> list[Json]:
    """Convert a message that was shortened or generated for the prompt to items.

    Args:
        message: the message.
        own: the items of the log entry. Their calls keep their types but lose their ids, because an id is only valid with its reasoning.
    """
    content = message.get("content") or ""
    if message["role"] == "tool":
        base = own[0] if own else {"type": "function_call_output", "call_id": message["tool_call_id"]}
        is_text = base["type"] in ("function_call_output", "custom_tool_call_output")
        return [{**base, "output": _convert_content(content)} if is_text else base]
    if message["role"] != "assistant":
        return [{"role": message["role"], "content": _convert_content(content)}]
    text, items = _read_text(content), []
    known = {item.get("call_id"): item for item in own}
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        base = known.get(call["id"]) or {"type": "function_call", "call_id": call["id"], "name": name}
        changed = {"arguments": arguments} if base["type"] == "function_call" else {}
        items.append({**{key: value for key, value in base.items() if key != "id"}, **changed})
    return [{"role": "assistant", "content": text}, *items] if text or not items else items


def _convert_content(content: Any) -> Any:
    return content if isinstance(content, str) else [_convert_part(part) for part in content]


def _convert_part(part: Json) -> Json:
    match part["type"]:
        case "text":
            return {"type": "input_text", "text": part["text"]}
        case "image_url":
            image = part["image_url"]
            return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}
        case "file":
            return {"type": "input_file", **part["file"]}
    return part


# -- the log and the items of a call --------------------------------------------


class _Explained(NamedTuple):
    """The entries of the log that explain the items of a call."""

    stored: dict[int, list[Json]]
    """The items of entries by `seq`: those of the call, or the stored ones if the call does not have all of them."""
    newest: int
    """`seq` of the newest entry with items; -1 if there is none."""
    unsaved: int
    """Number of items at the end of the call that are not stored yet."""


_reads: Final = weakref.WeakKeyDictionary[HoldfastSession, Sequence[_Read]]()
"""Items that the current runs have read from each session, oldest first."""


def _remember(session: HoldfastSession, read: _Read) -> None:
    """Remember what a run has read first. Its later reads only compare the newest items."""
    reads = [one for one in _reads.get(session, ()) if one.run() is not None]
    if all(one.run() is not read.run() for one in reads):
        _reads[session] = [*reads[1 - READS :], read]


async def _read_entries(session: HoldfastSession, start: int = 0, **options: Any) -> list[_Stored]:
    """Return entries of the session with their items. The options are those of `SessionHandle.entries`."""
    return [_Stored(entry.seq, _to_items(entry)) for entry in await session.run("entries", start, **options)]


async def _explain(session: HoldfastSession, items: Sequence[Json]) -> _Explained | None:
    """Return how the session's log explains the items of a call, or None if it does not."""
    for read in reversed(_reads.get(session, ())):
        after = read.entries[-1].seq + 1 if read.entries else 0
        if _starts_like(read.entries, items):
            newer = await _read_entries(session, after)
            known = 0 if read.whole else len(read.entries)
            if explained := _match([*read.entries, *newer], items, known):
                return explained
    oldest = await _read_entries(session, limit=PAGE)
    if not oldest or not _starts_like(oldest, items):
        return None
    return _match(await _read_entries(session), items, 0)


def _starts_like(entries: Sequence[_Stored], items: Sequence[Json]) -> bool:
    """Return False if items cannot begin with those of entries. The runner may have dropped some of the latter."""
    if not any(entry.items for entry in entries):
        return True
    return bool(items) and any(_is_equal(item, items[0]) for entry in entries for item in entry.items)


def _match(entries: Sequence[_Stored], items: Sequence[Json], known: int) -> _Explained | None:
    """Return how consecutive entries explain the items of a call, or None if they do not.

    Args:
        entries: the entries.
        items: the items of the call. They must begin with all items of the entries, except those that the runner drops.
        known: at least one item of the first `known` entries must be in the call; 0: there is no such condition.
    """
    stored = [(number, item) for number, entry in enumerate(entries) for item in entry.items]
    droppable: set[int] | None = None
    own: dict[int, list[Json]] = {}
    end = 0
    for at, (number, item) in enumerate(stored):
        if end < len(items) and _is_equal(item, items[end]):
            own.setdefault(number, []).append(items[end])
            end += 1
            continue
        if droppable is None:
            droppable = _find_droppable([item for _, item in stored])
        if at not in droppable:
            return None
    if known and min(own, default=known) >= known:
        return None
    complete = {
        entry.seq: own[number] if len(own.get(number, ())) == len(entry.items) > 0 else entry.items
        for number, entry in enumerate(entries)
        if number or not known  # the limit may have cut off items of the oldest entry that a run has read
    }
    newest = max((entry.seq for entry in entries if entry.items), default=-1)
    return _Explained(complete, newest, len(items) - end)


def _find_droppable(items: Sequence[Json]) -> set[int]:
    """Return the positions of the items that the runner may have dropped from its copy of the log."""
    keys = [
        (str(item.get("type")), next((str(item[name]) for name in CALL_IDS if item.get(name)), "")) for item in items
    ]
    roles = [_find_role(item) for item in items]
    calls = {key for (_, key), role in zip(keys, roles, strict=True) if role == "assistant"}
    outputs = {key for (_, key), role in zip(keys, roles, strict=True) if role == "tool"}
    later = Counter(keys)
    dropped: set[int] = set()
    for at, (item, (kind, key), role) in enumerate(zip(items, keys, roles, strict=True)):
        later[kind, key] -= 1
        if not key or "role" in item or kind == "reasoning":
            continue
        paired = calls if role == "tool" else outputs
        if later[kind, key] or (key not in paired and (role == "tool" or "call_id" in item)):
            dropped.add(at)
    follows = False
    for at in range(len(items) - 1, -1, -1):
        if items[at].get("type") != "reasoning":
            follows = at in dropped
        elif follows:
            dropped.add(at)
    return dropped


def _is_equal(stored: Json, item: Json) -> bool:
    return stored == item or (stored.get("type") == item.get("type") and _make_key(stored) == _make_key(item))


def _make_key(item: Json) -> str:
    """Return a key by which an item equals its stored copy.

    The runner removes its private fields, `created_by`, and, with the `reasoning_item_id_policy` `omit`, ids of reasoning.
    """
    left_out = ("created_by", "id") if item.get("type") == "reasoning" else ("created_by",)
    fields = {name: value for name, value in item.items() if name[:1] != "_" and name not in left_out}
    return json.dumps(fields, sort_keys=True, default=str)


# -- working set -> items --------------------------------------------------------


Pairs = Sequence[tuple[Json, list[Any]]]
"""Messages, each with its items."""


async def _build(session: HoldfastSession, items: list[Any], explained: _Explained, options: Json) -> list[Any] | None:
    """Return the items of the working set that is built from the log, or None if the log has changed meanwhile."""
    context = await session.run("context", save=True, **options)
    seqs = {seq for source in context.sources if source.kind == "entry" for seq in source.seqs}
    if max(seqs, default=-1) != explained.newest:
        return None
    stored = explained.stored | await _read_items(session, sorted(seqs - explained.stored.keys()))
    pairs = _pair(context, stored)
    unsaved = _to_messages(items[len(items) - explained.unsaved :])
    if unsaved:
        added = [message for message, _ in unsaved]
        tokens = await asyncio.to_thread(holdfast.fit, added, budget=2**31, model=options.get("model"))
        if context.conversation_tokens + tokens.conversation_tokens > context.budget:
            return await _fit(session, [*pairs, *unsaved], {**options, "budget": context.budget})
    return [item for _, own in (*pairs, *unsaved) for item in own]


async def _fit(session: HoldfastSession, pairs: Pairs, options: Json) -> list[Any]:
    """Return the items of messages that fit into the budget, without the log. Leading system messages stay unchanged."""
    leading = next((at for at, (one, _) in enumerate(pairs) if one["role"] not in ("system", "developer")), len(pairs))
    made = [item for _, own in pairs[:leading] for item in own]
    if leading == len(pairs):
        return made
    handle = await session.open()
    messages = [message for message, _ in pairs]
    context = await asyncio.to_thread(holdfast.fit, messages, session=handle, **options)
    stored = {at: own for at, (_, own) in enumerate(pairs[leading:])}
    return made + [item for _, own in _pair(context, stored, system=False) for item in own]


async def _read_items(session: HoldfastSession, seqs: Sequence[int]) -> dict[int, list[Json]]:
    """Read log entries, and return their items by `seq`. Entries that were popped meanwhile are included, erased ones are not."""
    stored: dict[int, list[Json]] = {}
    while seqs:
        last = next((at for at, seq in enumerate(seqs) if seq != seqs[0] + at), len(seqs)) - 1
        stored |= dict(await _read_entries(session, seqs[0], stop=seqs[last] + 1, retired=True))
        seqs = seqs[last + 1 :]
    return stored


def _pair(context: holdfast.Context, stored: dict[int, list[Json]], *, system: bool = True) -> Pairs:
    """Return the messages of a working set with their items.

    Args:
        context: the working set.
        stored: items by position in the log, or in the messages that were fitted.
        system: False leaves out system prompts.
    """
    pairs: list[tuple[Json, list[Any]]] = []
    sources = list(zip(context.messages, context.sources, strict=True))
    entries = [(message["role"], seq) for message, source in sources if source.kind == "entry" for seq in source.seqs]
    # Chat Completions need media of results in a message of the user; items have them in the output.
    moved = {seq for role, seq in entries if role == "user" and ("tool", seq) in entries}
    for message, source in sources:
        own = stored.get(source.seqs[0], []) if source.kind == "entry" and len(source.seqs) == 1 else []
        if source.kind == "entry" and source.seqs[0] in moved and own:
            pairs.append((message, own if message["role"] == "tool" else []))
        elif system or source.kind != "system":
            pairs.append((message, own if own and source.verbatim else _convert(message, own)))
    return pairs


def _drop_dangling(items: Sequence[Json]) -> list[Json]:
    """Drop reasoning that is not followed by another item of the same reply, because the Responses API rejects such reasoning."""
    kept: list[Json] = []
    follows = False
    for item in reversed(items):
        follows = (follows or item.get("type") != "reasoning") and _find_role(item) == "assistant"
        if follows or item.get("type") != "reasoning":
            kept.append(item)
    return kept[::-1]
