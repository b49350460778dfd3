"""Passages of a session: finding the sentences that answer a question, and limits of the table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.recall.passages import Passage, PassageTable
from holdfast.recall.questions import parse_question

TALK = [
    ("user", "We have a boat. The boat is called Kittiwake, and her mooring costs 420 a month. It rains."),
    ("assistant", "Noted. What is your budget for the new sails?"),
    ("user", "15,500"),
    ("assistant", "I will send you three offers by Friday."),
    ("user", "¿Puedes responder siempre en español?"),
    ("user", "孩子小名阿拓，大名周启拓。昨天去了学校。"),  # noqa: RUF001 - a comma
]


def make_table(*lines: tuple[str, str]) -> PassageTable:
    made = PassageTable()
    for seq, (role, text) in enumerate(lines):
        made.add(seq, role, text)
    return made


def find(made: PassageTable, query: str, **given: object) -> list[Passage]:
    return made.search(parse_question(query, now=0, narrow=False), **given)  # type: ignore[arg-type]


def get_text(one: Passage) -> str:
    return TALK[one.seq][1][one.start : one.stop]


def test_the_answering_sentence_comes_first() -> None:
    made = make_table(*TALK)
    assert get_text(find(made, "What does the mooring cost?")[0]).startswith("The boat is called Kittiwake")
    assert get_text(find(made, "When do the offers come?")[0]).endswith("by Friday.")
    assert "周启拓" in get_text(find(made, "孩子的大名是什么")[0])


def test_an_answer_is_found_through_its_question_and_returned_with_it() -> None:
    made = make_table(*TALK)
    (found,) = [one for one in find(made, "What budget did I give for the sails?") if one.seq == 2]
    finding = made.add_context(found)
    assert finding.question is not None
    assert get_text(finding.question) == "What is your budget for the new sails?"


def test_sentences_of_the_best_message_come_first() -> None:
    """Even if its matches are spread and another message has two matches in one sentence."""
    spread = "We moored Kittiwake at Tarrow. The fee is high. It is paid in May. The steward is called Moss."
    made = make_table(
        ("user", spread),
        ("assistant", "I see."),
        ("user", "The fee for the car in May was a surprise."),
        ("assistant", "Oh."),
    )
    question = parse_question("What fee do we pay the steward at Tarrow in May?", now=0)
    assert made.rank_entries(question, 5)[0] == (0, 1.0)
    assert [seq for seq, _ in made.rank_entries(question, 1)] == [0]
    assert find(made, question.text)[0].seq == 0


def test_a_passage_comes_with_the_later_sentence_that_corrects_it() -> None:
    made = PassageTable(lambda sentence: "instead" in sentence)
    said = [
        "The van is booked for 12 December.",
        "The cat is fine.",
        "The van is booked for the 19th instead.",
        "The van is red.",
    ]
    for seq, text in enumerate(said):
        made.add(seq, "user", text)
    for seq in range(4, 60):
        made.add(seq, "assistant", f"Story number {seq}: it rains.")
    passages = {one.seq: one for one in find(made, "When does the van come?")}
    assert passages.keys() >= {0, 2, 3}
    corrections = {seq: made.find_correction(passages[seq]) for seq in (0, 2, 3)}
    assert corrections[0] is not None
    assert corrections[0].seq == 2
    assert corrections[2] is corrections[3] is None


def test_assistant_passages_have_no_correction() -> None:
    made = PassageTable(lambda _: True)
    made.add(0, "assistant", "The van is booked for 12 December.")
    made.add(1, "user", "The van is booked for 19 December.")
    assert all(made.add_context(one).newer is None for one in find(made, "When does the van come?"))


def test_the_newest_of_equal_passages_comes_first() -> None:
    made = make_table(*[("user", "The ferry leaves at nine.")] * 2)
    assert [one.seq for one in find(made, "When does the ferry leave?")] == [1, 0]


@given(
    lines=st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=200)), max_size=12),
    query=st.text(max_size=80),
)
def test_passages_are_parts_of_entries_for_any_question(lines: list[tuple[str, str]], query: str) -> None:
    made = make_table(*lines)
    for one in find(made, query):
        assert one.evidence >= 0
        assert lines[one.seq][1][one.start : one.stop].strip()
        whole = made.add_context(one).whole
        assert whole.start <= one.start < one.stop <= whole.stop <= len(lines[one.seq][1])
