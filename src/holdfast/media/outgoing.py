"""Media on their way out: put back into the messages that leave, in the shape that whoever gets them takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.media.parts import hashes_of, put_back, show_to_model
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, SessionRef
from holdfast.errors import StoreCorrupt
from holdfast.limits import INLINE_MESSAGES
from holdfast.media.store import THREAD_CHARS
from holdfast.stores.base import Store
from holdfast.wire.openai import convert_parts


async def whole(store: Store, ref: SessionRef, messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` of a session with their data where they were.

    Of one that was erased in between, a mark stays in the place of its data.
    """
    hashes = await run_cpu(hashes_of, messages, long=len(messages) > INLINE_MESSAGES)
    if not hashes:
        return tuple(messages)
    contents = await store.media(ref, hashes)

    def made() -> tuple[Message, ...]:
        return tuple(put_back(message, contents) for message in messages)

    return await run_cpu(made, long=sum(map(len, contents.values())) > THREAD_CHARS)


async def whole_entries(
    store: Store, ref: SessionRef, entries: Sequence[Entry], *, strict: bool = False
) -> tuple[Entry, ...]:
    """Entries with the data of their messages where they were.

    Args:
        store: where their session is.
        ref: which one.
        entries: some of its log.
        strict: raise `StoreCorrupt` where a content is not there.
    """
    messages = await whole(store, ref, [entry.message for entry in entries])
    if strict and (missing := hashes_of(messages)):
        raise StoreCorrupt(f"session {ref.id!r}: a message refers to a medium that is not there: {missing[0].hex()}")
    return tuple(
        entry if message is entry.message else msgspec.structs.replace(entry, message=message)
        for entry, message in zip(entries, messages, strict=True)
    )


async def for_model(
    store: Store, ref: SessionRef, messages: Sequence[Message], inputs: Collection[str] | None, *, as_chat: bool = True
) -> tuple[Message, ...]:
    """A prompt as its model is sent it: what it cannot take as text, the rest with its data.

    Args:
        store: where its session is.
        ref: which one.
        messages: the working set.
        inputs: what the model takes, as `Llm.inputs`.
        as_chat: with the parts of other dialects as Chat Completions have them.
    """
    many = len(messages) > INLINE_MESSAGES
    told = await whole(
        store, ref, await run_cpu(lambda: [show_to_model(message, inputs) for message in messages], long=many)
    )
    return await run_cpu(lambda: tuple(map(convert_parts, told)), long=many) if as_chat else told
