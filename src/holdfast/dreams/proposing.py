"""Asking a model, behind what a sweep decides, which promoted memories say the same: one call, and whatever comes of it the sweep stands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.agents import Llm
from holdfast.domain.memory import Memory, Owner
from holdfast.domain.messages import Message
from holdfast.dreams.proposals import Merge, mergeable, merges_in, proposed, question, seen
from holdfast.errors import HoldfastError
from holdfast.limits import MEMORIES, MERGE_PAUSE_SECONDS, MERGE_SECONDS
from holdfast.memory.reviewing import proposals
from holdfast.models import Collector, OfflineModel, closing, used
from holdfast.secrets import Guard
from holdfast.stores.memories import MemoryStore

_log = logging.getLogger("holdfast.dreams")
ANSWER_CHARS: Final = 100_000
"""Characters of an answer at which it is listened to no longer."""
Status = Literal["asked", "same", "failed", "paused", "none"]
"""`same`: it was asked about the same memories before. `paused`: it failed lately. `none`: fewer than two memories are there to be
merged, or nobody who reads answers to that name."""
LOOKED_BACK: Final = 10
"""Sweeps, the newest, of which one says what was asked about last."""


class Failed(Exception):
    """There is no answer that is one. Args: `code`: one word, without anything of what was asked or said."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking about some memories."""

    status: Status
    code: str = ""
    """Why it failed."""
    seen: str = ""
    memories: int = 0
    """How many it was asked about."""
    merges: tuple[Merge, ...] = ()
    spent: tuple[int, int] = (0, 0)
    """Tokens of prompt and answer, as the model reported them."""

    def to_wire(self) -> dict[str, Any]:
        """As the diary keeps it."""
        told: dict[str, Any] = {"status": self.status, "memories": self.memories, "seen": self.seen}
        told |= {"code": self.code} if self.code else {}
        return told | {"prompt_tokens": self.spent[0], "completion_tokens": self.spent[1]}


class Proposer:
    """Asks one model, for all tenants.

    Args:
        resolve: the model; the offline one is not asked.
        clock: milliseconds since the epoch.
        guard: what is a secret: an answer with one is no proposal. None: nothing is.
        seconds: that one answer may take.
    """

    def __init__(
        self,
        resolve: Callable[[], Llm],
        clock: Callable[[], int],
        guard: Guard | None = None,
        *,
        seconds: float = MERGE_SECONDS,
    ) -> None:
        self._resolve = resolve
        self._clock = clock
        self._guard = guard
        self._seconds = seconds
        self._paused = 0

    async def ask(self, memories: Sequence[Memory], last: str) -> Asked:
        """Ask about memories; never raises but when it is cancelled.

        Args:
            memories: what it is asked about: `mergeable` ones.
            last: what was `seen` when it was asked last.
        """
        llm = self._resolve()
        memories = _fitting(llm, memories)
        told: dict[str, Any] = {"seen": seen(memories), "memories": len(memories)}
        if isinstance(llm.client, OfflineModel) or len(memories) < 2:
            return Asked(status="none")
        if told["seen"] == last:
            return Asked(status="same", **told)
        if self._clock() < self._paused:
            return Asked(status="paused", seen=last, memories=len(memories))
        try:
            merges, spent = await self._answered(llm, memories)
        except Failed as exc:
            _log.warning("the model that is to propose merges of memories gave no answer: %s", exc.code)
            return Asked(status="failed", code=exc.code, seen=last, memories=len(memories))
        return Asked(status="asked", merges=self._without_secrets(merges), spent=spent, **told)

    async def _answered(self, llm: Llm, memories: Sequence[Memory]) -> tuple[tuple[Merge, ...], tuple[int, int]]:
        try:
            async with asyncio.timeout(self._seconds):
                text, spent = await _said(llm, question(memories))
        except Failed:
            raise
        except TimeoutError as exc:
            self._pause()
            raise Failed("timeout") from exc
        except HoldfastError as exc:
            self._pause()
            raise Failed(exc.code) from exc
        except Exception as exc:
            self._pause()  # somebody's own client: what its error says may hold anything
            raise Failed(type(exc).__name__) from exc
        merges = merges_in(text)
        if isinstance(merges, str):
            raise Failed(merges)
        return merges, spent

    def _pause(self) -> None:
        self._paused = self._clock() + MERGE_PAUSE_SECONDS * 1000

    def _without_secrets(self, merges: Iterable[Merge]) -> tuple[Merge, ...]:
        guard = self._guard
        return tuple(one for one in merges if guard is None or guard.told(one.content) == one.content)


