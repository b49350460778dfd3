"""Ranking, compared with a slow reference and checked for general properties."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recall.base import Candidate, Candidates, Similar
from holdfast.recall.details import analyse
from holdfast.recall.questions import Question, parse_question
from holdfast.recall.ranking import STRONG, Ranking
from holdfast.recall.scoring import WEIGHTS, FormWeights, Hit, Weights
from holdfast.recall.terms import ASKS, NUMBERED, TIMED, YOURS, get_asked_share

NOW = 1_684_337_400_000
WORDS = ["dog", "lake", "bicycle", "paint", "sister", "ORD-12345", "yesterday", "two", "?", "you", "my"]

said = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
talks = st.lists(st.lists(said, min_size=1, max_size=8), min_size=1, max_size=5)
asked = st.lists(st.sampled_from([*WORDS[:6], "photo", "When", "How many", "Ana"]), min_size=1, max_size=5).map(
    " ".join
)


def documents(talk: Sequence[Sequence[str]]) -> list[Candidate]:
    """Return every turn of the sessions as candidates; two people alternate."""
    made = []
    for source, session in enumerate(talk):
        for place, text in enumerate(session):
            at = 1000 * source + place
            terms, detail = analyse(text, at)
            made.append(
                Candidate(
                    source=source,
                    place=place,
                    seq=place,
                    session=f"s{source}",
                    identity="",
                    role=("user", "assistant")[place % 2],
                    agent=None,
                    name=("Ana", "Ben")[place % 2],
                    at=at,
                    length=terms.length,
                    counts=terms.counts,
                    traits=terms.traits,
                    detail=detail,
                )
            )
    return made


def look_up_candidates(question: Question, everything: Sequence[Candidate]) -> Candidates:
    """Return what an index returns: documents with a term of the question, with counts of these terms only."""
    wanted = set(question.terms)
    found = [
        msgspec.structs.replace(one, counts={term: often for term, often in one.counts.items() if term in wanted})
        for one in everything
        if not wanted.isdisjoint(one.counts)
    ]
    frequencies = {term: sum(term in one.counts for one in everything) for term in wanted}
    return Candidates(found, len(everything), sum(one.length for one in everything), frequencies)


def rank(
    question: Question,
    everything: Sequence[Candidate],
    *,
    found: Candidates | None = None,
    similar: Sequence[Similar] | None = None,
    weights: Weights = WEIGHTS,
    limit: int | None = None,
) -> list[Hit]:
    """Run all steps of a search."""
    ranking = Ranking(question, found or look_up_candidates(question, everything), similar, weights)
    missing = ranking.list_missing(limit or len(everything) * 9)
    there = {(one.source, one.place): msgspec.structs.replace(one, counts={}) for one in everything}
    ranking.fill([there[place] for place in missing if place in there], missing)
    return ranking.list_hits(limit)


# -- the reference ---------------------------------------------------------------


def score_by_reference(question: Question, everything: Sequence[Candidate]) -> dict[tuple[int, int], float]:
    """Return the score of every document by the definition in `holdfast.recall.ranking`, slowly and plainly.

    For questions that name no time, and documents that are not split.
    """
    w = WEIGHTS
    found = look_up_candidates(question, everything)
    average = found.length / len(everything) if found.length else 1.0
    forms = {}
    for source in {one.source for one in found.found}:
        lengths = [one.length for one in found.found if one.source == source]
        usual = (sum(lengths) + w.few_turns * average) / (len(lengths) + w.few_turns)
        forms[source] = w.get_form(1 / (1 + math.exp(-w.steepness * math.log(usual / w.middle))))
    names = {one.name.casefold() for one in found.found if one.name}
    names = names if len(names) > 1 else set()
    named = {concept.word for concept in question.concepts} & names

    def score_concept(one: Candidate, number: int) -> float:
        concept = question.concepts[number]
        scores = [0.0]
        b = forms[one.source].b if one.source in forms else 0.0
        for term, weight in concept.variants:
            often, holders = one.counts.get(term, 0), found.frequencies[term]
            rarity = math.log(1 + (len(everything) - holders + 0.5) / (holders + 0.5))
            tf = often * (w.k1 + 1) / (often + w.k1 * (1 - b + b * one.length / average))
            scores.append((w.name if concept.word in named else 1.0) * weight * rarity * tf)
        return max(scores)

    numbers = range(len(question.concepts))
    own = {(one.source, one.place): [score_concept(one, number) for number in numbers] for one in everything}
    best = [max(row[number] for row in own.values()) for number in numbers]
    keyword, sessions = {}, {}
    for (source, place), row in own.items():
        if source not in forms:
            continue
        form = forms[source]
        near = [
            sum(
                own[source, place + step][number] * weight
                for step, weight in form.steps
                if (source, place + step) in own
            )
            for number in numbers
        ]
        held = sum(best[number] for number in numbers if row[number] or near[number]) / (sum(best) or 1)
        keyword[source, place] = sum(map(max, row, near)) * (1 + form.covered * held)
        sessions[source] = sum(
            max(other[number] for (where, _), other in own.items() if where == source) for number in numbers
        )
    scores = {}
    for one in everything:
        key = one.source, one.place
        if not keyword.get(key):
            continue
        form = forms[one.source]
        score = keyword[key] / max(keyword.values()) + form.session * sessions[one.source] / max(sessions.values())
        score *= 1 - form.asked * get_asked_share(one.traits)
        score *= 1 - form.asks * bool(one.traits & ASKS)
        score *= 1 - form.yours * bool(one.traits & YOURS)
        score *= 1 + form.time * bool(question.asks_time and one.traits & TIMED)
        score *= 1 + form.number * bool(question.asks_number and one.traits & NUMBERED)
        score *= 1 + form.speaker * bool(one.name and one.name.casefold() in named)
        score *= 1 + form.user * (one.role == "user")
        codes = [
            n for n in numbers if not (question.concepts[n].word.isalpha() or question.concepts[n].word.isdecimal())
        ]
        score *= 1 + w.coded * any(own[key][number] for number in codes)
        score *= 1 + form.long * math.log1p(min(one.length / average, 1.5))
        scores[key] = score
    scores = _cap_below_neighbours(scores, own, everything, forms) if len(numbers) == 1 else scores
    return _lower_echoes(scores, everything) if question.asks_many else scores


def _lower_echoes(
    scores: Mapping[tuple[int, int], float], everything: Sequence[Candidate]
) -> dict[tuple[int, int], float]:
    """Lower the score of a turn next to a better one, for questions that ask for many things."""
    by_place = {(one.source, one.place): one for one in everything}
    order = sorted(scores, key=lambda key: (-scores[key], -by_place[key].at, by_place[key].session, by_place[key].seq))
    return {
        (source, place): scores[source, place]
        * (WEIGHTS.echo if {(source, place - 1), (source, place + 1)} & set(order[:at]) else 1.0)
        for at, (source, place) in enumerate(order)
    }


def _cap_below_neighbours(
    scores: dict[tuple[int, int], float],
    own: Mapping[tuple[int, int], Sequence[float]],
    everything: Sequence[Candidate],
    forms: Mapping[int, FormWeights],
) -> dict[tuple[int, int], float]:
    """Rank a turn without the only concept below the neighbours that lead to it, unless the previous turn is a question."""
    asks = {(one.source, one.place) for one in everything if one.traits & ASKS}
    capped = dict(scores)
    for (source, place), score in scores.items():
        beside = [(source, place + step) for step, _ in forms[source].steps if any(own.get((source, place + step), ()))]
        if (
            not any(own[source, place])
            and beside
            and not ((source, place - 1) in beside and (source, place - 1) in asks)
        ):
            capped[source, place] = min(score, 0.99 * max(scores[key] for key in beside))
    return capped


@pytest.mark.parametrize("code", ["ORD-12345", "parse_http_header", "http_util.py", "0xDEAD-beef"])
def test_message_with_a_code_ranks_before_its_neighbours(code: str) -> None:
    """Even if it is a question and its neighbours are longer statements."""
    around = "That took me the whole afternoon with the team, and in the end it was fine again, as I said."
    talk = [[around, f"Where is {code}?", around, around]]
    first, *_ = rank(parse_question(code, now=NOW), documents(talk))
    assert first.candidate.place == 1


@given(talks, asked)
def test_every_score_equals_the_reference(talk: list[list[str]], text: str) -> None:
    """The hits include neighbours without a match of their own, and nothing else."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    scores = score_by_reference(question, everything)
    hits = rank(question, everything)
    assert len(everything) <= STRONG
    assert {(hit.candidate.source, hit.candidate.place) for hit in hits} == set(scores)
    for hit in hits:
        assert math.isclose(hit.score, scores[hit.candidate.source, hit.candidate.place], abs_tol=1e-8)


