"""Find passages in messages that left the prompt, so that they can be recalled in the same session.

A *passage* is a sentence of a message. Each session has one table of analysed passages, of bounded size.

The tables are in the cache of the process. An update reads and analyses only the entries that left the prompt since the last
update. The first update covers the newest `SESSION_RECALL_ENTRIES` entries. Tables are filled in the background, so that no turn
waits for them.
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
from holdfast.context.statements import DENSE_LANGUAGES, detect_language, load_cues, split_sentences
from holdfast.domain.session import Entry, SessionRef
from holdfast.indexes.documents import extract_words
from holdfast.limits import SEARCH_INLINE_CHARS, SESSION_RECALL_CHARS, SESSION_RECALL_ENTRIES
from holdfast.overlays.session_cache import CacheItem, TenantCache
from holdfast.recall.passages import Finding, Passage, PassageTable
from holdfast.recall.questions import parse_question
from holdfast.stores.base import Store

T = TypeVar("T")
_log: Final = logging.getLogger("holdfast.recall")
_PAGE: Final = 64
"""Number of entries that are read at once."""
_MOST: Final = 32
"""Maximum number of passages that a search returns."""
QUESTIONS_CHARS: Final = 300
"""Maximum number of characters of the questions that are searched in the index. More words make a search slower."""
_CORRECTION_PASSAGES: Final = 12
"""Number of passages for which later corrections are looked up, beginning with the best one."""
_LEAST_SHARE: Final = 0.3
"""Minimum score of a returned passage, as a fraction of the best passage's score."""
_ROLES: Final = frozenset({"user", "assistant"})
_REQUEST: Final = re.compile(
    r"(?:please )?(?:tell|remind|list|show|give|repeat|recap|summari[sz]e|sag|nenn|zeig|dis|rappelle|dime|recuérdame|diga)\b",
    re.IGNORECASE,
)
"""Matches the beginning of a sentence that asks for something without a question mark."""


class EvidenceThreshold(NamedTuple):
    """Minimum values of a passage that is recalled. The fields are those of `Passage`."""

    evidence: float
    covered: float

    def is_met(self, passage: Passage) -> bool:
        """Return True if a passage reaches both minimum values."""
        return passage.evidence >= self.evidence and passage.covered >= self.covered


ASKING: Final = EvidenceThreshold(evidence=2.5, covered=0.0)
"""Threshold for passages if the user's message asks something."""
STATING: Final = EvidenceThreshold(evidence=8.0, covered=0.25)
"""Threshold for passages if the user's message asks nothing. The passage must contain at least two rare words of the message, and
words with a quarter of the total weight of the message's words.
"""


def choose_threshold(query: str) -> EvidenceThreshold | None:
    """Return the minimum evidence with which passages are recalled for a user's message.

    Return None if the message only greets, thanks or agrees, so that nothing is recalled.
    """
    sentences = [one for one in split_sentences(query) if not is_courtesy(one)]
    if any(map(_is_question, sentences)):
        return ASKING
    return None if all(map(_is_agreement, sentences)) else STATING


def extract_questions(query: str) -> str:
    """Return the sentences of a message that ask something, cut after `QUESTIONS_CHARS` characters."""
    return " ".join(filter(_is_question, split_sentences(query)))[:QUESTIONS_CHARS]


def _is_agreement(sentence: str) -> bool:
    """Return True if a sentence is short and begins like an agreement or a farewell."""
    courtesy = load_cues(detect_language(sentence))["courtesy"]
    return len(sentence) <= LONGEST and courtesy.match(sentence) is not None


def _is_question(sentence: str) -> bool:
    if sentence.rstrip("\"')”’").endswith(("?", "？")) or _REQUEST.match(sentence):  # noqa: RUF001 - marks of other scripts
        return True
    language = detect_language(sentence)
    asking = load_cues(language)["question"]
    return (asking.search(sentence) if language in DENSE_LANGUAGES else asking.match(sentence)) is not None


def _is_correction(sentence: str) -> bool:
    """Return True if a sentence says that something has changed."""
    return load_cues(detect_language(sentence))["correction"].search(sentence) is not None


def is_recallable(entry: Entry) -> bool:
    """Return True if an entry is a message with text from the user or the assistant. Tool results appear only in digests."""
    return entry.message.role in _ROLES and bool(extract_words(entry))


