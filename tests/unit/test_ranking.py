"""Ranking: against a slow reference, and what must hold whatever is found."""

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
    """Every turn of some sessions; two people take turns."""
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


def looked_up(question: Question, everything: Sequence[Candidate]) -> Candidates:
    """What an index gives: the documents that have one of the terms, with these counts only."""
    wanted = set(question.terms)
    found = [
        msgspec.structs.replace(one, counts={term: often for term, often in one.counts.items() if term in wanted})
        for one in everything
        if not wanted.isdisjoint(one.counts)
    ]
    frequencies = {term: sum(term in one.counts for one in everything) for term in wanted}
    return Candidates(found, len(everything), sum(one.length for one in everything), frequencies)


def ranked(
    question: Question,
    everything: Sequence[Candidate],
    *,
    found: Candidates | None = None,
    similar: Sequence[Similar] | None = None,
    weights: Weights = WEIGHTS,
    limit: int | None = None,
) -> list[Hit]:
    """All steps of a search."""
    ranking = Ranking(question, found or looked_up(question, everything), similar, weights)
    missing = ranking.list_missing(limit or len(everything) * 9)
    there = {(one.source, one.place): msgspec.structs.replace(one, counts={}) for one in everything}
    ranking.fill([there[place] for place in missing if place in there], missing)
    return ranking.list_hits(limit)


# -- the reference ---------------------------------------------------------------


def reference(question: Question, everything: Sequence[Candidate]) -> dict[tuple[int, int], float]:
    """The score of every document, as the words at the top of `holdfast.recall.ranking` have it; slow and obvious.

    For questions that name no time, and documents that are not split.
    """
    w = WEIGHTS
    found = looked_up(question, everything)
    average = found.length / len(everything) if found.length else 1.0
    forms = {}
    for source in {one.source for one in found.found}:
        lengths = [one.length for one in found.found if one.source == source]
        usual = (sum(lengths) + w.few_turns * average) / (len(lengths) + w.few_turns)
        forms[source] = w.get_form(1 / (1 + math.exp(-w.steepness * math.log(usual / w.middle))))
    names = {one.name.casefold() for one in found.found if one.name}
    names = names if len(names) > 1 else set()
    named = {concept.word for concept in question.concepts} & names

    def stands(one: Candidate, number: int) -> float:
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
    own = {(one.source, one.place): [stands(one, number) for number in numbers] for one in everything}
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
    scores = _below_their_neighbours(scores, own, everything, forms) if len(numbers) == 1 else scores
    return _without_echoes(scores, everything) if question.asks_many else scores


def _without_echoes(
    scores: Mapping[tuple[int, int], float], everything: Sequence[Candidate]
) -> dict[tuple[int, int], float]:
    """Where a question asks for many things, a turn next to a better one counts less."""
    by_place = {(one.source, one.place): one for one in everything}
    order = sorted(scores, key=lambda key: (-scores[key], -by_place[key].at, by_place[key].session, by_place[key].seq))
    return {
        (source, place): scores[source, place]
        * (WEIGHTS.echo if {(source, place - 1), (source, place + 1)} & set(order[:at]) else 1.0)
        for at, (source, place) in enumerate(order)
    }


def _below_their_neighbours(
    scores: dict[tuple[int, int], float],
    own: Mapping[tuple[int, int], Sequence[float]],
    everything: Sequence[Candidate],
    forms: Mapping[int, FormWeights],
) -> dict[tuple[int, int], float]:
    """Where a question has one concept, a turn without it does not go before the ones that it is found by, unless one of these asks."""
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
def test_who_names_a_code_goes_before_those_around(code: str) -> None:
    """Even where that one asks, and those around tell, and are longer."""
    around = "That took me the whole afternoon with the team, and in the end it was fine again, as I said."
    talk = [[around, f"Where is {code}?", around, around]]
    first, *_ = ranked(parse_question(code, now=NOW), documents(talk))
    assert first.candidate.place == 1


