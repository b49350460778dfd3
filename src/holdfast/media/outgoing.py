"""Put media data back into messages before they are sent to a model or to a client."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.media.parts import list_hashes, restore_data, show_to_model
from holdfast.domain.messages import Message
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


async def prepare_for_model(
    store: Store, ref: SessionRef, messages: Sequence[Message], inputs: Collection[str] | None, *, as_chat: bool = True
) -> tuple[Message, ...]:
    """Return the messages of a prompt in the form in which they are sent to a model.

    Media that the model does not accept are replaced by text. All other media get their data back.

    Args:
        store: the store of the session.
        ref: the session.
        messages: the messages of the prompt.
        inputs: kinds of input that the model accepts, as in `Llm.inputs`.
        as_chat: True to convert content parts of other dialects to Chat Completions.
    """
    many = len(messages) > INLINE_MESSAGES
    restored = await restore_media(
        store, ref, await run_cpu(lambda: [show_to_model(message, inputs) for message in messages], long=many)
    )
    return await run_cpu(lambda: tuple(map(convert_parts, restored)), long=many) if as_chat else restored
