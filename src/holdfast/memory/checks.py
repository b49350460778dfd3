"""Check the arguments of memory operations: the owner, and the memory's content and fields. The store checks the rest."""

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


def choose_owner(user_id: str | None, agent: str | None, *, app: bool = False) -> Owner:
    """Return the owner of a memory: the user if one is given, else the agent, or with `app` the whole app; else the default user.

    Raises:
        InvalidRequest: both a user and `app` are given.
    """
    for name, value in (("user_id", user_id), ("agent", agent)):
        check_text(value, name, none=True)
    if app:
        if user_id is not None:
            raise InvalidRequest(
                "a memory belongs to a user or to the whole app: leave out user_id, or app", param="app"
            )
        return Owner("app")
    if user_id is None and agent is not None:
        return Owner("agent", agent)
    return Owner("user", DEFAULT_USER if user_id is None else user_id)


def find_owners(user_id: str | None, agent: str | None) -> tuple[Owner, ...]:
    """Return the owners whose memories are recalled for a user and an agent: these two and the app."""
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
    """Refuse an invalid memory; see `Memories.remember`. Raises `InvalidRequest` or `TooLarge`; messages quote no content.

    Args:
        content: the text of the memory.
        kind: the type of the memory.
        importance: 0 to 1.
        origin: the origin of its words.
        times: when the memory begins and ceases to hold.
    """
    check_text(content, "content")
    if not content.strip():
        raise InvalidRequest("content is empty: say what to remember", param="content")
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


def clean_tags(tags: Any) -> tuple[str, ...]:
    """Return the tags without duplicates and surrounding white space. Raises `InvalidRequest`, `TooLarge`."""
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


def clean_metadata(metadata: Any) -> dict[str, Any]:
    """Return metadata as a dict; None becomes an empty one. Raises `InvalidRequest`."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidRequest(f"metadata must be an object, not {type(metadata).__name__}", param="metadata")
    made = dict(metadata or {})
    try:
        msgspec.json.encode(made)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"metadata must be valid JSON: {exc}", param="metadata") from exc
    return made


def to_tuple(values: Any, kind: type, param: str) -> tuple[Any, ...]:
    """Return a list of values of type `kind` as a tuple. Raises `InvalidRequest`."""
    if isinstance(values, str | bytes | Owner) or not isinstance(values, Collection):
        raise InvalidRequest(f"{param} must be a list, not {type(values).__name__}", param=param)
    for value in values:
        if not isinstance(value, kind):
            message = f"{param} must be a list of {kind.__name__}, not of {type(value).__name__}"
            raise InvalidRequest(message, param=param)
    return tuple(values)


def make_origin_fields(
    origin: Origin, sources: Collection[MemorySource], now: int, *, held: bool = False
) -> dict[str, Any]:
    """Return the fields of a memory that depend on the origin of its words. Its trust is that of the least trusted source.

    Args:
        origin: the origin given by the caller.
        sources: the entries that the memory was made from.
        now: milliseconds since the epoch.
        held: hold the memory for review, regardless of its origin.
    """
    sources = to_tuple(sources, MemorySource, "sources")
    least = find_least_trusted((origin, *(one.origin for one in sources)))
    status = "quarantined" if held or least in REVIEWED_ORIGINS else "active"
    times = {"created_at": now, "updated_at": now}
    return {"origin": least, "trust": TRUST[least], "sources": sources, "status": status} | times


def remove_source(
    sources: tuple[MemorySource, ...], named: tuple[str, str], seqs: Collection[int] | None
) -> tuple[MemorySource, ...]:
    """Remove a session, or some of its entries, from a memory's sources.

    Args:
        sources: the sources of a memory.
        named: the session, by user and id.
        seqs: entries to remove; None: all entries, also if they are not known.
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
