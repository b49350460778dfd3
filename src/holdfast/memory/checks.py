"""What callers may say of a memory: whose it is, and what can be remembered; the rest is checked by the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from holdfast.domain.memory import (
    ORIGINS,
    REVIEWED_ORIGINS,
    TRUST,
    TYPES,
    MemorySource,
    Origin,
    Owner,
    find_least_trusted,
)
from holdfast.domain.session import DEFAULT_USER
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import MEMORY_CHARS, MEMORY_TAG_CHARS, MEMORY_TAGS
from holdfast.numbers import MOST, check_number, is_whole
from holdfast.wire.sendable import check_text


def owner_of(user_id: str | None, agent: str | None, *, app: bool = False) -> Owner:
    """Whose memory: the user's where one is named, else the agent's, or everybody's with `app`; else the default user's.

    Raises:
        InvalidRequest: both a user's and everybody's.
    """
    for name, value in (("user_id", user_id), ("agent", agent)):
        check_text(value, name, none=True)
    if app:
        if user_id is not None:
            raise InvalidRequest("a memory is a user's or everybody's: leave out user_id, or app", param="app")
        return Owner("app")
    if user_id is None and agent is not None:
        return Owner("agent", agent)
    return Owner("user", DEFAULT_USER if user_id is None else user_id)


def find_owners(user_id: str | None, agent: str | None) -> tuple[Owner, ...]:
    """Whose memories are recalled for a user and an agent: theirs, and everybody's."""
    for name, value in (("user_id", user_id), ("agent", agent)):
        check_text(value, name, none=True)
    user = () if user_id is None else (Owner("user", user_id),)
    return (*user, *(() if agent is None else (Owner("agent", agent),)), Owner("app"))


def check_words(
    content: Any,
    kind: Any,
    importance: Any,
    origin: Any,
    times: tuple[int | None, int | None],
) -> None:
    """Refuse what can be no memory; see `Memories.remember`. Nothing of its content is quoted. Raises `InvalidRequest`, `TooLarge`.

    Args:
        content: its words.
        kind: its type.
        importance: 0 to 1.
        origin: where its words come from.
        times: from when on it holds, and until when.
    """
    check_text(content, "content")
    if not content.strip():
        raise InvalidRequest("content is empty: a memory says something", param="content")
    if len(content) > MEMORY_CHARS:
        message = f"content has {len(content):,} characters; a memory may have {MEMORY_CHARS:,}"
        raise TooLarge(message, param="content")
    for name, value, known in (("type", kind, TYPES), ("origin", origin, ORIGINS)):
        if value not in known:
            raise InvalidRequest(f"{name} must be one of {', '.join(known)}, not {value!r:.80}", param=name)
    check_number(importance, "importance", 0, 1)
    for name, value in zip(("valid_from", "valid_until"), times, strict=True):
        if value is not None and not is_whole(value, -MOST):
            raise InvalidRequest(f"{name} must be milliseconds since the epoch, not {value!r:.80}", param=name)
    start, stop = times
    if start is not None and stop is not None and stop <= start:
        raise InvalidRequest("valid_until must be after valid_from", param="valid_until")


def tags_of(tags: Any) -> tuple[str, ...]:
    """Tags as a memory has them: without white space around them, each once. Raises `InvalidRequest`, `TooLarge`."""
    if isinstance(tags, str) or not isinstance(tags, Collection) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidRequest("tags must be a list of texts", param="tags")
    for tag in tags:
        check_text(tag, "tags")
    made = tuple(dict.fromkeys(" ".join(tag.split()) for tag in tags))
    if len(made) > MEMORY_TAGS:
        raise TooLarge(f"there are {len(made)} tags; a memory may have {MEMORY_TAGS}", param="tags")
    if not all(0 < len(tag) <= MEMORY_TAG_CHARS for tag in made):
        raise InvalidRequest(f"a tag has 1 to {MEMORY_TAG_CHARS} characters", param="tags")
    return made


def metadata_of(metadata: Any) -> dict[str, Any]:
    """Metadata as a memory has it; none of None. Raises `InvalidRequest`."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidRequest(f"metadata must be an object, not {type(metadata).__name__}", param="metadata")
    made = dict(metadata or {})
    try:
        msgspec.json.encode(made)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"metadata is no JSON: {exc}", param="metadata") from exc
    return made


def list_of(values: Any, kind: type, param: str) -> tuple[Any, ...]:
    """Return what was given as a list of `kind`. Raises `InvalidRequest`."""
    if isinstance(values, str | bytes | Owner) or not isinstance(values, Collection):
        raise InvalidRequest(f"{param} must be a list, not {type(values).__name__}", param=param)
    for value in values:
        if not isinstance(value, kind):
            message = f"{param} must be a list of {kind.__name__}, not of {type(value).__name__}"
            raise InvalidRequest(message, param=param)
    return tuple(values)


def said_by(origin: Origin, sources: Collection[MemorySource], now: int, *, held: bool = False) -> dict[str, Any]:
    """What a memory is, by where its words come from, trusted as the least of that, and when.

    Args:
        origin: as whoever remembers it says.
        sources: the entries that it was made from.
        now: milliseconds since the epoch.
        held: hold it for review, wherever its words come from.
    """
    sources = list_of(sources, MemorySource, "sources")
    least = find_least_trusted((origin, *(one.origin for one in sources)))
    status = "quarantined" if held or least in REVIEWED_ORIGINS else "active"
    times = {"created_at": now, "updated_at": now}
    return {"origin": least, "trust": TRUST[least], "sources": sources, "status": status} | times


def without(
    sources: tuple[MemorySource, ...], named: tuple[str, str], seqs: Collection[int] | None
) -> tuple[MemorySource, ...]:
    """Sources without a session, or without some of its entries.

    Args:
        sources: of a memory.
        named: the session, by user and id.
        seqs: which entries; None: all, and those of which it is not known.
    """
    left: list[MemorySource] = []
    for one in sources:
        if (one.user_id, one.session_id) != named:
            left.append(one)
        elif seqs is not None:
            rest = tuple(seq for seq in one.seqs if seq not in seqs)
            if rest or rest == one.seqs:
                left.append(one if rest == one.seqs else msgspec.structs.replace(one, seqs=rest))
    return tuple(left)
