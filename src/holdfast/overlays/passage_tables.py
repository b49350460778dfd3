"""What has left the windows of sessions, analysed for recall: one bounded table of passages a session, in the process's cache.

A table follows its session: what has left since the last look is read and analysed, and nothing else. At first, that is the newest
`SESSION_RECALL_ENTRIES` entries. Filling goes on in the background where nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.accounting import run_cpu
from holdfast.context.digest.speech import LONGEST, is_courtesy
from holdfast.context.statements import DENSE_LANGUAGES, cues_of, split_sentences, spoken_language
from holdfast.domain.session import Entry, SessionRef
from holdfast.indexes.documents import words_of
from holdfast.limits import SEARCH_INLINE_CHARS, SESSION_RECALL_CHARS, SESSION_RECALL_ENTRIES
from holdfast.overlays.session_cache import CacheItem, TenantCache
from holdfast.recall.passages import Finding, Passage, PassageTable
from holdfast.recall.questions import question_of
from holdfast.stores.base import Store

T = TypeVar("T")
_log: Final = logging.getLogger("holdfast.recall")
_PAGE: Final = 64
"""Entries that are read at once."""
_MOST: Final = 32
"""Passages of one search."""
QUESTIONS_CHARS: Final = 300
"""Characters of questions that the index is asked for: what a search costs grows with its words."""
_CORRECTED: Final = 12
"""Of these, the best ones, those whose corrections are looked for."""
_LEAST_SHARE: Final = 0.3
"""Part of the best passage's score below which one has too little to do with the query."""
_ROLES: Final = frozenset({"user", "assistant"})
_REQUEST: Final = re.compile(
    r"(?:please )?(?:tell|remind|list|show|give|repeat|recap|summari[sz]e|sag|nenn|zeig|dis|rappelle|dime|recuérdame|diga)\b",
    re.IGNORECASE,
)
"""How a sentence begins that asks without a question mark."""


class Least(NamedTuple):
    """The evidence below which a passage is not recalled; see `Passage`."""

    evidence: float
    covered: float

    def is_met(self, passage: Passage) -> bool:
        """Return True if a passage has as much."""
        return passage.evidence >= self.evidence and passage.covered >= self.covered


ASKING: Final = Least(evidence=2.5, covered=0.0)
"""For a message that asks something."""
STATING: Final = Least(evidence=8.0, covered=0.25)
"""For one that asks nothing: two rare words at least, and a good part of it."""


def least_for(query: str) -> Least | None:
    """Return the evidence that a message needs; None if it greets, thanks or agrees, and nothing else."""
    sentences = [one for one in split_sentences(query) if not is_courtesy(one)]
    if any(map(_asks, sentences)):
        return ASKING
    return None if all(map(_agrees, sentences)) else STATING


def questions_in(query: str) -> str:
    """Return the sentences of a message that ask, up to `QUESTIONS_CHARS` characters of them."""
    return " ".join(filter(_asks, split_sentences(query)))[:QUESTIONS_CHARS]


def _agrees(sentence: str) -> bool:
    """Return True for a short sentence that begins like an answer or a farewell."""
    courtesy = cues_of(spoken_language(sentence))["courtesy"]
    return len(sentence) <= LONGEST and courtesy.match(sentence) is not None


def _asks(sentence: str) -> bool:
    if sentence.rstrip("\"')”’").endswith(("?", "？")) or _REQUEST.match(sentence):  # noqa: RUF001 - marks of other scripts
        return True
    language = spoken_language(sentence)
    asking = cues_of(language)["question"]
    return (asking.search(sentence) if language in DENSE_LANGUAGES else asking.match(sentence)) is not None


def _corrects(sentence: str) -> bool:
    """Return True for a sentence that says that something is different now."""
    return cues_of(spoken_language(sentence))["correction"].search(sentence) is not None


def is_recallable(entry: Entry) -> bool:
    """Return True for what a person or the assistant said: results of tools are the digest's."""
    return entry.message.role in _ROLES and bool(words_of(entry))