class Proposing:
    """The proposals of one sweep: the model is asked once, however often the sweep is decided anew.

    Args:
        proposer: who asks.
        store: where memories are.
        promoted: the promoted memories of an owner.
        new_id: makes ids of memories.
    """

    def __init__(
        self,
        proposer: Proposer,
        store: MemoryStore,
        promoted: Callable[[Owner], Awaitable[Sequence[Memory]]],
        new_id: Callable[[], str],
    ) -> None:
        self._proposer = proposer
        self._store = store
        self._promoted = promoted
        self._new_id = new_id
        self._asked: Asked | None = None

    async def of(
        self, owner: Owner, best: Sequence[Memory], now: int, *, room: int
    ) -> tuple[list[Memory], dict[str, Any]]:
        """What is proposed, and what a report says of it.

        Args:
            owner: whose memories.
            best: those that the sweep promotes.
            now: milliseconds since the epoch.
            room: proposals that one write has room for.
        """
        there = {one.id: one for one in (*await self._promoted(owner), *best)}
        memories = mergeable(there.values(), now)
        if self._asked is None:
            self._asked = await self._proposer.ask(memories, await self._last(owner))
        asked = self._asked
        found: list[Memory] = []
        if asked.merges:
            total = (await self._store.memories(owner, limit=1)).total
            before = await proposals(self._store, owner)
            ids = iter(self._new_id, None)
            found = proposed(asked.merges, memories, before, now, ids)[: max(0, min(room, MEMORIES - total))]
        told = [{"memory_id": one.id, "merges": list(one.merges)} for one in found]
        return found, {"model": asked.to_wire(), "proposals": told}

    async def _last(self, owner: Owner) -> str:
        models = (one.report.get("model") for one in await self._store.diary(owner, limit=LOOKED_BACK))
        return next((str(model.get("seen", "")) for model in models if isinstance(model, Mapping)), "")


def _fitting(llm: Llm, memories: Sequence[Memory]) -> Sequence[Memory]:
    """As many as the model's window has room for, beside an answer as long as they are."""
    try:
        room = llm.budget(tools=False).counted
    except HoldfastError:
        return ()
    while memories:
        said = question(memories)
        if sum(llm.counter.message(Message(role=one["role"], content=one["content"])) for one in said) * 2 <= room:
            return memories
        memories = memories[: len(memories) // 2]
    return memories


async def _said(llm: Llm, messages: list[dict[str, Any]]) -> tuple[str, tuple[int, int]]:
    """What a model answers, and what that took. Raises `Failed`."""
    body: dict[str, Any] = {**llm.params, "model": llm.model, "messages": messages}
    if llm.max_tokens is not None and not {"max_tokens", "max_completion_tokens"} & body.keys():
        body["max_tokens"] = llm.max_tokens
    collector, size = Collector(), 0
    async with closing(llm.client.stream(body)) as chunks:
        async for chunk in chunks:
            collector.add(chunk)
            size += sum(len(str((one.get("delta") or {}).get("content") or "")) for one in chunk.get("choices") or ())
            if size > ANSWER_CHARS:
                raise Failed("too_long")
    completion = collector.partial()
    choice: Mapping[str, Any] = next(iter(completion.get("choices") or []), {})
    content, tokens = (choice.get("message") or {}).get("content"), used(completion.get("usage"))
    if choice.get("finish_reason") in ("length", "content_filter"):
        raise Failed("cut_off" if choice["finish_reason"] == "length" else "filtered")
    if not isinstance(content, str) or not content.strip():
        raise Failed("empty")
    return content, (tokens.prompt_tokens, tokens.completion_tokens)