# -- properties ------------------------------------------------------------------


@given(talks, asked, st.randoms())
def test_candidate_order_does_not_change_the_ranking(talk: list[list[str]], text: str, chance: random.Random) -> None:
    question, everything = parse_question(text, now=NOW), documents(talk)
    shuffled = list(everything)
    chance.shuffle(shuffled)
    similar = [Similar(one, (one.place % 3 - 1) / 2) for one in everything]
    assert rank(question, everything) == rank(question, shuffled)
    assert rank(question, everything, similar=similar) == rank(question, shuffled, similar=similar[::-1])


@given(talks, asked, st.integers(1, 6))
def test_a_page_equals_the_first_hits_of_the_full_ranking(talk: list[list[str]], text: str, limit: int) -> None:
    """The neighbours that are read for a page are enough to rank it."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    assert rank(question, everything, limit=limit) == rank(question, everything)[:limit]


def test_messages_of_the_asked_role_rank_first() -> None:
    talk = [["the dog sleeps"], ["nothing much", "the dog sleeps"]]
    assert rank(parse_question("What did I say about the dog?", now=NOW), documents(talk))[0].candidate.role == "user"
    told = rank(parse_question("What did you tell me about the dog?", now=NOW), documents(talk))
    assert told[0].candidate.role == "assistant"


def test_messages_with_a_time_rank_first_for_when_questions() -> None:
    talk = [["my dog went yesterday"], ["my dog went there slowly"]]
    assert rank(parse_question("When did the dog go?", now=NOW), documents(talk))[0].candidate.session == "s0"


LONG = " ".join(f"On the whole the weather of week {n} was neither warm nor cold, as one says." for n in range(12))


def test_user_messages_rank_first_in_chats_with_long_replies() -> None:
    """Even if the reply repeats the words more often."""
    echo = f"A mooring at Tarrow is a good choice. {LONG} The mooring at Tarrow, then. {LONG}"
    talk = [[f"We have a mooring at Tarrow since May. {LONG}", echo], [LONG, LONG], [LONG, LONG]]
    hits = rank(parse_question("Where is the mooring?", now=NOW), documents(talk))
    assert [(hit.candidate.session, hit.candidate.role) for hit in hits[:2]] == [("s0", "user"), ("s0", "assistant")]
    told = rank(parse_question("What did you say about the mooring?", now=NOW), documents(talk))
    assert told[0].candidate.role == "assistant"


def test_best_chunk_of_a_very_long_message_is_found() -> None:
    buried = f"{LONG * 20} The boathouse key hangs behind the lifebelt. {LONG * 20}"
    talk = [[buried, "I see"], ["The key is green", "Is it"], ["We have a boathouse", "Nice"]]
    first, *_ = rank(parse_question("boathouse key", now=NOW), documents(talk))
    assert first.candidate.session == "s0"
    assert first.chunk is not None
    assert "boathouse key" in buried[slice(*first.chunk)]


def test_messages_of_the_asked_date_are_found_without_a_shared_word() -> None:
    question = parse_question("What did I buy on 1 January 1970?", now=NOW)
    everything = documents([["a red anchor", "I see"], ["we bought bread", "good"]])
    everything[2:] = [msgspec.structs.replace(one, at=NOW) for one in everything[2:]]
    found = look_up_candidates(question, everything)
    dated = [one for one in everything[:2] if one not in found.found]
    found = msgspec.structs.replace(
        found, found=[*found.found, *(msgspec.structs.replace(one, counts={}) for one in dated)]
    )
    assert {hit.candidate.session for hit in rank(question, everything, found=found)} == {"s0", "s1"}


@given(talks, asked, st.randoms())
def test_term_order_does_not_change_the_ranking(talk: list[list[str]], text: str, chance: random.Random) -> None:
    """An engine gives them in any order, another one in each process."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    found = look_up_candidates(question, everything)

    def shuffle(one: Candidate) -> Candidate:
        counts = list(one.counts.items())
        chance.shuffle(counts)
        return msgspec.structs.replace(one, counts=dict(counts))

    others = msgspec.structs.replace(found, found=[*map(shuffle, found.found)])
    assert rank(question, everything, found=found) == rank(question, everything, found=others)


