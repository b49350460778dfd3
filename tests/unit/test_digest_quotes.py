"""Faithfulness of the digest: who said what, whole sentences and answers, and which failures were resolved."""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

import json

import pytest

from holdfast.context.digest.page import SentContext
from holdfast.context.digest.speech import has_value, is_idle, read_speech
from holdfast.context.digest.texts import LONGEST, split_text
from tests.unit.test_digest_conversations import call, digest, make_message

MAIL = """We booked one payment twice.

Dear Quayside team,

please always check your system before the season. I want the 48.50 EUR back by Friday.

Kind regards
J. Brandsma

Migrations are named after the ticket."""


def read_user_message(text: str) -> dict[str, list[str]]:
    """Return the sentences of a user's message, by handle."""
    return {line.handle: [fact.value for fact in line.facts] for line in read_speech(make_message("user", text), 0, "")}


# -- own words and quotes ----------------------------------------------------------


def test_a_pasted_mail_is_quoted_only_where_it_has_a_value() -> None:
    found = read_user_message(MAIL)
    assert "Migrations are named after the ticket." in found["user said"]
    assert found["user quoted"] == ["I want the 48.50 EUR back by Friday."]


def test_quoted_words_weigh_less_than_the_users_own() -> None:
    """Even if they read like an instruction."""
    wish = "Please always paint the doors in RAL 7016, and never ask again."
    mine, theirs = ({fact.value: fact for line in read_speech(make_message("user", text), 0, "") for fact in line.facts}
                    for text in (f"Noted so far. {wish}", f"He answered:\n\nDear Gwen,\n{wish}\n\nKind regards"))  # fmt: skip
    assert theirs[wish].weight < mine[wish].weight / 2
    assert f"user quoted: {wish}" in digest(
        [make_message("user", f"He answered:\n\nDear Gwen,\n{wish}\n\nKind regards")]
    )


@pytest.mark.parametrize(
    "sentence",
    [
        'My aunt wants a disco and has said "book nothing without asking me first".',
        "Ma tante a répondu « ne réserve rien sans me demander », on verra.",
        "我妈妈昨天晚上说“一定要买最贵的那种床”，我觉得没有必要。",
    ],
)
def test_a_quote_with_its_speaker_stays_whole_in_the_users_line(sentence: str) -> None:
    assert read_user_message(sentence) == {"user said": [sentence]}


def test_a_quoted_instruction_does_not_make_its_sentence_an_instruction() -> None:
    own, quoted = (
        "The chef says to put the hob on the island.",
        'The chef says "never put the hob on an island, always by the wall".',
    )
    weights = [read_speech(make_message("user", f"Hello. {text}"), 0, "")[0].facts[-1].weight for text in (own, quoted)]
    assert weights[1] < 1.5 * weights[0]


def test_chinese_sentences_are_attributed_to_the_user() -> None:
    assert list(read_user_message("孩子现在三年级。学费每半年36000元，请不要再推荐寄宿学校。")) == ["user said"]


def test_a_form_filled_in_by_the_user_is_attributed_to_the_user() -> None:
    assert read_user_message("Name: Ada Weiss\nSize: 12 by 40 cm\nColour: red") == {
        "user said": ["Ada Weiss", "12 by 40 cm", "red"]
    }


def test_data_pasted_by_the_user_is_kept() -> None:
    row = json.dumps({"order": "KX-7731", "sku": "P-77"})
    pasted = f'It prints this:\n\n{{"order": "KX-7731"}}\n\n{row}\n2026-03-02T05:00:00Z ERROR job J-4417 failed\n| sku | qty |\n|---|---|\n| QW-88 | 4 |'
    text = digest([make_message("user", pasted)])
    assert all(value in text for value in ("KX-7731", "P-77", "J-4417", "QW-88"))


# -- whole sentences -----------------------------------------------------------------


def test_a_sentence_of_usual_length_is_whole() -> None:
    sentence = "While I hand out confessions, coffee is one cup before nine and that is the lot, so when you plan my first week do not give me a flask, because I turn into a squirrel that talks."
    assert 160 < len(sentence) <= LONGEST
    assert split_text(sentence) == [sentence]


def test_a_long_sentence_is_split_at_the_end_of_a_clause() -> None:
    """Speech has no punctuation: no part may end in a word that needs a next one."""
    speech = (
        "so they moved cardiology it's the eleventh of december now at two fifteen and the warfarin i got that wrong it's five now they "
        "changed it on monday because his number was low so the pill is the peach one and my sister has the binder so anything about money goes to carol"
    )
    parts = split_text(speech)
    assert " ".join(parts) == speech
    assert len(parts) == 2
    assert not any(part.endswith((" it's", " they", " the", " and", " a")) for part in parts)
    assert "it's five now they changed it on monday" in " ".join(parts[:1]) + " ".join(parts[1:])


def test_a_closing_quotation_mark_belongs_to_its_sentence() -> None:
    assert split_text('He said "not today." I went home.') == ['He said "not today."', "I went home."]


def test_fragments_without_content_are_omitted() -> None:
    text = digest(call("run", {"cmd": "make test"}, "[ 17%]\n[ 35%]\nD1.\n405 passed in 58 s\n[100%]"))
    assert "405 passed" in text
    assert "%]" not in text
    assert "D1." not in text
    assert "run(count): 42" in digest(call("run", {"cmd": "count"}, "42"))


