"""Decide which messages of a request are new, and what they replace in a session's log. Pure functions.

A request has a whole conversation or a part of it (a *history*), or only new messages (a *delta*); see docs/placing.md.
`holdfast.turns.place` reads the part of the log that is compared here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Literal, NamedTuple

import msgspec

from holdfast.domain.log import may_be_unheard, to_sent_message
from holdfast.domain.messages import Message, Part, encode_calls, encode_canonical, remove_media
from holdfast.domain.session import JOINED, Entry
from holdfast.errors import ResultExists

Mode = Literal["auto", "transcript", "delta"]
Relation = Literal["new", "continued", "edited", "regenerated", "delta", "replayed", "replaced", "forked", "unplaced"]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The changes that the messages of a request make to the log."""

    relation: Relation
    append: tuple[Message, ...] = ()
    """Messages to append: the last ones of the request. Media that the client left out are in them."""
    retire_from: int | None = None
    """`seq` of the first live entry to retire; all later entries are retired, too. It is reported as `edited_at`. None:
    no entry is retired."""
    restore: tuple[Entry, ...] = ()
    """Entries to write again before `append`: a retired branch that the request continues, or the kept part of a cut
    reply."""
    renamed: Mapping[str, str] = {}
    """Ids of tool calls: those in the request mapped to those in the log. They apply to the results with which `append`
    begins."""
    warning: str | None = None
    """Code of the warning for the response: `nothing_in_common`; None: there is none."""
    answer: Entry | None = None
    """The reply that the request gets without a model call; None: a reply is made."""
    unanswered: tuple[str, ...] = ()
    """Ids of open calls that no client received. They get no result any more, and the results in `append` are not theirs."""

    def with_warning(self, code: str) -> Plan:
        """Return the plan with a warning."""
        return msgspec.structs.replace(self, warning=code)


class LogRemainder(NamedTuple):
    """The part of a log after the last visible message that it shares with a request."""

    tools: Sequence[Entry]
    """Tool messages before the next visible message."""
    following: Entry | None
    """The next visible message; None if there is none."""


def detect_mode(incoming: Iterable[Message], mode: Mode) -> Literal["transcript", "delta"]:
    """Return the mode that the request sets, or detect it: messages without an assistant message are a delta."""
    if mode != "auto":
        return mode
    return "transcript" if any(message.role == "assistant" for message in incoming) else "delta"


def align_delta(last: Sequence[Entry], sent: Sequence[Message]) -> Plan:
    """Return the plan for messages that are appended to the log, even if they equal messages in the log.

    If the log ends with exactly these messages and has no complete reply to them, the request is the same attempt again.
    Results of tools that ran for it are kept, and a partial reply is replaced.

    Args:
        last: the last live entries, in order; all of them if the log has fewer than are compared.
        sent: the request's messages without the leading system messages.
    """
    reply = last[-1] if last and is_reply(last[-1]) and is_cut(last[-1]) else None
    end = len(last) - (reply is not None)
    while end and sent:
        if _is_ending(last[:end], sent):
            return Plan("replayed") if reply is None else Plan("regenerated", retire_from=reply.seq)
        if not _is_hidden(last, end - 1):
            break
        end -= 1
    if not sent:
        return Plan("replayed")
    return Plan("delta" if last else "new", tuple(sent), unanswered=find_unseen_calls(last, sent))


def _is_ending(last: Sequence[Entry], sent: Sequence[Message]) -> bool:
    """Return True if the entries end with exactly these messages."""
    begin = len(last) - len(sent)
    return sent[-1].role != "assistant" and begin >= 0 and begins_with(last[begin:], sent)


def begins_with(entries: Sequence[Entry], sent: Sequence[Message]) -> bool:
    """Return True if the entries begin with exactly these messages."""
    pairs = zip(entries, sent, strict=False)
    return len(entries) >= len(sent) and all(
        encode_canonical(entry.message) == encode_canonical(message) for entry, message in pairs
    )


def is_from_user(entry: Entry) -> bool:
    """Return True for a message of the user."""
    return entry.message.role == "user"