class SessionPassages(CacheItem):
    """The passages of one session that can be recalled. Several threads may use this object.

    Attributes:
        table: The table of sentences. Other classes must use only the methods of this class.
        gone: `seq` of each entry in the table that was erased or rewound.
        changed: The texts that the last prompt contained in changed form, and their words. The next prompt mostly has the same ones.
    """

    def __init__(self, store: Store, ref: SessionRef, identity: str, cache: TenantCache) -> None:
        self.identity = identity
        self.table = PassageTable(_is_correction)
        self.gone: set[int] = set()
        self.changed: tuple[list[str], str] = ([], "")
        self._store, self._ref, self._cache = store, ref, cache
        self._lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None

    def fill(self, stop: int) -> asyncio.Task[None] | None:
        """Start a task that adds the missing entries with a `seq` below `stop` to the table.

        Returns:
            The task. If a task is already running, that task. None if no entries are missing. The task raises no errors.
        """
        if self._task is not None and not self._task.done():
            return self._task
        if stop <= self.table.through:
            return None
        self._task = asyncio.create_task(self._fill(stop), name="passages of a session")
        return self._task

    def add(self, entries: Sequence[Entry]) -> None:
        """Analyse entries, and add the passages of those with text to the table."""
        for entry in entries:
            if is_recallable(entry):
                with self._lock:
                    self.table.add(entry.seq, entry.message.role, extract_words(entry))

    def search(
        self, query: str, least: EvidenceThreshold, now: int, boosts: Mapping[int, float], before: int | None = None
    ) -> list[Finding]:
        """Return the passages that match a user's message, best first. Passages that are already in the prompt are included.

        Args:
            query: The user message.
            least: Minimum evidence of a passage, from `choose_threshold`. Passages of entries in `boosts` do not need it.
            now: Current time in milliseconds since the epoch.
            boosts: Addition to the score of an entry's passages, by `seq`, as in `PassageTable.search`.
            before: `seq` of the user message. Only entries before it are searched. None: all entries are searched.
        """
        question = parse_question(query, now=now, timed=False, everyday=True)
        with self._lock:
            found = [
                one
                for one in self.table.search(question, boosts)
                if one.seq not in self.gone and (before is None or one.seq < before)
            ]
            enough = _LEAST_SHARE * found[0].score if found else 0.0
            found = [one for one in found if one.score >= enough and (one.seq in boosts or least.is_met(one))][:_MOST]
            return [self.table.add_context(one, newer=at < _CORRECTION_PASSAGES) for at, one in enumerate(found)]

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _fill(self, stop: int) -> None:
        """Read and analyse the entries since the last update, newest first, up to the limits on entries and characters."""
        through, end, left, chars = self.table.through, stop, SESSION_RECALL_ENTRIES, SESSION_RECALL_CHARS
        try:
            while end > through and left > 0 and chars > 0:
                size = min(_PAGE, left)
                page = await self._store.entries(self._ref, start=through, stop=end, limit=size, descending=True)
                size_chars = sum(len(extract_words(entry)) for entry in page)
                await run_cpu(self.add, page, long=size_chars > SEARCH_INLINE_CHARS)
                left, chars = left - len(page), chars - size_chars
                end = min((entry.seq for entry in page), default=through) if len(page) == size else through
        except Exception as exc:  # noqa: BLE001 - a background task, which nothing awaits
            _log.warning("a session could not be analysed for recall: %s", type(exc).__name__)
            return
        if end > through:
            self.table.begins = end
        self.table.through = stop
        self.note_size()

    def note_size(self) -> None:
        """Update the size of the table in the cache."""
        self._cache.resize(("passages", self._ref), self, self.table.estimate_bytes() + len(self.changed[1]))


class PassageTables:
    """The passage tables of one tenant's sessions.

    Args:
        cache: The tenant's cache. It contains the tables, and evicts the least recently used ones.
    """

    def __init__(self, cache: TenantCache) -> None:
        self._cache = cache
        self._running: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a search as a task that continues if the caller no longer waits for it."""
        task = asyncio.create_task(work, name="recall of a session")
        self._running.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # tells asyncio not to log the error, because the caller gets it

    def get_table(self, store: Store, ref: SessionRef, identity: str) -> SessionPassages:
        """Return the table of a session. Create an empty one if the cache has none for this session's `identity`."""
        key = ("passages", ref)
        found = self._cache.find(key)
        if not isinstance(found, SessionPassages) or found.identity != identity:
            found = SessionPassages(store, ref, identity, self._cache)
            self._cache.keep(key, found)
        found.note_size()
        return found

    def forget(self, ref: SessionRef) -> None:
        """Delete the table of a session. Call it after the session was deleted, or after an entry was erased."""
        self._cache.drop(("passages", ref))

    def close(self) -> None:
        """Cancel the running searches."""
        for task in self._running:
            task.cancel()