@given(talks, asked)
def test_every_score_is_that_of_the_reference(talk: list[list[str]], text: str) -> None:
    """Neighbours that match nothing themselves included, and nothing else."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    scores = reference(question, everything)
    hits = ranked(question, everything)
    assert len(everything) <= STRONG
    assert {(hit.candidate.source, hit.candidate.place) for hit in hits} == set(scores)
    for hit in hits:
        assert math.isclose(hit.score, scores[hit.candidate.source, hit.candidate.place], abs_tol=1e-8)


# -- what holds ------------------------------------------------------------------


@given(talks, asked, st.randoms())
def test_the_order_of_the_candidates_changes_nothing(talk: list[list[str]], text: str, chance: random.Random) -> None:
    question, everything = parse_question(text, now=NOW), documents(talk)
    shuffled = list(everything)
    chance.shuffle(shuffled)
    similar = [Similar(one, (one.place % 3 - 1) / 2) for one in everything]
    assert ranked(question, everything) == ranked(question, shuffled)
    assert ranked(question, everything, similar=similar) == ranked(question, shuffled, similar=similar[::-1])


@given(talks, asked, st.integers(1, 6))
def test_the_first_of_all_are_those_of_a_page(talk: list[list[str]], text: str, limit: int) -> None:
    """Who asks for few gets the first of the many: what is looked up of neighbours for a page is enough for it."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    assert ranked(question, everything, limit=limit) == ranked(question, everything)[:limit]


def test_equal_scores_newest_first_then_by_session_and_place() -> None:
    question = parse_question("dog", now=NOW)
    talk = [["dog"], ["dog"], ["dog"]]
    everything = documents(talk)
    everything[0] = msgspec.structs.replace(everything[0], at=5000)
    everything[2] = msgspec.structs.replace(everything[2], at=1000)
    assert [hit.candidate.session for hit in ranked(question, everything)] == ["s0", "s1", "s2"]


def test_an_answer_is_found_by_the_question_before_it() -> None:
    talk = [
        ["What did your sister paint?", "A lake, at sunrise.", "How lovely"],
        ["my sister came", "I see"],
        ["nothing", "of", "note"],
    ]
    hits = ranked(parse_question("What did the sister paint?", now=NOW), documents(talk))
    assert (hits[0].candidate.session, hits[0].candidate.seq) == ("s0", 1)
    assert hits[0].parts.own == 0
    assert hits[0].parts.near > 0


def test_who_is_named_goes_before_the_other() -> None:
    talk = [["the dog sleeps"], ["nothing much", "the dog sleeps"]]
    for name, session in (("Ana", "s0"), ("Ben", "s1")):
        hits = ranked(parse_question(f"Where does the dog of {name} sleep?", now=NOW), documents(talk))
        assert hits[0].candidate.session == session


def test_whose_words_are_asked_for_goes_first() -> None:
    talk = [["the dog sleeps"], ["nothing much", "the dog sleeps"]]
    assert ranked(parse_question("What did I say about the dog?", now=NOW), documents(talk))[0].candidate.role == "user"
    told = ranked(parse_question("What did you tell me about the dog?", now=NOW), documents(talk))
    assert told[0].candidate.role == "assistant"


def test_a_time_is_preferred_where_one_is_asked_for() -> None:
    talk = [["my dog went yesterday"], ["my dog went there slowly"]]
    assert ranked(parse_question("When did the dog go?", now=NOW), documents(talk))[0].candidate.session == "s0"


LONG = " ".join(f"On the whole the weather of week {n} was neither warm nor cold, as one says." for n in range(12))


def test_in_a_chat_with_long_replies_what_the_user_said_goes_first() -> None:
    """The reply echoes it three times; between people, who take turns, nobody goes first."""
    echo = f"A mooring at Tarrow is a good choice. {LONG} The mooring at Tarrow, then. {LONG}"
    talk = [[f"We have a mooring at Tarrow since May. {LONG}", echo], [LONG, LONG], [LONG, LONG]]
    hits = ranked(parse_question("Where is the mooring?", now=NOW), documents(talk))
    assert [(hit.candidate.session, hit.candidate.role) for hit in hits[:2]] == [("s0", "user"), ("s0", "assistant")]
    told = ranked(parse_question("What did you say about the mooring?", now=NOW), documents(talk))
    assert told[0].candidate.role == "assistant"


def test_the_best_chunk_of_a_very_long_message_is_found() -> None:
    buried = f"{LONG * 20} The boathouse key hangs behind the lifebelt. {LONG * 20}"
    talk = [[buried, "I see"], ["The key is green", "Is it"], ["We have a boathouse", "Nice"]]
    first, *_ = ranked(parse_question("boathouse key", now=NOW), documents(talk))
    assert first.candidate.session == "s0"
    assert first.chunk is not None
    assert "boathouse key" in buried[slice(*first.chunk)]


def test_what_was_said_at_a_time_is_found_without_a_word_of_the_question() -> None:
    question = parse_question("What did I buy on 1 January 1970?", now=NOW)
    everything = documents([["a red anchor", "I see"], ["we bought bread", "good"]])
    everything[2:] = [msgspec.structs.replace(one, at=NOW) for one in everything[2:]]
    found = looked_up(question, everything)
    dated = [one for one in everything[:2] if one not in found.found]
    found = msgspec.structs.replace(
        found, found=[*found.found, *(msgspec.structs.replace(one, counts={}) for one in dated)]
    )
    assert {hit.candidate.session for hit in ranked(question, everything, found=found)} == {"s0", "s1"}


