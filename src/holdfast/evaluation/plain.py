"""BM25 as it comes, to compare with: words in lower case, no stems, no stop words, each turn by itself, the speaker's name before it."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final

from holdfast.evaluation.dataset import Sample

K1, B = 1.2, 0.75
_WORD: Final = re.compile(r"\w+")


class PlainBM25:
    """The turns of a sample, ranked by BM25 with the usual constants (Robertson and Zaragoza, 2009)."""

    def __init__(self, sample: Sample) -> None:
        texts = [Counter(_words(f"{turn.name or turn.role}: {turn.text}")) for turn in sample.turns]
        self._lengths = [sum(text.values()) for text in texts]
        self._average = sum(self._lengths) / len(texts)
        self._places: dict[str, list[tuple[int, int]]] = {}
        for at, text in enumerate(texts):
            for word, often in text.items():
                self._places.setdefault(word, []).append((at, often))

    def rank(self, question: str) -> list[int]:
        """Places of the turns that share a word with the question, best first; of equal ones the newest."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_words(question)):
            places = self._places.get(word, ())
            rarity = math.log(1 + (len(self._lengths) - len(places) + 0.5) / (len(places) + 0.5))
            for at, often in places:
                slow = K1 * (1 - B + B * self._lengths[at] / self._average)
                scores[at] = scores.get(at, 0.0) + rarity * often * (K1 + 1) / (often + slow)
        return sorted(scores, key=lambda at: (-scores[at], -at))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
