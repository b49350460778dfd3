"""Check and clean the arguments of operations on memories: the owner, the content and the other fields of a memory.

The store checks everything else.
"""

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
    """Return the owner of a new memory.

    The owner is the app if `app` is True, otherwise the user if one is given, otherwise the agent if one is given, otherwise the
    default user.

    Raises:
        InvalidRequest: both a user and `app` are given, or a name is not a valid text.
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
    """Return the owners whose memories are recalled in a conversation: the user if given, the agent if given, and always the app."""
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
    """Check the content and the main fields of a memory. The messages of errors do not quote the content.

    Args:
        content: the text of the memory.
        kind: the type of the memory.
        importance: 0 to 1.
        origin: the origin of the memory's words.
        times: `valid_from` and `valid_until`, in milliseconds since the epoch; None: no bound.

    Raises:
        InvalidRequest: a value is invalid.
        TooLarge: the content is too long.
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
    """Return tags without duplicates and surplus white space.

    Raises:
        InvalidRequest: `tags` is not a list of texts, or a tag is empty or too long.
        TooLarge: there are too many tags.
    """
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
    """Return metadata as a dict, which is empty for None. Raises `InvalidRequest` if it is not a JSON object."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidRequest(f"metadata must be an object, not {type(metadata).__name__}", param="metadata")
    made = dict(metadata or {})
    try:
        msgspec.json.encode(made)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"metadata must be valid JSON: {exc}", param="metadata") from exc
    return made


def to_tuple(values: Any, kind: type, param: str) -> tuple[Any, ...]:
    """Return a collection of values as a tuple. Raises `InvalidRequest` if one of them is not of type `kind`."""
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
    """Return the fields of a new memory that depend on the origin of its words: origin, trust, status, sources and times.

    Args:
        origin: the origin that the caller gives. If a source in `sources` has a less trusted origin, the memory gets that origin.
        sources: the entries that the memory was made from.
        now: the current time, in milliseconds since the epoch.
        held: True: hold the memory for review, regardless of its origin.
    """
    sources = to_tuple(sources, MemorySource, "sources")
    least = find_least_trusted((origin, *(one.origin for one in sources)))
    status = "quarantined" if held or least in REVIEWED_ORIGINS else "active"
    times = {"created_at": now, "updated_at": now}
    return {"origin": least, "trust": TRUST[least], "sources": sources, "status": status} | times


def remove_source(
    sources: tuple[MemorySource, ...], named: tuple[str, str | None], seqs: Collection[int] | None, identity: str = ""
) -> tuple[MemorySource, ...]:
    """Return a memory's sources without a session, or without some entries of a session.

    Args:
        sources: the sources of a memory.
        named: the session: the user's id and the session's id; None as the latter: all sessions of the user.
        seqs: the entries to remove; None: the whole session, even if the source does not list entries.
        identity: the session's identity, by which sources are also found that have a name from before the session was moved; empty: unknown.
    """
    left: list[MemorySource] = []
    for one in sources:
        is_named = (one.user_id, one.session_id if named[1] is not None else None) == named
        if not is_named and not (identity and one.identity == identity):
            left.append(one)
        elif seqs is not None:
            rest = tuple(seq for seq in one.seqs if seq not in seqs)
            if rest or rest == one.seqs:
                left.append(one if rest == one.seqs else msgspec.structs.replace(one, seqs=rest))
    return tuple(left)