# -- tables --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [
        "| estate | system | mean |\n|---|---|---|\n| Moorside | air | 13,183 |\n| Highfield | air | 12,117 |",
        " estate | system | mean\n--------+--------+-----\n Moorside | air | 13,183\n Highfield | air | 12,117\n(2 rows)",
    ],
)
@pytest.mark.parametrize("tokens", [*range(24, 60, 3), 400])
def test_a_table_heading_appears_once_and_only_with_a_row(table: str, tokens: int) -> None:
    for messages in (
        [make_message("assistant", f"These are left:\n\n{table}")],
        call("query", {"q": "means"}, f"2 rows\n{table}"),
    ):
        text = digest(messages, tokens)
        assert text.count("estate") <= 1
        if "estate" in text:
            assert "Moorside" in text or "Highfield" in text


# -- failures that were resolved --------------------------------------------------------


def test_a_success_comes_before_the_failures_that_led_to_it() -> None:
    flights = [{"flight_number": "HAT229", "date": "2024-05-27"}]
    talk = [message for card in ("gift_card_7480005", "gift_card_6276644", "certificate_8544743")
            for message in call("update", {"id": "OBUT9V", "payment": card, "flights": flights}, "Error: the balance is not enough")]  # fmt: skip
    talk += call(
        "update",
        {"id": "OBUT9V", "payment": "credit_card_9879898", "flights": flights},
        {"id": "OBUT9V", "status": "updated"},
    )
    assert "credit_card_9879898" in digest(talk, 60)
    assert "Error" not in digest(talk, 60)
    text = digest(talk)
    assert text.count("not enough") == text.count("not enough (a later call with other arguments succeeded)") > 0


def test_a_failure_about_another_object_is_not_resolved() -> None:
    talk = [*call("cancel", {"id": "K-1"}, "Error: it has left"), *call("cancel", {"id": "K-2"}, "cancelled")]
    assert "later call" not in digest(talk)


def test_an_error_in_a_log_is_not_resolved_by_another_look() -> None:
    seen = call("get_logs", {"service": "svc-7", "since": "04:00"}, "2026-03-02T04:33:13Z ERROR pool exhausted")
    assert "later call" not in digest([*seen, *call("get_logs", {"service": "svc-7", "since": "05:00"}, "no entries")])


def test_a_question_that_speaks_of_failures_is_no_failure() -> None:
    query = {"db": "pg-book-4", "sql": "select sum(failed) failed from ops.slo_daily where service = 'booking-api'"}
    talk = [
        *call("run_query", query, "61270 of 48213900"),
        *call("run_query", {**query, "sql": "select day from ops.slo_daily"}, "2026-10-26"),
    ]
    assert "later call" not in digest(talk)


# -- bare questions, requests to go on ------------------------------------------------


@pytest.mark.parametrize(
    "sentence",
    [
        "Could you help me with that?",
        "Can anything be done without it?",
        "How should we proceed if that is the case?",
        "Please go ahead with this payment.",
        "Yes, please proceed.",
        "I'll get that information for you.",
    ],
)
def test_questions_that_name_nothing_are_omitted(sentence: str) -> None:
    assert is_idle(sentence)
    assert sentence not in digest(
        [make_message("user", f"My order is K-4711 from Oslo. {sentence}"), make_message("assistant", "It is done.")]
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "Could you cancel K-4711?",
        "Is Denver on the way?",
        "Please go ahead with 2 bags.",
        "I don't want travel insurance.",
        "Never book anything before nine.",
        "Can you check whether the blue lamp fits the narrow shelf?",
    ],
)
def test_sentences_that_name_something_are_kept(sentence: str) -> None:
    assert not is_idle(sentence)
    assert sentence in digest([make_message("user", f"Good. {sentence}")])


def test_a_question_without_a_value_counts_less_than_a_statement() -> None:
    talk = [
        make_message("user", f"Would the green one still look nice somewhere in the hall {'too ' * n}?")
        for n in range(9)
    ]
    talk.insert(4, make_message("user", "We chose the white tiles for the hall in the end."))
    assert "white tiles" in digest(talk, 60)


def test_names_numbers_and_identifiers_are_values() -> None:
    assert has_value("Go to Oslo.")
    assert has_value("We need 12.")
    assert not has_value("Well, I think I'm done.")


# -- answers -------------------------------------------------------------------------


def test_an_answer_after_its_question_is_complete() -> None:
    question = "Shall I make it a single query, and is a cache of 30 s in front of it something you want?"
    answer = "single query yes. No cache: selling one berth twice costs us a boat on the quay."
    assert f"{question} → user said: {answer}" in digest(
        [make_message("assistant", question), make_message("user", answer)]
    )
    text = digest(
        [
            make_message("assistant", question),
            make_message("user", f"single query yes. No cache{', never' * 30}, please."),
        ]
    )
    assert "→" not in text


# -- sentences already in the block of statements ----------------------------------------


def test_a_sentence_already_sent_in_other_pieces_is_not_repeated() -> None:
    shown = SentContext()
    shown.parts[0] = "we talked saturday and we decided he takes thursdays because i've got the overnight wednesday"
    sentence = (
        "um okay so we talked saturday and we decided he takes thursdays because i've got the overnight wednesday"
    )
    assert "thursdays" not in digest([make_message("user", f"{sentence}. His birthday is the 19th.")], shown=shown)
    assert "birthday" in digest([make_message("user", f"{sentence}. His birthday is the 19th.")], shown=shown)


def test_a_sentence_similar_to_a_sent_one_is_kept_for_its_values() -> None:
    shown = SentContext()
    shown.parts[0] = "Box B-100 has 30 letters, the longest is from captain Abel."
    text = digest(
        [
            make_message(
                "user",
                "Box B-100 has 30 letters, the longest is from captain Abel. Box B-117 has 41 letters, the longest is from captain Abel.",
            )
        ],
        shown=shown,
    )
    assert "B-117" in text
    assert "B-100" not in text
