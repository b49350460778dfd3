"""Peers to compare with: BM25 over stemmed turns as it is usually set up, and SQLite's FTS5 with its Porter tokenizer.

Both rank each turn by itself, with the speaker's name before it, k1 1.2 and b 0.75, and no stop words. Where a script puts no spaces
between words, each pair of neighbouring characters is a word.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Final

from holdfast.evaluation.dataset import Query, Sample, Turn

K1, B = 1.2, 0.75
_SCRIPTS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3041-\u30ff\u31f0-\u31ff"  # kana
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Characters of scripts that put no spaces between words. Korean puts them."""
_UNSPACED: Final = re.compile(f"[{_SCRIPTS}]+")
_WORD: Final = re.compile(r"[^\W_]+")


class PlainBM25:
    """The turns of a sample, ranked by BM25 with Porter's stems (Robertson and Zaragoza, 2009)."""

    def __init__(self, sample: Sample) -> None:
        self._tools = [turn.role == TOOL for turn in sample.turns]
        self._by_channel = {tool: _Channel(sample, tool=tool) for tool in set(self._tools)}

    def rank(self, query: Query) -> list[int]:
        """Return the places of the turns that share a word with the question, the best first; of equal ones the newest."""
        channel = self._by_channel.get(query.role == TOOL)
        return channel.rank(query.text) if channel else []


TOOL: Final = "tool"


class _Channel:
    def __init__(self, sample: Sample, *, tool: bool) -> None:
        self._turns = [at for at, turn in enumerate(sample.turns) if (turn.role == TOOL) == tool]
        texts = [Counter(_stems(_spoken(sample.turns[at]))) for at in self._turns]
        self._lengths = [sum(text.values()) for text in texts]
        self._average = sum(self._lengths) / len(texts) or 1.0
        self._places: dict[str, list[tuple[int, int]]] = {}
        for at, text in enumerate(texts):
            for word, often in text.items():
                self._places.setdefault(word, []).append((at, often))

    def rank(self, question: str) -> list[int]:
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_stems(question)):
            places = self._places.get(word, ())
            rarity = math.log(1 + (len(self._lengths) - len(places) + 0.5) / (len(places) + 0.5))
            for at, often in places:
                slow = K1 * (1 - B + B * self._lengths[at] / self._average)
                scores[at] = scores.get(at, 0.0) + rarity * often * (K1 + 1) / (often + slow)
        return [self._turns[at] for at in sorted(scores, key=lambda at: (-scores[at], -at))]


class FullText:
    """The turns of a sample in a table of FTS5, ranked by its `bm25`: any word of the question matches."""

    def __init__(self, sample: Sample) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE turns USING fts5(text, tool UNINDEXED, tokenize='porter unicode61')"
        )
        rows = [(at, _space_dense(_spoken(turn)), int(turn.role == TOOL)) for at, turn in enumerate(sample.turns)]
        self._database.executemany("INSERT INTO turns(rowid, text, tool) VALUES (?, ?, ?)", rows)

    def rank(self, query: Query) -> list[int]:
        """Return the places of the turns that share a word with the question, the best first; of equal ones the newest."""
        words = dict.fromkeys(_words(query.text))
        if not words:
            return []
        asked = " OR ".join(f'"{word}"' for word in words)
        select = "SELECT rowid FROM turns WHERE turns MATCH ? AND tool = ? ORDER BY bm25(turns), rowid DESC"
        return [row[0] for row in self._database.execute(select, (asked, int(query.role == TOOL)))]


def _spoken(turn: Turn) -> str:
    return f"{turn.name or turn.role}: {turn.text}"


def _stems(text: str) -> list[str]:
    return list(map(_stem, _words(text)))


def _words(text: str) -> list[str]:
    return _WORD.findall(_space_dense(text.lower()))


def _space_dense(text: str) -> str:
    """Return a text with the overlapping pairs of its characters where they are not put apart by spaces."""
    return text if text.isascii() else _UNSPACED.sub(_pair, text)


def _pair(run: re.Match[str]) -> str:
    return f" {' '.join(map(''.join, pairwise(run[0]))) or run[0]} "


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    return _porter()(word)


@cache
def _porter() -> Callable[[str], str]:
    stemmed: Callable[[str], str] = import_module("snowballstemmer.porter_stemmer").PorterStemmer().stemWord
    return stemmed
