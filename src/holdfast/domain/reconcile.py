"""Compare the messages of a request with a session's log, and plan the changes to the log. Pure functions.

The messages are a transcript (the whole conversation) or a delta (only the new messages); see docs/new-messages.md.
`holdfast.matching.log_match` finds the position up to which a transcript and a log agree; this module decides how the
log changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from holdfast.domain.log import to_sent_message
from holdfast.domain.messages import Message, encode_calls, encode_canonical, remove_media
from holdfast.domain.session import JOINED, Entry

Mode = Literal["auto", "transcript", "delta"]
Relation = Literal["new", "continued", "edited", "regenerated", "delta", "replayed", "replaced", "forked"]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The changes that the messages of a request make to the log."""

    relation: Relation
    append: tuple[Message, ...] = ()
    retire_from: int | None = None
    """`seq` of the first live entry to retire; all later entries are retired, too. It is reported as `edited_at`. None:
    no entry is retired."""
    restore: tuple[Entry, ...] = ()
    """Entries to write again before `append`: a retired branch that the request continues, or the kept part of a cut
    reply."""
    renamed: Mapping[str, str] = {}
    """Ids of tool calls: those in the request mapped to those in the log. They apply to the results with which `append`
    begins."""


class LogRemainder(NamedTuple):
    """The part of a log after the last visible message that it shares with a request."""

    tools: Sequence[Entry]
    """Tool messages before the next visible message."""
    visible: int | None
    """`seq` of the next visible message; None if there is none."""


def detect_mode(incoming: Iterable[Message], mode: Mode) -> Literal["transcript", "delta"]:
    """Return the mode that the request sets, or detect it: messages without an assistant message are a delta."""
    if mode != "auto":
        return mode
    for message in incoming:
        if message.role == "assistant":
            return "transcript"
    return "delta"


def reconcile_delta(last: Sequence[Entry], incoming: Sequence[Message]) -> Plan:
    """Return the plan for messages that are appended to the log, even if they equal messages in the log.

    If the log already ends in exactly these messages, with no reply after them, the client is retrying and nothing is
    appended.

    Args:
        last: the last `len(incoming)` live entries, in order; fewer if the log has fewer.
        incoming: the request's messages without the leading system messages.
    """
    if _is_ending(last, incoming):
        return Plan("replayed")
    return Plan("delta" if last else "new", tuple(incoming))


def _is_ending(last: Sequence[Entry], incoming: Sequence[Message]) -> bool:
    """Return True if the log ends in exactly these messages, with no reply after them."""
    if not incoming or incoming[-1].role == "assistant" or len(last) != len(incoming):
        return False
    for entry, sent in zip(last, incoming, strict=True):
        if entry.message.role != sent.role or encode_canonical(entry.message) != encode_canonical(sent):
            return False
    return True


def reconcile_remainder(remainder: LogRemainder, rest: Sequence[Message]) -> Plan:
    """Return the plan for a transcript that continues after a visible message of the log.

    Stored tool messages after that message are kept, and the client's copies of them are ignored. If the client sends
    different tool messages, they replace the stored ones. Later entries of the log are retired, and the other messages
    of the request are appended.

    Args:
        remainder: the part of the log after the last visible message that it shares with the transcript.
        rest: the messages of the transcript after the shared message.
    """
    kept, used, renamed = _align_tools(remainder.tools, rest)
    rest = tuple(rest[used:])
    if rest and not rest[0].visible and kept < len(remainder.tools):
        return Plan("edited", rest, retire_from=remainder.tools[kept].seq, renamed=renamed)
    open_from = _find_open_calls(remainder.tools, kept)
    if not rest and open_from < len(remainder.tools):
        # These calls were never answered, and the request does not contain them, so the client never received them.
        return Plan("regenerated", retire_from=remainder.tools[open_from].seq)
    if remainder.visible is None:
        return Plan("continued" if rest else "replayed", rest, renamed=renamed)
    return Plan("edited" if rest else "regenerated", rest, retire_from=_find_reply_start(remainder), renamed=renamed)


def _find_reply_start(remainder: LogRemainder) -> int | None:
    """Return the `seq` at which the log's next reply begins; None if there is no reply.

    Texts that were joined into the reply belong to it, because they are retired with it.
    """
    joined = (tool.seq for tool in remainder.tools if (tool.metadata or {}).get(JOINED))
    return next(joined, remainder.visible)


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
    """Return True if `entry` is an interrupted reply and begins with the text of `message`."""
    metadata = entry.metadata or {}
    if entry.kind != "assistant" or message.role != "assistant" or not metadata.get("interrupted"):
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
    shown = _show_to_client(stored)
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


def _show_to_client(stored: Sequence[Entry]) -> list[tuple[int, Message]]:
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
    found = []
    for message in messages:
        if message.role != "tool":
            break
        found.append(message)
    return found


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
