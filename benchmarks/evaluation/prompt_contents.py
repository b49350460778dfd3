"""Measure how much of a question's evidence is in the prompt that the default strategy builds for the question.

All turns of a sample are appended to one session, in order, and the question is the current user message. Evidence is detected as follows:

- If the question has `values`, the prompt must contain all values that occur in the turn with the evidence.
- Otherwise, one line of the prompt must contain the text of the turn, or 60 % of its distinct terms. Instead of the whole turn, its
  sentence that has the most in common with the question is also sufficient.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from benchmarks.evaluation.dataset import Dataset, Query, Sample
from benchmarks.evaluation.library import make_messages
from benchmarks.evaluation.measures import mean
from benchmarks.evaluation.prompt_sessions import Run, find_current, is_block, open_session
from benchmarks.evaluation.statements.matching import Matcher, normalize
from holdfast.context.build import WorkingSet
from holdfast.context.settings import DEFAULT_STRATEGY, ContextSettings
from holdfast.context.standing_facts import HEADER
from holdfast.recall.chunks import find_sentences
from holdfast.recall.terms import choose_language, count_terms, split_words
from holdfast.wire.sendable import parse_sendable

PARTS: Final = ("messages", "facts", "digest", "recalled")
"""Parts of a prompt: verbatim messages, facts that the user stated, the digest, and the recalled memories."""
TERMS_SHARE: Final = 0.6
"""Minimum fraction of the terms that one line must contain if the question has no values."""
_MINUTE: Final = 60_000
_FACTS: Final = HEADER.partition("{")[0]


class Contents(msgspec.Struct, frozen=True, gc=False):
    """The normalized texts of a prompt, without the current user message."""

    parts: Mapping[str, tuple[str, ...]]
    """For each of `PARTS`: the verbatim messages, or the lines of the digest, the facts or the recalled memories."""
    text: str
    tokens: int
    """Tokens of the conversation and of the recalled memories."""


class PromptFinding(msgspec.Struct, frozen=True, gc=False):
    """The fractions of a question's evidence that are in a prompt, from 0 to 1."""

    sample: str
    group: str
    """Kind of the sample, or its id if it has no kind."""
    question: str
    type: str
    evidence: float
    """Fraction of the turns with evidence that are in the prompt for this question."""
    parts: Mapping[str, float]
    """For each of `PARTS`: the fraction of the turns with evidence that this part of the prompt contains."""
    other: float | None
    """Fraction of the turns with evidence that are in the prompt for another question of the sample; None if there is no other question."""


class PromptShares(msgspec.Struct, frozen=True, gc=False):
    """Means of the fractions in `PromptFinding` over several questions, from 0 to 1."""

    questions: int
    evidence: float
    other: float | None
    parts: Mapping[str, float]


class PromptFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The fractions of the evidence in the prompts of one budget."""

    mode: str
    """Search mode of the index: `keyword` or `hybrid`."""
    budget: int
    refused: int
    """Number of prompts that could not be built, because not even the required messages fit the budget. They are counted as empty
    prompts."""
    prompt_tokens: float
    """Mean tokens of the prompts that could be built."""
    all: PromptShares
    kinds: dict[str, PromptShares]
    """Means for each kind of sample. Samples without a kind are grouped by id."""
    types: dict[str, PromptShares]
    findings: list[PromptFinding]


async def measure_prompts(
    dataset: Dataset,
    budgets: Sequence[int],
    *,
    open_embedder: Callable[[], Any] | None = None,
    on_prompt: Callable[[], None] = lambda: None,
) -> list[PromptFigures]:
    """Build a prompt for each question and each budget, and measure how much of the evidence it contains.

    Args:
        dataset: The dataset.
        budgets: Token budgets of the conversation.
        open_embedder: Function that creates the embedder for the index of a sample. The index closes the embedder. None: the index contains
            no vectors.
        on_prompt: Function that is called after each prompt, for a progress bar.
    """
    runs = [Run(str(budget), budget, ContextSettings(DEFAULT_STRATEGY, {"budget": budget})) for budget in budgets]
    built: list[list[Contents | None]] = [[] for _ in runs]
    findings: list[list[PromptFinding]] = [[] for _ in runs]
    for sample in dataset.samples:
        prompts = await ask_all(sample, runs, open_embedder, on_prompt)
        needs = Needs(sample)
        for at, contents in enumerate(prompts):
            built[at] += contents
            findings[at] += _list_findings(sample, needs, contents)
    mode = "keyword" if open_embedder is None else "hybrid"
    return [_make_figures(mode, *row) for row in zip(budgets, built, findings, strict=True)]


async def ask_all(
    sample: Sample, runs: Sequence[Run], open_embedder: Callable[[], Any] | None, on_prompt: Callable[[], None]
) -> list[list[Contents | None]]:
    """Return a list for each run with the prompt for each question of a sample. A prompt that could not be built is None."""
    end = now = max(turn.at for turn in sample.turns) + _MINUTE
    prompts: list[list[Contents | None]] = [[] for _ in runs]
    if not sample.queries:
        return prompts
    messages = make_messages(sample, range(len(sample.turns)))[0]
    embedder = None if open_embedder is None else open_embedder()
    opened = open_session(runs, read_contents, clock=lambda: now, embedder=embedder, on_prompt=on_prompt)
    async with opened as session:
        await session.append(*parse_sendable(messages))
        await session.save_views()
        for query in sample.queries:
            now = query.asked or end
            for found, prompt in zip(prompts, await session.build_previews(query.text), strict=True):
                found.append(prompt)
    return prompts


def read_contents(built: WorkingSet) -> Contents:
    """Return the normalized texts of a working set, by part of the prompt."""
    current, seqs = find_current(built), built.list_seqs()
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for at, message in enumerate(built.messages):
        if at == current:
            continue
        text = normalize(message.text)
        if is_block(built, at, seqs[at]):
            parts["facts" if message.text.startswith(_FACTS) else "digest"] += text.splitlines()
        elif seqs[at] is None and message.role == "user":
            parts["recalled"] += text.splitlines()
        else:
            parts["messages"].append(text)
    text = "\n".join(line for part in parts.values() for line in part)
    return Contents({part: tuple(lines) for part, lines in parts.items()}, text, built.tokens + built.recalled_tokens)


# -- evidence ------------------------------------------------------------------


class _Values:
    """Checks that a prompt contains all of several values."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        self._patterns = patterns

    def is_in(self, contents: Contents, part: str | None = None) -> bool:
        """Return True if one part of a prompt contains all values. If `part` is None, the values may be in different parts."""
        text = contents.text if part is None else "\n".join(contents.parts[part])
        return all(pattern.search(text) for pattern in self._patterns)


class _Words:
    """Checks that a line of a prompt contains one of several texts, or at least the fraction `TERMS_SHARE` of the terms of one text."""

    def __init__(self, texts: Iterable[str], language: str) -> None:
        self._texts = [(normalize(text).strip(), _list_terms(normalize(text), language)) for text in texts]
        self._language = language

    def is_in(self, contents: Contents, part: str | None = None) -> bool:
        """Return True if a line of one part of a prompt matches. If `part` is None, the line may be in any part."""
        lines = (line for name in PARTS if part in (None, name) for line in contents.parts[name])
        return any(self._is_match(line) for line in lines)

    def _is_match(self, line: str) -> bool:
        has = _list_terms(line, self._language)
        return any(
            text in line or (bool(terms) and len(terms & has) >= TERMS_SHARE * len(terms))
            for text, terms in self._texts
        )


