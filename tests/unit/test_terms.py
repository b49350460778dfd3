"""Search terms of texts and questions: word forms, scripts without spaces, and identifiers."""

# ruff: noqa: RUF001 (characters of other widths are what some cases are about)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recall.questions import parse_question
from holdfast.recall.snippets import CUT, make_snippet
from holdfast.recall.terms import (
    ASKS,
    MAX_TERM,
    NUMBERED,
    TIMED,
    YOURS,
    extract_terms,
    get_asked_share,
    get_terms,
    iter_tokens,
    normalize,
)
from holdfast.recall.word_tables import ENGLISH, LANGUAGES, STOPS, find_language

NOW = 1_684_337_400_000  # a Wednesday in May 2023


written = st.lists(
    st.sampled_from(
        ["don't", "l'homme", "well-known", "1,234.5", "a,b", "x,,y", ",", "Ünïcode", "東京", "ORD-12345", "foo_bar.baz",
         "https://a.b/c?d=e,f", "12 34 56", "C++", "der", "the", "los"]
    )
    | st.text(max_size=8),
    max_size=100,
).map(" ".join)  # fmt: skip


def finds(question: str, text: str) -> bool:
    """Return True if the question and the text share a term."""
    return not set(parse_question(question, now=NOW).terms).isdisjoint(extract_terms(text).counts)


# -- words -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("adopted agencies", "researching adoption agency"),
        ("What did she buy?", "I bought two of them"),
        ("Who taught the children?", "a teacher teaches every child"),
        ("Melanie's painting", "Melanie painted it"),
        ("a café by the sea", "CAFE at the beach"),
        ("Straße", "in der Strasse"),
        ("naïve résumé", "a naive resume"),
        ("check-in", "the checkin was quick"),
        ("e-mail", "send me an email"),
        ("O'Brien", "we met Mr O\u2019Brien's wife"),
        ("ﬁne ｆｕｌｌ", "fine and full"),
        ("Which picture?", "look at this photo"),
    ],
)
def test_words_are_found_in_other_forms(question: str, text: str) -> None:
    assert finds(question, text)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Wo sind meine Bücher?", "Ich habe das Buch gestern verkauft"),
        ("¿Qué canciones cantaste?", "Mi canción favorita es la primera"),
        ("Quels chevaux ?", "Le cheval est dans le pré avec les autres"),
        ("Quais livros?", "O livro que eu comprei é muito bom"),
        ("Quali ricette?", "La ricetta di mia nonna è con il pane"),
        ("Welke boeken?", "Het boek is niet van mij"),
        ("Где мои кошки?", "Это кошка, и она не моя"),
        ("Bücher", "Ich habe die Bücher gelesen"),
        ("Zahnarzt Termin", "Am Montag habe ich einen Termin beim Zahnarzt"),
        ("Termine", "wir haben einen Termin"),
    ],
)
def test_other_languages_are_stemmed_by_their_own_rules(question: str, text: str) -> None:
    assert finds(question, text)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("会議", "明日の会議は3時からです"),
        ("会議は何時ですか", "来週の会議を延期しました"),
        ("猫", "猫が好きです"),
        ("カタカナ", "それはカタカナで書く"),
        ("绿茶", "我喜欢喝绿茶"),
        ("我喜欢喝什么茶", "我每天喝绿茶"),
        ("회의", "내일 회의를 했다"),
        ("ประชุม", "พรุ่งนี้มีประชุมตอนเช้า"),
        ("ກອງປະຊຸມ", "ມື້ອື່ນມີກອງປະຊຸມ"),
        ("ប្រជុំ", "ថ្ងៃស្អែកមានប្រជុំ"),
        ("အစည်းအဝေး", "မနက်ဖြန်အစည်းအဝေးရှိတယ်"),
        ("iPhone15", "昨日iPhone15を買った"),
    ],
)
def test_scripts_without_spaces_are_searched_by_parts(question: str, text: str) -> None:
    assert finds(question, text)


@pytest.mark.parametrize(
    "script", ["हिन्दी में बात करें", "তুমি কেমন আছো", "هذا كتاب جديد", "שלום עולם טוב", "καλημέρα κόσμε", "ծանոթ բառ"]
)
def test_words_with_combining_signs_stay_whole(script: str) -> None:
    """Python does not count combining marks as letters, but they do not end a word."""
    assert len(extract_terms(script).counts) <= len(script.split())
    assert extract_terms(script).counts


@pytest.mark.parametrize(
    "code",
    [
        "ORD-12345",
        "user_id",
        "getUserName",
        "a.b/c",
        "4f3e-99aa-11bc",
        "joe.doe@example.com",
        "https://example.org/a?b=c&d=e",
        "v1.2.3",
        "1,234.56",
        "DE89 3704 0044 0532 0130 00",
        "4111 1111 1111 1111",
        "2023-05-08",
        "C++",
        "C#",
        "#4711",
        "/etc/hosts",
        "x" * 500 + "-1",
    ],
)
def test_identifiers_are_found_whole_and_by_their_parts(code: str) -> None:
    """The whole identifier has the highest weight."""
    text = f"it was {code}, I think"
    concept = max(parse_question(f"about {code}?", now=NOW).concepts, key=lambda one: one.variants[0][1])
    assert finds(code, text)
    assert concept.variants[0][1] == 1.0
    assert all(weight < 1 for _, weight in concept.variants[1:])
    assert concept.variants[0][0] in extract_terms(text).counts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ORD-12345", "ord_12345"),
        ("ORD12345", "ORD-12345"),
        ("user_id", "userId"),
        ("1,234", "1234"),
        ("555-123-4567", "5551234567"),
        ("DE89370400440532013000", "DE89 3704 0044 0532 0130 00"),
        ("１２３", "123"),
        ("١٢٣", "123"),
    ],
)
def test_spelling_variants_of_identifiers_match(one: str, other: str) -> None:
    assert finds(one, other)
    assert finds(other, one)


