"""Rank turns with two baselines: BM25 over stemmed words in its usual configuration, and SQLite's FTS5 with its Porter tokenizer.

Both rank each turn separately, with the name of the speaker before its text. They use k1 = 1.2 and b = 0.75, and no stop words. In scripts
without spaces between words, each pair of neighbouring characters is treated as a word.
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

from benchmarks.evaluation.dataset import Query, Sample, Turn

K1, B = 1.2, 0.75
_SCRIPTS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3041-\u30ff\u31f0-\u31ff"  # kana
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Characters of scripts without spaces between words. Korean is not included, because it has spaces."""
_UNSPACED: Final = re.compile(f"[{_SCRIPTS}]+")
_WORD: Final = re.compile(r"[^\W_]+")


class PlainBM25:
    """Ranks the turns of a sample with BM25 (Robertson and Zaragoza, 2009), over words stemmed by Porter's algorithm."""

    def __init__(self, sample: Sample) -> None:
        self._tools = [turn.role == TOOL for turn in sample.turns]
        self._by_channel = {tool: _Channel(sample, tool=tool) for tool in set(self._tools)}

    def rank(self, query: Query) -> list[int]:
        """Return the indexes of the turns that have a word in common with the question, best first. If scores are equal, the newest is first."""
        channel = self._by_channel.get(query.role == TOOL)
        return channel.rank(query.text) if channel else []


TOOL: Final = "tool"


class _Channel:
    def __init__(self, sample: Sample, *, tool: bool) -> None:
        self._turns = [at for at, turn in enumerate(sample.turns) if (turn.role == TOOL) == tool]
        texts = [Counter(_list_stems(_format_turn(sample.turns[at]))) for at in self._turns]
        self._lengths = [sum(text.values()) for text in texts]
        self._average = sum(self._lengths) / len(texts) or 1.0
        self._places: dict[str, list[tuple[int, int]]] = {}
        for at, text in enumerate(texts):
            for word, often in text.items():
                self._places.setdefault(word, []).append((at, often))

    def rank(self, question: str) -> list[int]:
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_list_stems(question)):
            places = self._places.get(word, ())
            rarity = math.log(1 + (len(self._lengths) - len(places) + 0.5) / (len(places) + 0.5))
            for at, often in places:
                slow = K1 * (1 - B + B * self._lengths[at] / self._average)
                scores[at] = scores.get(at, 0.0) + rarity * often * (K1 + 1) / (often + slow)
        return [self._turns[at] for at in sorted(scores, key=lambda at: (-scores[at], -at))]


class FullText:
    """Ranks the turns of a sample with the function `bm25` of an FTS5 table. A turn matches if it contains any word of the question."""

    def __init__(self, sample: Sample) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE turns USING fts5(text, tool UNINDEXED, tokenize='porter unicode61')"
        )
        rows = [
            (at, _separate_pairs(_format_turn(turn)), int(turn.role == TOOL)) for at, turn in enumerate(sample.turns)
        ]
        self._database.executemany("INSERT INTO turns(rowid, text, tool) VALUES (?, ?, ?)", rows)

    def rank(self, query: Query) -> list[int]:
        """Return the indexes of the turns that have a word in common with the question, best first. If scores are equal, the newest is first."""
        words = dict.fromkeys(_split_words(query.text))
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        select = "SELECT rowid FROM turns WHERE turns MATCH ? AND tool = ? ORDER BY bm25(turns), rowid DESC"
        return [row[0] for row in self._database.execute(select, (match, int(query.role == TOOL)))]


def _format_turn(turn: Turn) -> str:
    return f"{turn.name or turn.role}: {turn.text}"


def _list_stems(text: str) -> list[str]:
    return list(map(_stem_word, _split_words(text)))


def _split_words(text: str) -> list[str]:
    return _WORD.findall(_separate_pairs(text.lower()))


def _separate_pairs(text: str) -> str:
    """Return a text in which each run of characters of a script without spaces is replaced by its overlapping pairs of characters."""
    return text if text.isascii() else _UNSPACED.sub(_join_pairs, text)


def _join_pairs(run: re.Match[str]) -> str:
    return f" {' '.join(map(''.join, pairwise(run[0]))) or run[0]} "


@lru_cache(maxsize=65_536)
def _stem_word(word: str) -> str:
    return _load_porter()(word)


@cache
def _load_porter() -> Callable[[str], str]:
    stemmed: Callable[[str], str] = import_module("snowballstemmer.porter_stemmer").PorterStemmer().stemWord
    return stemmed