def test_a_matching_date_alone_is_not_an_answer() -> None:
    """The message is from that day and shares nothing else with the question."""
    question = parse_question("Which boat did we buy on 1 January 1970?", now=NOW)
    everything = documents([["a red anchor", "I see"]])
    found = msgspec.structs.replace(
        look_up_candidates(question, everything), found=[msgspec.structs.replace(one, counts={}) for one in everything]
    )
    ranking = Ranking(question, found, [Similar(everything[0], 0.1)], WHOLE, FLOOR)
    hits = ranking.list_hits()
    assert hits, "the day leads to it"
    assert not ranking.has_answer(hits)


def test_each_answer_ranks_before_the_reply_that_repeats_it() -> None:
    talk = [["a dog called Pip", "a dog called Pip, fine"], ["nothing"], ["a dog called Bo", "a dog called Bo, fine"]]
    places = [hit.candidate.place for hit in rank(parse_question("How many dogs are there?", now=NOW), documents(talk))]
    assert places[:2] == [0, 0]


# -- with vectors ----------------------------------------------------------------


@given(talks, asked)
def test_hybrid_search_finds_what_keyword_or_vector_search_finds(talk: list[list[str]], text: str) -> None:
    question, everything = parse_question(text, now=NOW), documents(talk)
    similar = [Similar(one, 0.1 * one.place) for one in everything if one.source == 0]
    words = {(hit.candidate.source, hit.candidate.place) for hit in rank(question, everything)}
    vectors = {(hit.candidate.source, hit.candidate.place) for hit in Ranking(question, None, similar).list_hits()}
    both = {(hit.candidate.source, hit.candidate.place) for hit in rank(question, everything, similar=similar)}
    assert both >= words | vectors