def test_versions_that_differ_by_a_dot_differ() -> None:
    assert "1.2.3" in extract_terms("1.2.3").counts
    assert "1.2.3" not in extract_terms("12.3").counts
    assert "123" not in extract_terms("1.2.3").counts


def test_a_part_of_an_identifier_finds_it() -> None:
    assert finds("12345", "ORD-12345")
    assert finds("example", "joe.doe@example.com")
    assert finds("name", "getUserName")


def test_stop_words_and_symbols_are_not_terms() -> None:
    assert extract_terms("and the of it was to 🙂 👍🏽 … --- !!!").counts == {}
    assert extract_terms("").counts == {}
    assert set(extract_terms("IT for US").counts) == {"it", "us"}, "names in capitals are no stop words"


@given(st.text(max_size=400))
def test_terms_are_bounded_and_deterministic(text: str) -> None:
    terms = extract_terms(text)
    assert terms == extract_terms(text)
    assert all(0 < len(term) <= MAX_TERM and often > 0 for term, often in terms.counts.items())
    assert terms.length == sum(terms.counts.values())
    assert 0 <= terms.traits < 1 << 31
    assert not any(term.isspace() for term in terms.counts)


# -- languages -------------------------------------------------------------------


def test_each_language_is_detected_by_its_stop_words() -> None:
    for language in LANGUAGES:
        assert find_language(sorted(STOPS[language])[:60]) == language


# -- traits ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "share", "ends"),
    [
        ("I bought a dog.", 0.0, False),
        ("What did you buy?", 1.0, True),
        ("I am well, and the dog is too. And you?", 0.25, True),
        ("Really? That is a very long way to go for a dog and a cat.", 0.25, False),
        ("¿Qué? (really?)", 1.0, True),
        ("何時ですか？", 1.0, True),
    ],
)
def test_share_of_questions_in_a_text(text: str, share: float, ends: bool) -> None:
    traits = extract_terms(text).traits
    assert get_asked_share(traits) == share
    assert bool(traits & ASKS) is ends


def test_traits_mark_times_numbers_and_the_second_person() -> None:
    assert extract_terms("I went there yesterday").traits & TIMED
    assert extract_terms("in 2019").traits & TIMED
    assert not extract_terms("the dog barks").traits & TIMED
    assert extract_terms("two dogs").traits & NUMBERED
    assert extract_terms("room 12").traits & NUMBERED
    assert extract_terms("you and your dog").traits & YOURS
    assert not extract_terms("my dog likes you, I think").traits & YOURS


# -- questions -------------------------------------------------------------------


def test_words_about_the_conversation_are_not_searched() -> None:
    question = parse_question("Did I mention what the dentist said about my teeth?", now=NOW)
    assert [concept.word for concept in question.concepts] == ["dentist", "teeth"]
    assert question.role == "user"


def test_words_about_the_conversation_are_searched_if_they_are_all() -> None:
    assert [concept.word for concept in parse_question("conversation", now=NOW).concepts] == ["conversation"]


def test_synonyms_count_less_than_the_word_itself() -> None:
    (concept,) = parse_question("photo", now=NOW).concepts
    weights = dict(concept.variants)
    assert concept.variants[0] == ("photo", 1.0)
    assert 0 < weights["pictur"] < 1


# -- snippets --------------------------------------------------------------------


def test_a_short_text_is_shown_whole() -> None:
    snippet = make_snippet("明日の会議は3時から", parse_question("会議", now=NOW))
    assert (snippet.text, snippet.highlights) == ("明日の会議は3時から", ((3, 5),))


@given(st.text(max_size=600), st.text(max_size=40), st.integers(0, 200))
def test_snippets_of_any_text_are_within_the_width(text: str, question: str, width: int) -> None:
    snippet = make_snippet(text, parse_question(question, now=NOW), width)
    assert len(snippet.text) <= max(width, 16) + 2 * len(CUT)
    last = 0
    for start, stop in snippet.highlights:
        assert last <= start < stop <= len(snippet.text)
        last = stop


# -- consistency --------------------------------------------------------


@given(written)
def test_extracted_terms_equal_the_terms_of_the_tokens(text: str) -> None:
    """Texts and questions are tokenized by different code, and a difference would make words unfindable."""
    words = [token.text for token in iter_tokens(normalize(text))]
    language = find_language(word.casefold() for word in words) or ENGLISH
    terms = [term for word in words for term in get_terms(word, language)]
    found = extract_terms(text)
    assert list(found.counts) == list(dict.fromkeys(terms))
    assert found.length == len(terms)