class SessionPassages(CacheItem):
    """The table of one session, which several threads may use.

    Attributes:
        table: the sentences; use the methods here.
        gone: `seq` of entries in the table that the log does not show any more.
    """

    def __init__(self, store: Store, ref: SessionRef, identity: str, cache: TenantCache) -> None:
        self.identity = identity
        self.table = PassageTable(_corrects)
        self.gone: set[int] = set()
        self._store, self._ref, self._cache = store, ref, cache
        self._lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None

    def fill(self, stop: int) -> asyncio.Task[None] | None:
        """Begin to analyse what the table lacks before `stop`; None if that is nothing. The task ends without an error."""
        if self._task is not None and not self._task.done():
            return self._task
        if stop <= self.table.through:
            return None
        self._task = asyncio.create_task(self._fill(stop), name="passages of a session")
        return self._task

    def add(self, entries: Sequence[Entry]) -> None:
        """Analyse entries."""
        for entry in entries:
            if is_recallable(entry):
                with self._lock:
                    self.table.add(entry.seq, entry.message.role, words_of(entry))

    def search(
        self, query: str, least: Least, now: int, boosts: Mapping[int, float], before: int | None = None
    ) -> list[Finding]:
        """Find what answers a query, the best first, what is in the prompt already among it.

        Args:
            query: the user message.
            least: the evidence that it needs; see `least_for`.
            now: milliseconds since the epoch.
            boosts: see `PassageTable.search`.
            before: `seq` of the entry that asks; what follows it is left out.
        """
        question = question_of(query, now=now, timed=False, everyday=True)
        with self._lock:
            found = [
                one
                for one in self.table.search(question, boosts)
                if one.seq not in self.gone and (before is None or one.seq < before)
            ]
            enough = _LEAST_SHARE * found[0].score if found else 0.0
            found = [one for one in found if one.score >= enough and (one.seq in boosts or least.is_met(one))][:_MOST]
            return [self.table.complete(one, newer=at < _CORRECTED) for at, one in enumerate(found)]

    def close(self) -> None:
        """Give up what is being analysed."""
        if self._task is not None:
            self._task.cancel()

    async def _fill(self, stop: int) -> None:
        """Read and analyse, newest first, what was written since the last time, within the limits."""
        through, end, left, chars = self.table.through, stop, SESSION_RECALL_ENTRIES, SESSION_RECALL_CHARS
        try:
            while end > through and left > 0 and chars > 0:
                size = min(_PAGE, left)
                page = await self._store.entries(self._ref, start=through, stop=end, limit=size, descending=True)
                size_chars = sum(len(words_of(entry)) for entry in page)
                await run_cpu(self.add, page, long=size_chars > SEARCH_INLINE_CHARS)
                left, chars = left - len(page), chars - size_chars
                end = min((entry.seq for entry in page), default=through) if len(page) == size else through
        except Exception as exc:  # noqa: BLE001 - the last place: nobody waits for it
            _log.warning("a session could not be analysed for recall: %s", type(exc).__name__)
            return
        if end > through:
            self.table.begins = end
        self.table.through = stop
        self.note_size()

    def note_size(self) -> None:
        """Have the cache know how large the table is now."""
        self._cache.resize(("passages", self._ref), self, self.table.estimate_bytes())


class PassageTables:
    """The tables of a tenant's sessions.

    Args:
        cache: of the tenant; it keeps them, and forgets those that were used longest ago.
    """

    def __init__(self, cache: TenantCache) -> None:
        self._cache = cache
        self._running: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a search that nobody may be waiting for at its end."""
        task = asyncio.create_task(work, name="recall of a session")
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits is given it: asyncio need not log it as well

    def of(self, store: Store, ref: SessionRef, identity: str) -> SessionPassages:
        """Return the table of a session, made if there is none of that very session."""
        key = ("passages", ref)
        found = self._cache.find(key)
        if not isinstance(found, SessionPassages) or found.identity != identity:
            found = SessionPassages(store, ref, identity, self._cache)
            self._cache.keep(key, found)
        found.note_size()
        return found

    def forget(self, ref: SessionRef) -> None:
        """Drop what is known of a session: something of it was erased, or it is no more."""
        self._cache.drop(("passages", ref))

    def close(self) -> None:
        """Give up the searches that are running."""
        for task in self._running:
            task.cancel()
