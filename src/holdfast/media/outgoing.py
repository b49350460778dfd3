"""Put media data back into messages before they are sent to a model or to a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.media.parts import (
    describe_part,
    format_bytes,
    list_hashes,
    mark_parts,
    measure_part,
    restore_data,
    show_to_model,
)
from holdfast.domain.medium import KINDS
from holdfast.domain.messages import Message, Part
from holdfast.domain.profiles import Profile
from holdfast.domain.session import Entry, SessionRef
from holdfast.errors import StoreCorrupt
from holdfast.limits import INLINE_MESSAGES
from holdfast.media.store import THREAD_CHARS
from holdfast.stores.base import Store
from holdfast.wire.openai import convert_parts


async def restore_media(
    store: Store, ref: SessionRef, messages: Sequence[Message], *, origins: bool = False
) -> tuple[Message, ...]:
    """Return messages of a session with their media data put back.

    If the data was erased in the meantime, the content part keeps the mark that replaced the data.

    Args:
        store: the store of the session.
        ref: the session.
        messages: the messages.
        origins: True to also put data back into the messages' `origin` fields, which are never sent to a model.
    """
    listed = partial(list_hashes, messages, origins=origins)
    hashes = await run_cpu(listed, long=len(messages) > INLINE_MESSAGES)
    if not hashes:
        return tuple(messages)
    contents = await store.media(ref, hashes)

    def put_all_back() -> tuple[Message, ...]:
        return tuple(restore_data(message, contents) for message in messages)

    return await run_cpu(put_all_back, long=sum(map(len, contents.values())) > THREAD_CHARS)


async def restore_entries(
    store: Store, ref: SessionRef, entries: Sequence[Entry], *, strict: bool = False
) -> tuple[Entry, ...]:
    """Return log entries with the media data of their messages put back.

    Args:
        store: the store of the session.
        ref: the session.
        entries: some entries of the session's log.
        strict: True to raise an error if the data of a medium are missing.

    Raises:
        StoreCorrupt: `strict` is set, and the data of a medium are missing.
    """
    messages = await restore_media(store, ref, [entry.message for entry in entries], origins=True)
    if strict and (missing := list_hashes(messages)):
        raise StoreCorrupt(f"session {ref.id!r}: a message refers to a medium that is not there: {missing[0].hex()}")
    return tuple(
        entry if message is entry.message else msgspec.structs.replace(entry, message=message)
        for entry, message in zip(entries, messages, strict=True)
    )


_LOW_MARK: Final = 0.75
"""Share of a limit that is used after the oldest media were left out. So they are left out in steps, and prompts keep their beginning."""


class _Medium(NamedTuple):
    """A medium of a prompt: the indexes of its message and part, and what it adds to the number of images and to the bytes of all media."""

    at: tuple[int, int]
    amounts: tuple[int, int]


def _find_surplus(messages: Sequence[Message], limits: Profile) -> dict[tuple[int, int], str]:
    """Return the media that a prompt leaves out, by the indexes of message and part, with the limit that is the reason.

    The messages are read in order, as if each had been the newest one once. So the outcome for a message does not depend on later ones,
    except that more of the oldest media are left out. Media in the newest message stay if the user sent it.
    """
    found: dict[tuple[int, int], str] = {}
    kept: list[_Medium] = []
    used = [0, 0]
    most = limits.max_images or math.inf, limits.max_media_bytes or math.inf
    words = f"{limits.max_images} images", f"{format_bytes(limits.max_media_bytes or 0)} of media"
    for at, message in enumerate(messages):
        stays = at + 1 == len(messages) and message.role == "user"
        for one in _list_media(at, message):
            if one.amounts[0] and not stays and one.amounts[1] > (limits.max_image_bytes or math.inf):
                found[one.at] = f"images of {format_bytes(limits.max_image_bytes or 0)}"
                continue
            used = [used[0] + one.amounts[0], used[1] + one.amounts[1]]
            kept += [] if stays else [one]
        for what in (0, 1):
            if used[what] <= most[what]:
                continue
            for one in [one for one in kept if one.amounts[what]]:
                if used[what] <= most[what] * _LOW_MARK:
                    break
                found[one.at] = words[what]
                kept.remove(one)
                used = [used[0] - one.amounts[0], used[1] - one.amounts[1]]
    return found


def _list_media(at: int, message: Message) -> list[_Medium]:
    if not message.media or not isinstance(message.content, tuple):
        return []
    places = [(place, part) for place, part in enumerate(message.content) if part.type in KINDS]
    return [_Medium((at, place), (int(KINDS[part.type] == "image"), measure_part(part))) for place, part in places]


def _describe_media(message: Message, source: Entry | None, reasons: Mapping[int, str]) -> Message:
    """Return the message with a line of text in place of the parts that `reasons` names.

    The line says what the medium was, when it was sent, why it is missing, and how to get it back.
    """
    if not reasons or not isinstance(message.content, tuple):
        return message
    sent = ""
    if source is not None:
        moment = datetime.fromtimestamp(source.timestamp / 1000, UTC)
        sent = f", sent {moment:%Y-%m-%d %H:%M} UTC in message {source.seq}"
    parts = list(message.content)
    for place, why in reasons.items():
        part = parts[place]
        words = f"a prompt has at most {why}; ask the user to send it again if you need it"
        parts[place] = Part("text", f"[{KINDS[part.type]}{describe_part(part)}{sent}: left out here, because {words}]")
    return message.evolve(content=tuple(parts))


async def prepare_for_model(
    store: Store,
    ref: SessionRef,
    messages: Sequence[Message],
    list_sources: Callable[[], Sequence[Entry | None]],
    limits: Profile,
    *,
    as_chat: bool = True,
) -> tuple[Message, ...]:
    """Return the messages of a prompt in the form in which they are sent to a model.

    Media that the model does not accept, the oldest of too many, and those whose data was erased are replaced by text. All other
    media get their data back.

    Args:
        store: the store of the session.
        ref: the session.
        messages: the prompt.
        list_sources: returns the entry of each message; None for one without an entry.
        limits: what the model accepts.
        as_chat: True to convert content parts of other dialects to Chat Completions.
    """
    many = len(messages) > INLINE_MESSAGES

    def show() -> Sequence[Message]:
        shown = [show_to_model(message, limits.inputs) for message in messages]
        reasons = _find_surplus(shown, limits)
        if not reasons:
            return shown
        sources = list_sources()
        return [
            _describe_media(message, sources[at], {part: why for (where, part), why in reasons.items() if where == at})
            for at, message in enumerate(shown)
        ]

    restored = await restore_media(store, ref, await run_cpu(show, long=many))
    return await run_cpu(
        lambda: tuple(mark_parts(convert_parts(message) if as_chat else message) for message in restored), long=many
    )
