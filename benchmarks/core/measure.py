"""Measure the prompts of the core next to simple peers: evidence of questions, and the price of a call over whole conversations.

    python -m benchmarks core benchmarks/recall/dev --budgets 2048,4096

The peers fill half of the budget with the newest messages and the other half with whole messages that a search finds: plain BM25, or the
core's ranking. *Evidence* is in a prompt if its message is there in whole, or if one sentence of the prompt has 70 % of the words of the
evidence sentence that shares most words with the question. *Answer* is the share of evidence whose values are all in the prompt; without
values, the share of the evidence's sentences. *Price* is that of an ordinary call (.8) and one that asks (.2), where the longest common
beginning with the session's previous prompt costs a tenth; it is divided by that of `token_window`.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.core.build import Log, Prompt, build
from benchmarks.core.ranking import rank
from benchmarks.core.step import Digest, Room, Salience, Step, Strategy, TokenWindow
from benchmarks.evaluation.dataset import Query, Sample
from benchmarks.evaluation.library import make_messages
from benchmarks.evaluation.measures import mean
from benchmarks.evaluation.plain import PlainBM25
from benchmarks.evaluation.prompt_contents import _make_pattern
from benchmarks.evaluation.prompt_sessions import MARKER
from benchmarks.evaluation.readers import read
from benchmarks.evaluation.statements.matching import normalize
from holdfast.domain.messages import Message
from holdfast.recall.chunks import find_sentences
from holdfast.recall.questions import parse_question
from holdfast.recall.terms import choose_language, count_terms, split_words
from holdfast.tokens import MESSAGE_OVERHEAD, STORED
from holdfast.wire.sendable import parse_sendable

SENTENCE_SHARE: Final = 0.7
CACHED: Final = 0.1
ASKING: Final = 0.2
_SPREAD: Final = 7_919
"""A prime, which spreads the positions at which the questions are asked for the price."""
STRATEGIES: Final[dict[str, Strategy]] = {"digest": Digest(), "salience": Salience()}


class Row(NamedTuple):
    """The figures of one kind of conversation, one way of building prompts, and one budget."""

    kind: str
    name: str
    budget: int
    evidence: float
    answer: float
    price: float | None
    tokens: float


# -- evidence --------------------------------------------------------------------


@lru_cache(maxsize=200_000)
def list_terms(text: str, language: str) -> frozenset[str]:
    """Return the terms of a text."""
    return frozenset(count_terms(split_words(text), language).counts)


@lru_cache(maxsize=50_000)
def split_text(text: str) -> tuple[str, ...]:
    """Return the sentences of a text."""
    return tuple(text[start:stop] for start, stop in find_sentences(text))


class Judge:
    """Tells how much of a question's evidence the texts of a prompt contain."""

    def __init__(self, sample: Sample) -> None:
        self._turns = sample.turns
        self._often: Counter[str] = Counter()
        for turn in sample.turns:
            self._often.update(list_terms(turn.text, _detect(turn.text)))

    def judge(self, query: Query, texts: Sequence[str]) -> tuple[float, float]:
        """Return the shares of the evidence that are in the texts: by sentence, and by the answer's words."""
        whole = " ".join(normalize("\n".join(texts)).split())
        found = [self._judge_turn(query, self._turns[at].text, texts, whole) for at in query.evidence]
        return mean(one for one, _ in found), mean(one for _, one in found)

    def _judge_turn(self, query: Query, text: str, texts: Sequence[str], whole: str) -> tuple[float, float]:
        patterns = [one for value in query.values if (one := _make_pattern(value, normalize(text))) is not None]
        if patterns:
            answer = float(all(pattern.search(whole) for pattern in patterns))
        else:
            answer = mean(" ".join(normalize(one).split()) in whole for one in split_text(text))
        if " ".join(normalize(text).split()) in whole:
            return 1.0, answer
        language = _detect(text)
        asked = list_terms(query.text, language)
        best, most = frozenset[str](), 0.0
        for sentence in split_text(text):
            terms = list_terms(sentence, language)
            score = sum(math.log(1 + len(self._turns) / (1 + self._often[term])) for term in terms & asked)
            if score > most:
                best, most = terms, score
        least = SENTENCE_SHARE * len(best)
        sentences = (one for part in texts for one in split_text(part))
        return float(bool(best) and any(len(best & list_terms(one, language)) >= least for one in sentences)), answer


@lru_cache(maxsize=20_000)
def _detect(text: str) -> str:
    return choose_language(split_words(text))


# -- conversations -----------------------------------------------------------------


class Conversation:
    """A sample as the log of one session."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        raw, places = make_messages(sample, range(len(sample.turns)))
        self.messages, fields = parse_sendable(raw)
        self.times = [int(one.get("timestamp", 0)) for one in fields]
        self.turns = {at: seq for seq, at in places.items()}
        self.end = max(self.times) + 60_000
        self.log = Log()
        for message, at in zip(self.messages, self.times, strict=True):
            self.log.append(message, at)

    def list_users(self) -> list[int]:
        """Return the positions of the user's messages after the first."""
        return [at for at, one in enumerate(self.messages) if one.role == "user"][1:]


def ask(log: Log, step: Step, text: str, now: int, room: Room) -> Prompt:
    """Return the prompt for a question that is appended to a log of which it is removed again."""
    before = log.tail
    log.append(Message(role="user", content=text), now)
    try:
        return build(log, step, room, now=now)
    finally:
        log.drop(before)


def list_texts(prompt: Prompt) -> list[str]:
    """Return the texts of a prompt without the current message."""
    return [one.text for at, one in enumerate(prompt.messages) if at != prompt.current]