@given(talks, asked, st.randoms())
def test_the_order_of_the_terms_of_a_candidate_changes_nothing(
    talk: list[list[str]], text: str, chance: random.Random
) -> None:
    """An engine gives them in any order, another one in each process."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    found = looked_up(question, everything)

    def shuffled(one: Candidate) -> Candidate:
        counts = list(one.counts.items())
        chance.shuffle(counts)
        return msgspec.structs.replace(one, counts=dict(counts))

    others = msgspec.structs.replace(found, found=[*map(shuffled, found.found)])
    assert ranked(question, everything, found=found) == ranked(question, everything, found=others)


def test_a_time_alone_is_no_answer_where_one_has_to_be_sure() -> None:
    """The message was said on the day, and has nothing else to do with the question."""
    question = parse_question("Which boat did we buy on 1 January 1970?", now=NOW)
    everything = documents([["a red anchor", "I see"]])
    found = msgspec.structs.replace(
        looked_up(question, everything), found=[msgspec.structs.replace(one, counts={}) for one in everything]
    )
    ranking = Ranking(question, found, [Similar(everything[0], 0.1)], WHOLE, FLOOR)
    hits = ranking.list_hits()
    assert hits, "the day leads to it"
    assert not ranking.has_answer(hits)


def test_of_several_answers_each_comes_before_its_echo() -> None:
    """Two dogs, each with a reply that repeats it."""
    talk = [["a dog called Pip", "a dog called Pip, fine"], ["nothing"], ["a dog called Bo", "a dog called Bo, fine"]]
    places = [
        hit.candidate.place for hit in ranked(parse_question("How many dogs are there?", now=NOW), documents(talk))
    ]
    assert places[:2] == [0, 0]


def test_nothing_found_is_nothing() -> None:
    question = parse_question("dog", now=NOW)
    for found in (Candidates([], 0, 0, {}), Candidates([], 10, 100, {"dog": 0})):
        ranking = Ranking(question, found, [])
        assert ranking.list_missing(10) == []
        assert ranking.list_hits() == []
    assert Ranking(question, None, []).list_hits() == []


def test_a_place_that_is_not_there_is_no_hit() -> None:
    question, everything = parse_question("dog", now=NOW), documents([["dog"]])
    ranking = Ranking(question, looked_up(question, everything))
    missing = ranking.list_missing(10)
    assert (0, 1) in missing
    ranking.fill([], missing)
    assert [hit.candidate.place for hit in ranking.list_hits()] == [0]


def test_places_that_were_not_asked_for_are_not_taken_in() -> None:
    question, everything = parse_question("dog", now=NOW), documents([["dog", "lake", "lake", "lake", "lake"]])
    ranking = Ranking(question, looked_up(question, everything))
    ranking.fill(everything, [])
    assert [hit.candidate.place for hit in ranking.list_hits()] == [0, 1, 2]


# -- with vectors ----------------------------------------------------------------


def test_similarities_alone_are_smoothed_over_neighbours() -> None:
    everything = documents([["a", "dog", "b"], ["c"]])
    similar = [Similar(one, near) for one, near in zip(everything, (0.6, 0.5, 0.1, 0.55), strict=True)]
    hits = Ranking(parse_question("pet", now=NOW), None, similar).list_hits()
    assert (hits[0].candidate.session, hits[0].candidate.place) == ("s0", 1)
    assert all(hit.parts.vector is not None for hit in hits)


@given(talks, asked)
def test_hybrid_holds_what_either_holds(talk: list[list[str]], text: str) -> None:
    question, everything = parse_question(text, now=NOW), documents(talk)
    similar = [Similar(one, 0.1 * one.place) for one in everything if one.source == 0]
    words = {(hit.candidate.source, hit.candidate.place) for hit in ranked(question, everything)}
    vectors = {(hit.candidate.source, hit.candidate.place) for hit in Ranking(question, None, similar).list_hits()}
    both = {(hit.candidate.source, hit.candidate.place) for hit in ranked(question, everything, similar=similar)}
    assert both >= words | vectors


def test_the_only_message_is_found_by_its_vector() -> None:
    """The least near of all is near all the same where there is no other, or where all are as near."""
    for count in (1, 2):
        similar = [Similar(one, 0.6) for one in documents([["lake"]] * count)]
        assert len(Ranking(parse_question("pet", now=NOW), None, similar).list_hits()) == count


def test_first_in_both_is_first() -> None:
    everything = documents([["dog dog", "x", "y", "z"], ["dog", "x", "y", "z"]])
    similar = [Similar(one, 0.9 if one.source == one.place == 0 else 0.1) for one in everything]
    hits = ranked(parse_question("dog", now=NOW), everything, similar=similar)
    assert (hits[0].candidate.source, hits[0].candidate.place) == (0, 0)


_ALONE = msgspec.structs.replace(WEIGHTS.dialogue, before=(), after=(), session=0.0, vector_before=(), vector_after=())
ALONE = msgspec.structs.replace(WEIGHTS, dialogue=_ALONE, chat=_ALONE)
"""For documents that are no conversation: neighbours and sessions say nothing of them."""


def test_alone_neighbours_and_sessions_say_nothing() -> None:
    """Memories, say: what stands beside one has nothing to do with it."""
    everything = documents([["dog", "lake"], ["lake", "sister"]])
    hits = ranked(parse_question("dog", now=NOW), everything, weights=ALONE)
    assert [(hit.candidate.source, hit.candidate.place) for hit in hits] == [(0, 0)]
    assert hits[0].parts.near == 0


# -- the floor -------------------------------------------------------------------

FLOOR = 0.3
WHOLE = msgspec.structs.replace(WEIGHTS, lowered=0.0)
"""The floor as it is among many, for talks of a few turns."""


def by_both(talk: Sequence[Sequence[str]], text: str, near: Sequence[float], floor: float = FLOOR) -> list[Hit]:
    """The hits of a question, whose similarity to each turn, in order, is `near`."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    similar = [Similar(one, share) for one, share in zip(everything, near, strict=True)]
    ranking = Ranking(question, looked_up(question, everything), similar, WHOLE, floor)
    missing = ranking.list_missing(len(everything) * 9)
    ranking.fill([], missing)
    return ranking.list_hits()