class Needs:
    """Creates checks, which detect if a prompt contains the evidence in a sample's turns."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._counts: Counter[str] = Counter()
        if not all(query.values for query in sample.queries):
            for turn in sample.turns:
                self._counts.update(_list_terms(turn.text, choose_language(split_words(turn.text))))

    def make_check(self, query: Query, at: int) -> _Values | _Words:
        """Return a check that is true for a prompt that contains the answer that a turn gives to a question.

        Args:
            query: The question. Its values that occur in the turn are checked. If there are none, the terms of the turn are checked.
            at: Index of the turn in the sample.
        """
        text = self._sample.turns[at].text
        normalized = normalize(text)
        patterns = [pattern for value in query.values if (pattern := _make_pattern(value, normalized)) is not None]
        if patterns:
            return _Values(patterns)
        sentence = self._find_best_sentence(query.text, text)
        return _Words([text, sentence] if sentence else [text], choose_language(split_words(text)))

    def _find_best_sentence(self, question: str, text: str) -> str:
        """Return the sentence of `text` that has the most in common with the question, or an empty string.

        Terms that both contain are weighted by their rarity in the sample.
        """
        language = choose_language(split_words(text))
        asked = _list_terms(question, language)
        best, most = "", 0.0
        for start, stop in find_sentences(text):
            common = _list_terms(text[start:stop], language) & asked
            score = sum(math.log(1 + len(self._sample.turns) / (1 + self._counts[term])) for term in common)
            if score > most:
                best, most = text[start:stop], score
        return best


def _make_pattern(value: str, normalized: str) -> re.Pattern[str] | None:
    """Return a pattern that finds a value in normalized text, or None if `normalized` does not contain the value.

    The pattern matches whole words if the value occurs as whole words in `normalized`. Otherwise it also matches parts of words.
    """
    if not normalize(value).strip():
        return None
    pattern = Matcher((value,), ()).pattern
    if pattern.search(normalized):
        return pattern
    pattern = re.compile(re.escape(normalize(value).strip()))
    return pattern if pattern.search(normalized) else None


@lru_cache(maxsize=16_384)
def _list_terms(text: str, language: str) -> frozenset[str]:
    return frozenset(count_terms(split_words(text), language).counts)


# -- figures -------------------------------------------------------------------


def _list_findings(sample: Sample, needs: Needs, prompts: Sequence[Contents | None]) -> Iterator[PromptFinding]:
    for at, query in enumerate(sample.queries):
        wanted = [needs.make_check(query, turn) for turn in query.evidence]
        contents = prompts[at]
        other = prompts[(at + len(prompts) // 2) % len(prompts)] if len(prompts) > 1 else None
        yield PromptFinding(
            sample=sample.id,
            group=sample.kind or sample.id,
            question=query.text,
            type=query.type,
            evidence=_compute_share(wanted, contents),
            parts={part: _compute_share(wanted, contents, part) for part in PARTS},
            other=_compute_share(wanted, other) if len(prompts) > 1 else None,
        )


def _compute_share(wanted: Sequence[_Values | _Words], contents: Contents | None, part: str | None = None) -> float:
    return 0.0 if contents is None else mean(one.is_in(contents, part) for one in wanted)


def _make_figures(
    mode: str, budget: int, built: Sequence[Contents | None], findings: list[PromptFinding]
) -> PromptFigures:
    prompts = [one for one in built if one is not None]
    return PromptFigures(
        mode=mode,
        budget=budget,
        refused=len(built) - len(prompts),
        prompt_tokens=round(mean(one.tokens for one in prompts), 1),
        all=_make_shares(findings),
        kinds=_group(findings, lambda one: one.group),
        types=_group(findings, lambda one: one.type),
        findings=findings,
    )


def _group(findings: Iterable[PromptFinding], key: Callable[[PromptFinding], str]) -> dict[str, PromptShares]:
    groups: dict[str, list[PromptFinding]] = {}
    for one in findings:
        groups.setdefault(key(one), []).append(one)
    return {name: _make_shares(groups[name]) for name in sorted(groups)}


def _make_shares(findings: Sequence[PromptFinding]) -> PromptShares:
    others = [one.other for one in findings if one.other is not None]
    return PromptShares(
        questions=len(findings),
        evidence=mean(one.evidence for one in findings),
        other=mean(others) if others else None,
        parts={part: mean(one.parts[part] for one in findings) for part in PARTS},
    )