def is_reply(entry: Entry) -> bool:
    """Return True for a message that ends a reply, because the client receives it: a text, or calls that the client runs."""
    metadata = entry.metadata or {}
    returned = metadata.get("returned")
    return entry.message.role == "assistant" and (not entry.message.tool_calls or returned is None or bool(returned))


def is_complete(entry: Entry) -> bool:
    """Return True for a reply that its client has received, or can receive by repeating its request."""
    return is_reply(entry) and not (entry.metadata or {}).get("interrupted")


def is_cut(entry: Entry) -> bool:
    """Return True for a reply that broke off, so that its request may be sent again."""
    metadata = entry.metadata or {}
    return bool(metadata.get("interrupted")) and "original" not in metadata


def is_unheard(entry: Entry) -> bool:
    """Return True for a reply that broke off, or that could not be sent to its end: its client may have any beginning of it."""
    return entry.kind == "assistant" and may_be_unheard(entry.metadata)


def _is_hidden(entries: Sequence[Entry], at: int) -> bool:
    """Return True for a message of a tool that the server ran: a call that no client received, or its result."""
    entry = entries[at]
    if entry.message.tool_calls:
        return not is_reply(entry)
    return entry.message.role == "tool" and any(one.seq == entry.unit and not is_reply(one) for one in entries[:at])