def sessions_in(hits: Sequence[Hit]) -> set[str]:
    return {hit.candidate.session for hit in hits}


def test_where_nothing_is_near_vectors_find_nothing() -> None:
    """Only the nearest of what has nothing to do with the question; from the floor on it has."""
    talk, question = [["lake"], ["sister"]], "any pets?"
    assert by_both(talk, question, [0.29, 0.1]) == []
    assert sessions_in(by_both(talk, question, [0.3, 0.1])) == {"s0"}
    everything = [Similar(one, 0.29) for one in documents(talk)]
    assert Ranking(parse_question(question, now=NOW), None, everything, WHOLE, FLOOR).list_hits() == []


def test_what_words_find_stays_however_far_it_is() -> None:
    """The words themselves, and what stands around them."""
    talk = [["the dog sleeps", "I see"], ["nothing of note"]]
    hits = by_both(talk, "Where is the dog?", [0.0, 0.05, 0.1])
    assert [(hit.candidate.session, hit.candidate.seq) for hit in hits] == [("s0", 0), ("s0", 1)]


def test_a_neighbour_that_is_near_is_enough_and_the_far_ones_are_not() -> None:
    """An answer is seldom like its question; what is far, and beside nothing near, was found for being there."""
    talk = [["Do you have any animals?", "Bruno, since May.", "How nice", "What else?", "Rain"], ["sister"]]
    hits = by_both(talk, "pets", [0.5, 0.05, 0.1, 0.12, 0.11, 0.19])
    assert {(hit.candidate.session, hit.candidate.seq) for hit in hits} == {("s0", 0), ("s0", 1), ("s0", 2)}
    assert ("s1", 0) in {
        (hit.candidate.session, hit.candidate.seq) for hit in by_both(talk, "pets", [0.5, 0.05, 0.1, 0.12, 0.11, 0.2])
    }


@given(talks, asked, st.data())
def test_a_floor_takes_hits_away_and_changes_no_other(talk: list[list[str]], text: str, data: st.DataObject) -> None:
    """Neither scores nor order of what stays; all that words find stays; without one nothing goes."""
    count = sum(map(len, talk))
    near = data.draw(st.lists(st.floats(-1, 1), min_size=count, max_size=count))
    floor = data.draw(st.floats(0.01, 1))
    every, some = by_both(talk, text, near, 0.0), by_both(talk, text, near, floor)
    kept = {(hit.candidate.source, hit.candidate.place) for hit in some}
    assert some == [hit for hit in every if (hit.candidate.source, hit.candidate.place) in kept]
    assert kept >= {(hit.candidate.source, hit.candidate.place) for hit in every if hit.parts.keyword}
    if max(near) < floor:
        assert all(hit.parts.keyword for hit in some)


