"""What was said in a session that something new is compared with before it is remembered: by whom, and what came from elsewhere. Pure.

What the model says in a turn in which it has read something from outside counts as that: it may be the same in other words. Who may not
see an entry of another branch may see a reply that was made of it, so what was read there counts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.context.recalled import RECALLERS
from holdfast.domain.memory import MemorySource, Origin, origin_of
from holdfast.domain.messages import SERVER_TOOL_PARTS, Part
from holdfast.domain.participants import SPEAKER
from holdfast.domain.session import HAND_OVER, TRANSFER, Entry, SessionRef, is_child
from holdfast.memory.provenance import ANALYSED_CHARS, Heard, forms_of, heard, tool_origin
from holdfast.recall.terms import terms_of
from holdfast.tools.search import NOTHING, OPENING

HELD_MARK: Final = '"held for review":true'
"""In what the tool `memory` tells of a memory that is held; nothing that a memory says can look so, inside of JSON's strings."""
_SEARCH: Final = RECALLERS["conversation"]
_MEMORY: Final = RECALLERS["memory"]
_ITS_OWN: Final = frozenset({_MEMORY, _SEARCH, TRANSFER, HAND_OVER, "save_artifact", "list_artifacts", "checkpoint"})
"""Tools whose results bring nothing from outside by themselves; what stands in them is compared all the same."""
_CITED: Final = ("annotations", "citations")
"""Fields in which a provider names the pages that a reply was made of."""
_ANALYSED: Final = 400_000
"""Characters of what others than the user said that are compared word by word in any form, the newest first; see `provenance.heard`."""
_SOUND: Final = frozenset({"audio", "input_audio"})
"""Parts in which the user speaks."""
_TELLING, _TELLING_CHARS = 2, 48
"""Terms, or characters, from which on a text may be told in other words: "done", "21" and "saved" say nothing."""


class _Said(NamedTuple):
    """Words that are compared."""

    entry: Entry
    text: str
    origin: Origin
    read: bool = False
    """See `Heard`; so for `outside`."""
    outside: bool = False


def heard_in(
    entries: Sequence[Entry], ref: SessionRef, identity: str, about: str, *, sees: Callable[[Entry], bool], unit: int
) -> list[Heard]:
    """What was said in some entries of a session, to be compared with a new memory.

    Args:
        entries: in order, up to the message that asks for the memory.
        ref: the session.
        identity: its, see `Session.identity`.
        about: the new memory's content and tags.
        sees: whether who asks may see an entry.
        unit: `seq` of the message that asks: of it counts alone what was read for it.
    """
    forms, left = forms_of(about), _ANALYSED
    found: list[Heard] = []
    for said in reversed(_said_in(entries, ref, sees, unit)):
        source = MemorySource(
            session_id=ref.id, user_id=ref.user_id, identity=identity, seqs=(said.entry.seq,), origin=said.origin
        )
        most = min(left, ANALYSED_CHARS)
        made = heard(said.text, said.origin, source, read=said.read, about=forms, analysed=most)
        found.append(made._replace(outside=said.outside))
        left -= 0 if said.origin == "user" else min(most, len(said.text))
    return found[::-1]


def is_outside(entries: Sequence[Entry], ref: SessionRef) -> bool:
    """Whether something from elsewhere stands in some entries of a session, that the model may tell in other words."""
    return any(one.outside for one in _said_in(entries, ref, lambda _: True, -1))


def is_users(by: str, user_id: str) -> bool:
    """Whether something that was found in an earlier conversation is the user's own, by who is named as having said it."""
    return by in ("user", f"user {user_id}")


