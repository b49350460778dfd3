"""Dreams: sweeps over memories that promote what was recalled often, well and differently, and write a diary of why.

    signals -> findings -> a model's proposals, where one is asked -> one write: promotions, proposals, diary entry, old signals
            -> files rendered from the records

The write expects the version that was read, so of two sweeps one promotes, and the other finds it done. A sweep that has nothing to add
writes nothing: a second one behind the first changes nothing. Files come behind the write and from the records alone, so what a
crash leaves undone is done by the next.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner, Signal
from holdfast.dreams.gates import DreamSettings, Finding, findings_of, promoted
from holdfast.dreams.proposing import Proposing
from holdfast.dreams.themes import themes_of
from holdfast.errors import StaleMemories
from holdfast.limits import MEMORIES_AT_ONCE, PAGE
from holdfast.memory.ranking import DAY
from holdfast.stores.memories import MemoryStore
from holdfast.stores.walk import owners

_log = logging.getLogger("holdfast.dreams")
TRIES: Final = 10
"""Times that a sweep is decided anew, where somebody keeps changing the memories meanwhile."""
_PAUSE: Final = 0.02
"""Seconds before the third try, and as much more before each further one."""
TOLD: Final = 200
"""Memories that a report tells of, the best."""
_LONG: Final = 500
"""Signals from which on deciding takes long enough for others to wait."""
OnDreamt = Callable[["Dreamt"], Awaitable[None]]
"""Called behind a sweep that changed something, when that is durable."""


class Dreamt(msgspec.Struct, frozen=True):
    """A sweep over one owner's memories."""

    owner: Owner
    report: dict[str, Any]
    """What was decided, and why; as the diary keeps it."""
    memories: Mapping[str, Memory]
    """Those that it tells of, by id, as they are behind it."""
    written: bool
    """Whether anything was written; a dry run, or one with nothing new, writes nothing."""

    @property
    def promotions(self) -> int:
        """How many it promoted, or would have."""
        return int(self.report["verdicts"].get("promoted", 0))