def answered(talk: Sequence[Sequence[str]], text: str, near: Sequence[float], floor: float = FLOOR) -> bool:
    """Whether the hits of a question answer it surely."""
    question, everything = parse_question(text, now=NOW), documents(talk)
    similar = [Similar(one, share) for one, share in zip(everything, near, strict=True)]
    ranking = Ranking(question, looked_up(question, everything), similar, WHOLE, floor)
    return ranking.has_answer(ranking.list_hits())


def test_a_word_in_common_is_no_answer_where_nothing_is_near() -> None:
    """One message has to hold a third of the question itself, or one has to be near."""
    talk = [["the sister came by bicycle"], ["lake"]]
    question = "Which sister of the admiral inherited the lighthouse and sold its furniture?"
    assert not answered(talk, question, [0.2, 0.1])
    assert answered(talk, question, [0.3, 0.1])
    assert answered(talk, "Which sister inherited the bicycle?", [0.2, 0.1])
    assert answered(talk, question, [0.2, 0.1], floor=0.0)


def test_words_of_neighbours_together_are_no_answer() -> None:
    """Each holds one of many words: so does any talk that is long enough."""
    talk = [["the sister came", "an admiral", "one lighthouse", "some furniture"]]
    question = "Which sister of the admiral inherited the lighthouse and sold its precious wooden furniture?"
    assert not answered(talk, question, [0.2, 0.1, 0.0, 0.0])


def test_what_was_left_out_answers_nothing() -> None:
    """What is near may be in the prompt already: the rest has to stand for itself."""
    question, everything = parse_question("pets", now=NOW), documents([["animals"], ["lake"], ["sister"]])
    similar = [Similar(one, share) for one, share in zip(everything, (0.9, 0.25, 0.1), strict=True)]
    ranking = Ranking(question, looked_up(question, everything), similar, WHOLE, FLOOR)
    hits = ranking.list_hits()
    assert sessions_in(hits) == {"s0", "s1"}
    assert ranking.has_answer(hits)
    assert not ranking.has_answer([hit for hit in hits if hit.candidate.session == "s1"])
    assert not ranking.has_answer([])
    alone = Ranking(question, None, similar, WHOLE, FLOOR)
    assert alone.has_answer(alone.list_hits())
    assert not alone.has_answer([hit for hit in alone.list_hits() if hit.candidate.session == "s1"])


def test_without_vectors_words_are_enough() -> None:
    """By keyword alone, or while nothing is embedded yet."""
    question, everything = (
        parse_question("Which sister of the admiral sold the lighthouse?", now=NOW),
        documents([["sister"]]),
    )
    nothing: tuple[list[Similar] | None, ...] = (None, [])
    for similar in nothing:
        ranking = Ranking(question, looked_up(question, everything), similar, WHOLE, FLOOR)
        assert ranking.has_answer(ranking.list_hits())


def test_alone_a_neighbour_that_is_near_says_nothing() -> None:
    """Memories, say: what stands beside one has nothing to do with it."""
    similar = [Similar(one, share) for one, share in zip(documents([["animals", "lake"]]), (0.5, 0.1), strict=True)]
    weights = msgspec.structs.replace(ALONE, lowered=0.0)
    hits = Ranking(parse_question("pets", now=NOW), None, similar, weights, FLOOR).list_hits()
    assert [hit.candidate.place for hit in hits] == [0]


def test_a_hit_says_how_near_it_is_itself() -> None:
    hits = by_both([["dog"], ["lake"], ["sister"]], "dog", [0.5, 0.25, 0.1])
    assert {hit.candidate.session: hit.parts.similarity for hit in hits} == {"s0": 0.5, "s1": 0.25}


def lowest(count: int) -> float:
    """The least similarity that is found where so many turns are equally near."""
    question, everything = parse_question("pets", now=NOW), documents([["lake"]] * count)
    shares = [share / 100 for share in range(1, 40)]
    found = [
        share
        for share in shares
        if Ranking(question, None, [Similar(one, share) for one in everything], WEIGHTS, FLOOR).list_hits(1)
    ]
    assert found == shares[-len(found) :]
    return found[0]


def test_the_floor_is_lower_where_little_was_said() -> None:
    """The nearest of few is not near by chance; among `few` and more the floor is as it was given, and never higher."""
    one, ten, hundred, few, more = [lowest(count) for count in (1, 10, 100, WEIGHTS.few, 3 * WEIGHTS.few)]
    assert 0.05 < one < ten < hundred < few == more == FLOOR