def _said_in(entries: Sequence[Entry], ref: SessionRef, sees: Callable[[Entry], bool], unit: int) -> list[_Said]:
    """What some entries say, with where their words come from."""
    names = {(entry.seq, call.id): call.name for entry in entries for call in entry.message.tool_calls}
    turn = entries[-1].turn_id if entries else 0
    brought: dict[int, tuple[Origin, bool]] = {}
    found: list[_Said] = []
    for entry in entries:
        if entry.message.role == "user":
            some = _asked(entry, ref)
        elif entry.message.role == "tool":
            name = names.get((entry.unit, entry.message.tool_call_id or ""), entry.message.name or "")
            some = [_own(entry, name, ref) if name in _ITS_OWN else _result(entry, name)]
        else:
            some = _served(entry) if entry.message.role == "assistant" else []
        for one in some:
            if one.read:
                origin, outside = brought.get(entry.turn_id, (one.origin, False))
                brought[entry.turn_id] = origin_of((origin, one.origin)), outside or one.outside
        if entry.message.role == "assistant" and entry.seq != unit:
            origin, outside = brought.get(entry.turn_id, ("assistant", False))
            some.append(_Said(entry, "" if entry.erased else entry.message.text, origin, outside=outside))
        if sees(entry):
            found += [one._replace(read=one.read and entry.turn_id == turn) for one in some]
        elif entry.message.role != "user":  # of what was read in another branch the words count, wherever they come out
            found += [one._replace(read=False, outside=False) for one in some]
    return [one for one in found if one.read or one.outside or one.text.strip()]


def _asked(entry: Entry, ref: SessionRef) -> list[_Said]:
    """A message of the user's role: the user's own, that of somebody who takes part, or of another agent; and what is attached to it."""
    if entry.erased:
        return []
    speaker = (entry.metadata or {}).get(SPEAKER)
    origin: Origin = "user" if speaker in (None, ref.user_id) else "import"
    if is_child(ref):
        origin = "tool"
    text = entry.message.text
    found = [_Said(entry, text, origin, outside=origin != "user" and _tells(text))]
    if any(part.type not in _SOUND for part in entry.message.media):
        found.append(_Said(entry, "", "import", outside=True))
    return found


def _result(entry: Entry, name: str) -> _Said:
    """What a tool from outside said. Of what is no text, and of what was erased, nobody knows what stood there."""
    if entry.erased:
        return _Said(entry, "", tool_origin(name), read=True, outside=True)
    media = entry.message.media
    text = "\n".join((entry.message.text, *map(_written, media)))
    return _Said(entry, text, tool_origin(name), read=True, outside=bool(media) or _tells(text))


def _own(entry: Entry, name: str, ref: SessionRef) -> _Said:
    """What a tool of Holdfast's own said; it may quote what came from elsewhere."""
    text = "" if entry.erased else entry.message.text
    quotes = name == _MEMORY and HELD_MARK in text
    if name == _SEARCH:
        quotes = any(not is_users(by, ref.user_id) for by in _authors(text))
    return _Said(entry, text, tool_origin(name), outside=quotes or (entry.erased and name in (_MEMORY, _SEARCH)))


def _authors(found: str) -> list[str]:
    """Who said what the tool `search_conversations` found; of what is not its result, nobody known."""
    if found == NOTHING:
        return []
    first, *lines = found.splitlines() or [""]
    if first != OPENING:
        return [""]
    try:
        return [str(msgspec.json.decode(line).get("by", "")) for line in lines[:-1]]
    except (msgspec.DecodeError, AttributeError):
        return [""]


def _served(entry: Entry) -> list[_Said]:
    """What tools of the model's own provider brought while it made a reply, and the pages that this names."""
    message = entry.message
    parts = message.content if isinstance(message.content, tuple) else ()
    found = [
        _Said(entry, _written(part), tool_origin(part.type), read=True, outside=True)
        for part in parts
        if part.type in SERVER_TOOL_PARTS and part.type.endswith("_result")
    ]
    cited = [
        fields[name]
        for fields in (message.extra, *(part.extra for part in parts))
        for name in _CITED
        if fields.get(name)
    ]
    if cited:
        found.append(_Said(entry, _text_of(cited), "web", read=True, outside=True))
    return found


def _written(part: Part) -> str:
    return _text_of(part.extra)


def _text_of(value: Any) -> str:
    """What words there are in fields that nobody here knows."""
    return msgspec.json.encode(value).decode()[:ANALYSED_CHARS]


def _tells(text: str) -> bool:
    """Whether a text may be told in other words."""
    return len(text) > _TELLING_CHARS or len(terms_of(text).counts) >= _TELLING