class Dreams:
    """Dreams about the memories of one tenant.

    Attributes:
        on_dreamt: called behind each sweep that wrote something.

    Args:
        store: where memories are.
        clock: milliseconds since the epoch.
        settings: weights and gates.
        keep: milliseconds that signals are kept; they are looked at no longer, either.
        new_id: makes ids of diary entries.
        proposing: what is asked for merges, behind what one sweep decides, for each sweep anew; None: nobody is.
    """

    def __init__(
        self,
        store: MemoryStore,
        clock: Callable[[], int],
        settings: DreamSettings | None = None,
        *,
        keep: int = 180 * DAY,
        new_id: Callable[[], str] = lambda: f"dream_{uuid.uuid4().hex}",
        proposing: Callable[[], Proposing] | None = None,
    ) -> None:
        self.on_dreamt: list[OnDreamt] = []
        self.settings = settings or DreamSettings()
        self._store = store
        self._clock = clock
        self._keep = keep
        self._new_id = new_id
        self._proposing = proposing

    async def dream(self, owner: Owner, *, dry_run: bool = False, ask: bool = True) -> Dreamt:
        """Sweep over an owner's memories.

        Args:
            owner: whose.
            dry_run: decide, and write nothing at all; no model is asked.
            ask: whether a model is asked for merges, where one is to be.

        Raises:
            StaleMemories: somebody kept changing them meanwhile.
        """
        proposing = self._proposing() if self._proposing is not None and ask and not dry_run else None
        for attempt in range(TRIES):
            try:
                dreamt = await self._dreamt(owner, proposing, dry_run=dry_run)
            except StaleMemories:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(_PAUSE * attempt)  # who writes one thing after the other is done by then
                continue
            if dreamt.written:
                await self._tell(dreamt)
            return dreamt
        raise AssertionError("the loop ends before")

    async def diary(self, owner: Owner, limit: int = 20) -> list[dict[str, Any]]:
        """The newest sweeps, newest first, as `shown` tells them: with what memories say that there still are."""
        entries = await self._store.diary(owner, limit=limit)
        memories = await self.named(owner, entries)
        return [{"id": entry.id, "at": entry.at, **shown(entry.report, memories)} for entry in entries]

    async def named(self, owner: Owner, entries: Sequence[DiaryEntry]) -> dict[str, Memory]:
        """The memories that diary entries tell of and that there still are, by id."""
        ids = {name for entry in entries for name in _ids_in(entry.report)}
        return {memory.id: memory async for memory in self._memories(owner, sorted(ids))}

    async def last(self, owner: Owner) -> int | None:
        """When the last sweep that wrote something was, milliseconds since the epoch; None: there was none."""
        newest = await self._store.diary(owner, limit=1)
        return newest[0].at if newest else None

    def owners(self) -> AsyncIterator[tuple[Owner, int]]:
        """Owners for whom something was ever written, each with when that last was."""
        return owners(self._store)

    # -- one sweep -------------------------------------------------------------

    async def _dreamt(self, owner: Owner, proposing: Proposing | None, *, dry_run: bool) -> Dreamt:
        now = self._clock()
        version = (await self._store.memories(owner, limit=1)).version
        signals = await self._store.signals(owner, since=now - self._keep)
        of: dict[str, list[Signal]] = {}
        for signal in signals:
            of.setdefault(signal.memory_id, []).append(signal)
        memories = {memory.id: memory async for memory in self._memories(owner, sorted(of))}

        def decided() -> tuple[list[Finding], dict[str, Any]]:
            findings = findings_of(memories.values(), of, now, self.settings)
            return findings, self._report(owner, findings, memories, signals, now)

        findings, report = await run_cpu(decided, long=len(signals) > _LONG)
        best = [promoted(memories[one.memory_id], one, now) for one in findings if one.verdict == "promoted"]
        if dry_run or not (best or await self._is_news(owner, report["through"])):
            return Dreamt(owner, report, memories, written=False)
        proposals: list[Memory] = []
        if proposing is not None:
            proposals, said = await proposing.of(owner, best, now, room=MEMORIES_AT_ONCE - len(best))
            report |= said
        delta = MemoryDelta(
            put=(*best, *proposals),
            diary=(DiaryEntry(id=self._new_id(), at=now, report=report),),
            signals_before=now - self._keep,
        )
        stored = await self._store.change_memories(owner, delta, timestamp=now, expect=version)
        memories |= {memory.id: memory for memory in stored.memories}
        return Dreamt(owner, report, memories, written=True)

    async def _memories(self, owner: Owner, ids: Sequence[str]) -> AsyncIterator[Memory]:
        for start in range(0, len(ids), PAGE):
            page = await self._store.memories(owner, ids=ids[start : start + PAGE], limit=PAGE)
            for memory in page.memories:
                yield memory

    async def _is_news(self, owner: Owner, through: int | None) -> bool:
        """Whether something was recalled behind the last sweep."""
        if through is None:
            return False
        last = await self._store.diary(owner, limit=1)
        return not last or through > (last[0].report.get("through") or 0)

    def _report(
        self,
        owner: Owner,
        findings: Sequence[Finding],
        memories: Mapping[str, Memory],
        signals: Sequence[Signal],
        now: int,
    ) -> dict[str, Any]:
        day = Counter(signal.memory_id for signal in signals if signal.at > now - DAY)
        told = findings[:TOLD]
        return {
            "owner": {"kind": owner.kind, "id": owner.id},
            "verdicts": dict(Counter(one.verdict for one in findings)),
            "candidates": [one.to_wire() for one in told],
            "themes": [_kept(theme.to_wire()) for theme in themes_of(list(memories.values()), day)],
            "agents": sorted({memories[one.memory_id].agent or "" for one in findings if one.verdict == "promoted"}),
            "through": max((signal.at for signal in signals), default=None),
        }

    async def _tell(self, dreamt: Dreamt) -> None:
        for told in self.on_dreamt:
            try:
                await told(dreamt)
            except Exception as exc:  # noqa: BLE001 - the last place: what was promoted is, whatever becomes of its files
                _log.error("behind a dream about %s memories: not done", dreamt.owner.kind, exc_info=exc)


def shown(report: Mapping[str, Any], memories: Mapping[str, Memory]) -> dict[str, Any]:
    """A report as people read it: with what each memory says, None where it is forgotten, and the words of each theme."""
    candidates = [{**one, "content": _said(one["memory_id"], memories)} for one in report.get("candidates", ())]
    themes = [_told(theme, memories) for theme in report.get("themes", ())]
    proposals = [_proposed(one, memories) for one in report.get("proposals", ())]
    told = {**report, "candidates": candidates, "themes": [theme for theme in themes if theme["terms"]]}
    return {**told, "proposals": proposals, "model": report.get("model")}


def _proposed(one: Mapping[str, Any], memories: Mapping[str, Memory]) -> dict[str, Any]:
    """A proposal with what it would say, and what became of it; None where it is gone."""
    memory = memories.get(one["memory_id"])
    return {**one, "content": _said(one["memory_id"], memories), "status": None if memory is None else memory.status}


def _said(memory_id: str, memories: Mapping[str, Memory]) -> str | None:
    memory = memories.get(memory_id)
    return None if memory is None else memory.content


def _kept(theme: Mapping[str, Any]) -> dict[str, Any]:
    """A theme as the diary keeps it: without words, which come from the memories that there still are when it is read."""
    return {name: value for name, value in theme.items() if name != "terms"}


def _told(theme: Mapping[str, Any], memories: Mapping[str, Memory]) -> dict[str, Any]:
    there = [memories[name] for name in theme["memory_ids"] if name in memories]
    found = themes_of(there, dict.fromkeys((one.id for one in there), 1), near=0.0)
    return {**theme, "terms": list(found[0].terms) if found else []}


def _ids_in(report: Mapping[str, Any]) -> set[str]:
    ids = {one["memory_id"] for one in report.get("candidates", ())}
    ids |= {one["memory_id"] for one in report.get("proposals", ())}
    return ids.union(*(theme["memory_ids"] for theme in report.get("themes", ())))