_ALONE = msgspec.structs.replace(WEIGHTS.dialogue, before=(), after=(), session=0.0, vector_before=(), vector_after=())
ALONE = msgspec.structs.replace(WEIGHTS, dialogue=_ALONE, chat=_ALONE)
"""For documents outside conversations: neighbours and sessions do not count."""


def test_standalone_documents_ignore_neighbours_and_sessions() -> None:
    """Memories, say: what stands beside one has nothing to do with it."""
    everything = documents([["dog", "lake"], ["lake", "sister"]])
    hits = rank(parse_question("dog", now=NOW), everything, weights=ALONE)
    assert [(hit.candidate.source, hit.candidate.place) for hit in hits] == [(0, 0)]
    assert hits[0].parts.near == 0


# -- the floor -------------------------------------------------------------------

FLOOR = 0.3
WHOLE = msgspec.structs.replace(WEIGHTS, lowered=0.0)
"""The floor that applies to large corpora, for talks of a few turns."""


def rank_hybrid(talk: Sequence[Sequence[str]], text: str, near: Sequence[float], floor: float = FLOOR) -> list[Hit]:
    """Return the hits of a question; `near` holds its similarity to each turn in order."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    similar = [Similar(one, share) for one, share in zip(everything, near, strict=True)]
    ranking = Ranking(question, look_up_candidates(question, everything), similar, WHOLE, floor)
    missing = ranking.list_missing(len(everything) * 9)
    ranking.fill([], missing)
    return ranking.list_hits()


def test_neighbours_of_a_similar_message_are_found_and_others_are_not() -> None:
    """An answer is seldom similar to its question."""
    talk = [["Do you have any animals?", "Bruno, since May.", "How nice", "What else?", "Rain"], ["sister"]]
    hits = rank_hybrid(talk, "pets", [0.5, 0.05, 0.1, 0.12, 0.11, 0.19])
    assert {(hit.candidate.session, hit.candidate.seq) for hit in hits} == {("s0", 0), ("s0", 1), ("s0", 2)}
    assert ("s1", 0) in {
        (hit.candidate.session, hit.candidate.seq)
        for hit in rank_hybrid(talk, "pets", [0.5, 0.05, 0.1, 0.12, 0.11, 0.2])
    }


@given(talks, asked, st.data())
def test_a_floor_only_removes_hits(talk: list[list[str]], text: str, data: st.DataObject) -> None:
    """Scores and order of the others stay the same, and every keyword hit stays."""
    count = sum(map(len, talk))
    near = data.draw(st.lists(st.floats(-1, 1), min_size=count, max_size=count))
    floor = data.draw(st.floats(0.01, 1))
    every, some = rank_hybrid(talk, text, near, 0.0), rank_hybrid(talk, text, near, floor)
    kept = {(hit.candidate.source, hit.candidate.place) for hit in some}
    assert some == [hit for hit in every if (hit.candidate.source, hit.candidate.place) in kept]
    assert kept >= {(hit.candidate.source, hit.candidate.place) for hit in every if hit.parts.keyword}
    if max(near) < floor:
        assert all(hit.parts.keyword for hit in some)


def test_a_floor_does_not_change_scores_of_a_list() -> None:
    """Neighbours of the hits that it removes are still echoes of these."""
    every, some = (rank_hybrid([[""] * 5], "How many", [1.0, -1.0, 0.0, 0.0, 0.0], floor) for floor in (0.0, 1.0))
    assert 0 < len(some) < len(every)
    assert some == [hit for hit in every if hit in some]


def has_answer_among(talk: Sequence[Sequence[str]], text: str, near: Sequence[float], floor: float = FLOOR) -> bool:
    """Return True if the hits of a question answer it with confidence."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    similar = [Similar(one, share) for one, share in zip(everything, near, strict=True)]
    ranking = Ranking(question, look_up_candidates(question, everything), similar, WHOLE, floor)
    return ranking.has_answer(ranking.list_hits())


def test_words_spread_over_neighbours_are_not_an_answer() -> None:
    """Any talk that is long enough contains each of the words somewhere."""
    talk = [["the sister came", "an admiral", "one lighthouse", "some furniture"]]
    question = "Which sister of the admiral inherited the lighthouse and sold its precious wooden furniture?"
    assert not has_answer_among(talk, question, [0.2, 0.1, 0.0, 0.0])


def find_lowest_similarity(count: int) -> float:
    """Return the lowest similarity that is still found among `count` equally similar turns."""
    question, everything = parse_question("pets", now=NOW), documents([["lake"]] * count)
    shares = [share / 100 for share in range(1, 40)]
    found = [
        share
        for share in shares
        if Ranking(question, None, [Similar(one, share) for one in everything], WEIGHTS, FLOOR).list_hits(1)
    ]
    assert found == shares[-len(found) :]
    return found[0]


def test_the_floor_is_lower_for_small_corpora() -> None:
    """The most similar of few is not similar by chance; from `few` turns on the configured floor applies."""
    one, ten, hundred, few, more = [
        find_lowest_similarity(count) for count in (1, 10, 100, WEIGHTS.few, 3 * WEIGHTS.few)
    ]
    assert 0.05 < one < ten < hundred < few == more == FLOOR
