"""The text that an index stores for a document: term counts, for both lookup methods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.recall.terms import to_key
from holdfast.stores.logic.index_rows import LONG, SOUGHT, make_counter, pack_terms

words = st.sampled_from(
    [f"w{number}" for number in range(60)] + ["w", "1", "11", "é", "a=b", "x|y", "order_17", "key of"]
)
kept = st.dictionaries(words, st.integers(1, 12), max_size=60)
details = st.sampled_from(["", "1f.1", ";3c.0,2a.1; w1@0.1 w2@1 "])


@given(terms=kept, detail=details, asked=st.lists(words, unique=True, max_size=SOUGHT + 6))
def test_terms_are_counted_in_short_and_long_texts(terms: dict[str, int], detail: str, asked: list[str]) -> None:
    known = {to_key(term): term for term in asked}
    assert make_counter(asked)(pack_terms(terms, detail)) == {
        term: terms[term] for term in known.values() if term in terms
    }


def test_both_lookup_methods_give_equal_counts_in_a_long_text() -> None:
    terms = {f"word{number}": number % 3 + 1 for number in range(500)}
    text = pack_terms(terms, ";3c.0,2a.1; word1@0.1 word500@1 ")
    assert len(text) > LONG * SOUGHT
    few = [f"word{number}" for number in range(490, 490 + SOUGHT)]
    many = [f"word{number}" for number in range(450, 550)]
    for asked in (few, many, ["word", "ord1", "word1@0"]):
        assert make_counter(asked)(text) == {term: terms[term] for term in asked if term in terms}