def compute_price(before: Sequence[Message], now: Sequence[Message]) -> float:
    """Return the price of a prompt in tokens that are not cached."""
    price = float(sum(map(count, now)))
    for old, new in zip(before, now, strict=False):
        if old != new:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old.text, new.text, strict=False)))
            return price - (1 - CACHED) * _count_text(new.text[:same])
        price -= (1 - CACHED) * count(new)
    return price


def count(message: Message) -> int:
    """Return the tokens of a message, like the stored counts."""
    return MESSAGE_OVERHEAD + _count_text("\n".join((message.text, *(call.arguments for call in message.tool_calls))))


_count_text = lru_cache(maxsize=50_000)(STORED.text)


class Measured(NamedTuple):
    """The evidence for each question of a sample, and the price of a call."""

    found: list[tuple[float, float]]
    price: float
    tokens: float


def measure_core(conversation: Conversation, judge: Judge, room: Room, *, questions: bool = True) -> Measured:
    """Replay a conversation, build the prompt of each user message, and ask the questions at its end."""
    queries, users = conversation.sample.queries, conversation.list_users()
    later = users[len(users) // 3 :]
    asked: dict[int, list[Query]] = {}
    for number, query in enumerate(queries):
        asked.setdefault(later[number * _SPREAD % len(later)], []).append(query)
    log, step = Log(), Step()
    before: Sequence[Message] = ()
    ordinary: list[float] = []
    asking: list[float] = []
    due: list[Query] = []
    analysed = zip(conversation.messages, conversation.times, conversation.log.analyses, strict=True)
    for at, (message, time, analysis) in enumerate(analysed):
        if message.role == "user":
            prompts = (ask(log, step, query.text, query.asked or time, room) for query in due)
            asking += [compute_price(before, one.messages) for one in prompts]
            due = asked.get(at, [])
        log.append(message, time, analysis)
        if message.role == "user":
            prompt = build(log, step, room)
            ordinary.append(compute_price(before, prompt.messages))
            step, before = prompt.step, prompt.messages
    found, sizes = [], []
    for query in queries if questions else ():
        prompt = ask(log, step, query.text, query.asked or conversation.end, room)
        found.append(judge.judge(query, list_texts(prompt)))
        sizes.append(prompt.tokens)
    price = (1 - ASKING) * mean(ordinary) + ASKING * mean(asking or ordinary)
    return Measured(found, price, mean(sizes))


def measure_peer(conversation: Conversation, judge: Judge, budget: int, name: str) -> Measured:
    """Ask the questions of a peer: the newest messages for half of the budget, and whole messages that a search finds for the rest."""
    plain = PlainBM25(conversation.sample)
    found, sizes = [], []
    for query in conversation.sample.queries:
        used = STORED.message(Message(role="user", content=query.text))
        at, chosen = len(conversation.messages), set[int]()
        while at and used + conversation.log.tokens[at - 1] <= budget / 2:
            at -= 1
            used += conversation.log.tokens[at]
            chosen.add(at)
        if name == "bm25":
            order = [conversation.turns[one] for one in plain.rank(query) if one in conversation.turns]
        else:
            question = parse_question(query.text, now=query.asked or conversation.end, everyday=True)
            order = [hit.seq for hit in rank(conversation.log.postings, question, len(conversation.messages)).hits]
        for seq in order:
            if seq not in chosen and used + conversation.log.tokens[seq] <= budget:
                chosen.add(seq)
                used += conversation.log.tokens[seq]
        found.append(judge.judge(query, [conversation.messages[one].text for one in sorted(chosen)]))
        sizes.append(used)
    return Measured(found, 0.0, mean(sizes))


def measure(paths: Sequence[Path], budgets: Sequence[int], names: Sequence[str]) -> Iterator[Row]:
    """Yield the figures of each kind, way and budget."""
    kinds: dict[str, list[tuple[Conversation, Judge]]] = {}
    for path in paths:
        for sample in read([path]).samples:
            kind = sample.kind or f"people-{path.parent.name}"
            kinds.setdefault(kind, []).append((Conversation(sample), Judge(sample)))
    for kind, some in kinds.items():
        for budget in budgets:
            base = mean(measure_core(*one, Room(budget, TokenWindow(), MARKER), questions=False).price for one in some)
            for name in names:
                if name in STRATEGIES or name == "token_window":
                    room = Room(budget, STRATEGIES.get(name, TokenWindow()), MARKER)
                    measured = [measure_core(*one, room) for one in some]
                    price = mean(one.price for one in measured) / base
                else:
                    measured, price = [measure_peer(*one, budget, name) for one in some], None
                found = [pair for one in measured for pair in one.found]
                yield Row(
                    kind,
                    name,
                    budget,
                    mean(one for one, _ in found),
                    mean(one for _, one in found),
                    price,
                    mean(one.tokens for one in measured),
                )


def main(argv: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks core", description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--budgets", default="2048,4096,8192,16384")
    parser.add_argument("--names", default="bm25,search,token_window,digest,salience")
    options = parser.parse_args(argv)
    paths = [one for path in options.paths for one in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]
    print(f"{'kind':16} {'prompt':13} {'budget':>7} evidence answer  price tokens")
    for row in measure(paths, [int(one) for one in options.budgets.split(",")], options.names.split(",")):
        price = "" if row.price is None else f"{row.price:.2f}"
        print(
            f"{row.kind:16} {row.name:13} {row.budget:7,} {row.evidence:8.1%} {row.answer:6.1%} {price:>6} {row.tokens:6,.0f}",
            flush=True,
        )
    return 0