def drop_known_results(stored: Sequence[Entry], sent: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages of a delta without the results at its beginning that the log has, or that it has twice.

    Args:
        stored: the last live entries that the client received, in order.
        sent: the request's messages.

    Raises:
        ResultExists: there is another result of one of these calls.
    """
    kept: list[Message] = []
    for message in _take_results(sent):
        id_ = message.tool_call_id
        call = next((one for one in reversed(stored) if any(call.id == id_ for call in one.message.tool_calls)), None)
        results = [] if call is None else [one.message for one in stored if one.kind == "result" and one.seq > call.seq]
        known = next((one for one in (*results, *kept) if one.tool_call_id == id_), None)
        if known is None:
            kept.append(message)
        elif encode_canonical(known) != encode_canonical(message):
            raise ResultExists(str(id_))
    return (*kept, *dropwhile(lambda one: one.role == "tool", sent))


def keep_media(plan: Plan, replaced: Sequence[Entry]) -> Plan:
    """Return the plan, in which messages get the media of those that they replace, unless they bring their own.

    Args:
        plan: the plan.
        replaced: visible entries that the plan retires, in order. The first is replaced by the first new message, also if its
            text was edited; the others by messages with the same text.
    """
    if plan.relation != "edited" or not plan.append or not replaced:
        return plan
    waiting = [entry for entry in replaced if entry.kind == "user" and entry.message.media and not entry.erased]
    append = []
    for at, message in enumerate(plan.append):
        is_bare = message.role == "user" and not message.media
        found = next((one for one in waiting if is_same_message(one, message)), None) if is_bare and waiting else None
        if found is None and is_bare and at == 0 and replaced[0] in waiting[:1]:
            found = replaced[0]
        if found is not None:
            waiting.remove(found)
        append.append(message if found is None else _add_media(message, found.message))
    return msgspec.structs.replace(plan, append=tuple(append))


def _add_media(new: Message, replaced: Message) -> Message:
    """Return a message with the media of the one that it replaces, on the same side of its text."""
    text = (Part("text", new.text),) if new.text else ()
    parts = replaced.content if isinstance(replaced.content, tuple) else ()
    leads = bool(parts) and parts[0].text is None
    return new.evolve(content=(*replaced.media, *text) if leads else (*text, *replaced.media))


def align_rest(remainder: LogRemainder, rest: Sequence[Message]) -> Plan:
    """Return the plan for a history that continues after a visible message of the log.

    Stored tool messages after that message are kept, and the client's copies of them are ignored. Other calls replace the
    stored ones. Later entries of the log are retired, and the other messages of the request are appended.

    Args:
        remainder: the part of the log after the last visible message that it shares with the request.
        rest: the messages of the request after the shared message.

    Raises:
        ResultExists: the log has another result of a call.
    """
    kept, used, renamed = _align_tools(remainder.tools, rest)
    rest = tuple(rest[used:])
    if rest and not rest[0].visible and kept < len(remainder.tools):
        _check_result(rest[0], remainder.tools[kept:], renamed)
        return Plan("edited", rest, retire_from=remainder.tools[kept].seq, renamed=renamed)
    open_from = _find_open_calls(remainder.tools, kept)
    if not rest and open_from < len(remainder.tools):
        # These calls were never answered, and the request does not contain them, so the client never received them.
        return Plan("regenerated", retire_from=remainder.tools[open_from].seq)
    if remainder.following is None:
        unseen = find_unseen_calls(remainder.tools, rest)
        return Plan("continued" if rest else "replayed", rest, renamed=renamed, unanswered=unseen)
    is_edit = bool(rest) or remainder.following.kind == "user"
    joined = (
        tool.seq for tool in remainder.tools if (tool.metadata or {}).get(JOINED)
    )  # retired with the reply that they were joined into
    start = next(joined, remainder.following.seq)
    return Plan("edited" if is_edit else "regenerated", rest, retire_from=start, renamed=renamed)


def _check_result(sent: Message, tools: Sequence[Entry], renamed: Mapping[str, str]) -> None:
    """Raise `ResultExists` if a message is the result of a call that has another one."""
    name = renamed.get(sent.tool_call_id or "")
    if name is not None and any(
        tool.message.tool_call_id == name for tool in takewhile(lambda tool: tool.kind == "result", tools)
    ):
        raise ResultExists(str(sent.tool_call_id))


def is_same_message(entry: Entry, message: Message) -> bool:
    """Return True if a client that received the message of `entry` may resend it as `message`.

    The client may omit the media. If `entry` is an interrupted reply, the client may send only the part that it saw.
    """
    stored = to_sent_message(entry.message, entry.metadata)
    if encode_canonical(stored) == encode_canonical(message):
        return True
    if stored.media and not message.media and stored.role != "assistant":
        return encode_canonical(remove_media(stored)) == encode_canonical(remove_media(message))
    return is_seen_prefix(entry, message)


def is_seen_prefix(entry: Entry, message: Message) -> bool:
    """Return True if the client may have received only a part of the reply `entry`, and its text begins with that of `message`."""
    metadata = entry.metadata or {}
    if not is_unheard(entry) or message.role != "assistant":
        return False
    stored = to_sent_message(entry.message, metadata)
    seen = message.text.rstrip()
    whole, preface = metadata.get("original"), metadata.get("preface")
    before = preface if isinstance(preface, str) else ""
    texts = [stored.text, before + whole if isinstance(whole, str) else ""]
    return bool(seen) and message.visible and any(text.startswith(seen) for text in texts)


# -- tool messages ---------------------------------------------------------------


def has_same_tools(remainder: LogRemainder, rest: Sequence[Message]) -> bool:
    """Return True if the tool messages of the log begin with those of the request, or the other way round.

    Only tool messages before the next visible message are compared.
    """
    kept, used, _ = _align_tools(remainder.tools, rest)
    return kept == len(remainder.tools) or used == len(rest) or rest[used].visible


def compare_rounds(stored: Sequence[Entry], rest: Sequence[Message]) -> tuple[bool, int]:
    """Return True if the rounds of tool calls in a request are all those at the end of a log, and how many of its messages are stored.

    Args:
        stored: the tool messages at the end of the log, from one with calls on.
        rest: the messages of the request, from one with calls on.
    """
    kept, used, _ = _align_tools(stored, rest)
    return kept == len(stored) and not any(message.tool_calls for message in rest[used:]), used


def _align_tools(stored: Sequence[Entry], sent: Sequence[Message]) -> tuple[int, int, dict[str, str]]:
    """Compare the stored tool messages with those of a request, ignoring the ids of calls.

    Returns:
        Three values: the number of `stored` messages that match, the number of `sent` messages that match, and the stored
        id for each call id of the client. The first number includes calls that Holdfast ran itself directly after
        matching messages, because the client never received these calls.
    """
    shown = show_to_client(stored)
    messages = [message for _, message in shown]
    kept = used = 0
    renamed: dict[str, str] = {}
    while kept < len(messages) and used < len(sent) and _has_same_calls(messages[kept], sent[used]):
        calls = zip(sent[used].tool_calls, messages[kept].tool_calls, strict=True)
        renamed = {theirs.id: ours.id for theirs, ours in calls}  # of this round only, because clients reuse ids
        kept, used = kept + 1, used + 1
        results = _take_results(messages[kept:])
        sent_results = _take_results(sent[used:])
        found = _count_shared_results(results, sent_results, renamed)
        kept, used = kept + found, used + found
        if found < len(results):
            break
    return shown[kept][0] if kept < len(shown) else len(stored), used, renamed


def show_to_client(stored: Sequence[Entry]) -> list[tuple[int, Message]]:
    """Return the tool messages that the client received, each with its index in `stored`.

    Calls that Holdfast ran itself are left out with their results.
    """
    shown: list[tuple[int, Message]] = []
    hidden: set[tuple[int, str | None]] = set()
    for at, entry in enumerate(stored):
        message, returned = entry.message, (entry.metadata or {}).get("returned")
        if message.tool_calls and isinstance(returned, list):
            ours = [call for number, call in enumerate(message.tool_calls) if number not in returned]
            hidden |= {(entry.seq, call.id) for call in ours}
            message = message.evolve(tool_calls=tuple(call for call in message.tool_calls if call not in ours))
            if not message.tool_calls:
                continue
        elif (entry.unit, message.tool_call_id) in hidden:
            continue
        shown.append((at, message))
    return shown


def find_unseen_calls(last: Sequence[Entry], sent: Sequence[Message]) -> tuple[str, ...]:
    """Return the ids of the open calls at the end of a log if `sent` begins with a result, and no client received the calls.

    This is so if there are calls of the server among them. The client may have received others with the same ids before.
    """
    at = next((at for at, entry in reversed([*enumerate(last)]) if entry.kind != "result"), None)
    if at is None or not sent or sent[0].role != "tool":
        return ()
    calls, returned = last[at].message.tool_calls, (last[at].metadata or {}).get("returned")
    answered = {entry.message.tool_call_id for entry in last[at + 1 :] if entry.unit == last[at].seq}
    waiting = {number: call.id for number, call in enumerate(calls) if call.id not in answered}
    return tuple(waiting.values()) if isinstance(returned, list) and waiting.keys() - set(returned) else ()


def _find_open_calls(tools: Sequence[Entry], kept: int) -> int:
    """Return the index at which the calls without results at the end of `tools` begin; at least `kept`."""
    at = len(tools)
    while at > kept and tools[at - 1].kind == "calls":
        at -= 1
    return at


def _count_shared_results(stored: Sequence[Message], sent: Sequence[Message], renamed: Mapping[str, str]) -> int:
    """Return how many of the first stored results the client resends, in the same order and before any other result.

    If the client resends all of them, their order does not matter.
    """
    theirs = [_encode_result(message, renamed) for message in sent]
    ours = [_encode_result(message, {}) for message in stored]
    if sorted(ours) == sorted(theirs[: len(ours)]):
        return len(ours)
    return next(
        (at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other),
        min(len(ours), len(theirs)),
    )


def _take_results(messages: Iterable[Message]) -> list[Message]:
    """Return the tool results with which `messages` begins."""
    return list(takewhile(lambda message: message.role == "tool", messages))


def _encode_result(message: Message, renamed: Mapping[str, str]) -> bytes:
    call = message.tool_call_id
    return encode_canonical(message.evolve(tool_call_id=None if call is None else renamed.get(call, call)))


def _has_same_calls(stored: Message, sent: Message) -> bool:
    """Return True if both messages have the same calls in the same order.

    The text next to calls is ignored, because clients change it.
    """
    if not stored.tool_calls or len(stored.tool_calls) != len(sent.tool_calls):
        return False
    return encode_calls(stored) == encode_calls(sent)
