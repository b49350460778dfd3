"""A store for Pydantic AI's conversations, on Holdfast's records.

    store = HoldfastConversationStore(hf, user_id="ada")
    conversation = await store.load("trip-7") or Conversation(conversation_id="trip-7")
    await store.save(await agent.run("Where is my order?", conversation=conversation))

Facts about Pydantic AI 2.68 that this module relies on: entries never change, and are looked up by id across conversations, because
forks share them; a record has a new revision after each save.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)

import holdfast
from holdfast.adapters.pydantic_ai import find_runner
from holdfast.errors import StaleRecord

__all__ = ["HoldfastConversationStore"]

CONVERSATIONS: Final = ("pydantic_ai", "conversations")
ENTRIES: Final = ("pydantic_ai", "entries")
AT_ONCE: Final = 100
"""Records that are written in one transaction."""
ANCESTORS: Final = 32
"""Ids of earlier entries that are stored with an entry, so that a history is read in few queries."""
_RECORD: Final = TypeAdapter(ConversationRecord)
_ENTRY: Final = TypeAdapter(ConversationEntry)


class HoldfastConversationStore(ConversationStore):
    """Stores the conversations of one user, or of all users. Deleting a conversation keeps entries that another conversation shares.

    Args:
        hf: an open `Holdfast`; or a `holdfast.Portal()`, if agents are used without `await` or from several event loops.
        user_id: the owner of the conversations; None: all users of the tenant share them.
    """

    def __init__(self, hf: holdfast.Holdfast | holdfast.Portal, *, user_id: str | None = None) -> None:
        self._hf, self._user_id = hf, user_id

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None if it does not exist."""
        stored = await self._call(CONVERSATIONS, "get", conversation_id)
        return None if stored is None else _RECORD.validate_python(stored.value)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records of conversations, most recently saved first.

        Args:
            scope: return only records with this scope; None: all records.
            limit: maximum number of records; None: all.
        """
        records: list[ConversationRecord] = []
        after = None
        while True:
            page = await self._call(CONVERSATIONS, "list", limit=1000, after=after)
            records += [_RECORD.validate_python(one.value) for one in page.records]
            if not page.has_more:
                break
            after = page.records[-1]
        found = [one for one in records if scope is None or one.scope == scope]
        return sorted(found, key=lambda one: one.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries. If this fails, readers see neither.

        Raises:
            ConversationConflict: the stored record has another revision, or the record's head is not stored.
        """
        version = await self._check_revision(record.conversation_id, expected_revision)
        ancestors: list[str] = []
        before = new_entries[0].parent_id if new_entries else record.head_id
        if before is not None:
            stored = await self._call(ENTRIES, "get", before)
            if stored is None:
                raise ConversationConflict(record.conversation_id)
            ancestors = [before, *stored.value["ancestors"]]
        values: dict[str, Any] = {}
        for entry in new_entries:
            values[entry.id] = {"entry": _ENTRY.dump_python(entry, mode="json"), "ancestors": ancestors[:ANCESTORS]}
            ancestors = [entry.id, *ancestors[:ANCESTORS]]
        early = list(values)[: -(AT_ONCE - 1)]
        for at in range(0, len(early), AT_ONCE):  # nothing refers to these entries until the record is written
            await self._call(ENTRIES, "put_many", {key: values.pop(key) for key in early[at : at + AT_ONCE]})
        await self._change(record, values, version)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a record, and its entries except those that another conversation of the owner shares.

        Raises:
            ConversationConflict: the stored record has another revision.
        """
        version = await self._check_revision(conversation_id, expected_revision)
        record = await self.read_record(conversation_id)
        try:
            await self._call(CONVERSATIONS, "delete", conversation_id, expect=version)
        except StaleRecord:
            raise ConversationConflict(conversation_id) from None
        own = await self._find_entries([record] if record else [])
        for entry_id in own - await self._find_entries(await self.read_records()):
            await self._call(ENTRIES, "delete", entry_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry. Raises `LookupError` if it does not exist."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to `head_id`, oldest first. A query reads 32 entries.

        Args:
            head_id: the last entry; None: an empty history.
            limit: maximum number of entries, counted back from the last; None: all.

        Raises:
            LookupError: an entry is missing.
        """
        chain: list[ConversationEntry] = []
        ids = [] if head_id is None else [head_id]
        while ids and (limit is None or len(chain) < limit):
            ids = ids if limit is None else ids[: limit - len(chain)]
            found = await self._call(ENTRIES, "get_many", ids)
            if missing := [one for one in ids if one not in found]:
                raise LookupError(f"entry {missing[0]!r} is not stored")
            chain += [_ENTRY.validate_python(found[one].value["entry"]) for one in ids]
            ids = found[ids[-1]].value["ancestors"]
        return chain[::-1]

    async def _call(self, namespace: tuple[str, ...], method: str, *args: Any, **kwargs: Any) -> Any:
        run, hf = find_runner(self._hf)

        async def call() -> Any:
            return await getattr(hf.records(namespace, user_id=self._user_id), method)(*args, **kwargs)

        return await run(call)

    async def _change(self, record: ConversationRecord, values: dict[str, Any], version: int) -> None:
        run, hf = find_runner(self._hf)

        async def change() -> None:
            conversations = hf.records(CONVERSATIONS, user_id=self._user_id)
            entries = hf.records(ENTRIES, user_id=self._user_id)
            value = _RECORD.dump_python(record, mode="json")
            puts = [entries.make_put(key, made) for key, made in values.items()]
            await conversations.change([*puts, conversations.make_put(record.conversation_id, value, expect=version)])

        try:
            await run(change)
        except StaleRecord:
            raise ConversationConflict(record.conversation_id) from None

    async def _check_revision(self, conversation_id: str, expected_revision: str | None) -> int:
        """Return the version of a conversation's stored record, or 0 if there is no record.

        Raises:
            ConversationConflict: the stored record has another revision than `expected_revision`.
        """
        stored = await self._call(CONVERSATIONS, "get", conversation_id)
        if (None if stored is None else stored.value["revision"]) != expected_revision:
            raise ConversationConflict(conversation_id)
        return 0 if stored is None else stored.version

    async def _find_entries(self, records: Sequence[ConversationRecord]) -> set[str]:
        """Return the ids of all entries in the histories and branches of conversations."""
        found: set[str] = set()
        for record in records:
            for tip in (record.head_id, *record.branches):
                if tip is not None and tip not in found:
                    found |= {entry.id for entry in await self.read_history(tip)}
        return found
