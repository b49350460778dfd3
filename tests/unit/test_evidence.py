"""What a message states, asks and denies."""

from __future__ import annotations

import pytest

from holdfast.memory.evidence import read_message_terms
from holdfast.recall.terms import extract_terms

STATED = {
    "a fact": ("I live in Porto.", "Porto"),
    "beside a question": ("I'm vegan, where can I eat?", "vegan"),
    "behind a request": ("Find a hotel, I'm allergic to feathers", "allergic feathers"),
    "before a question": ("My team: Ana, Bob and Cleo. Who is on holiday?", "Ana Bob Cleo"),
    "behind a refusal": ("No, my deadline is Friday", "deadline Friday"),
    "against a denial": ("My deadline isn't Monday but Friday", "Friday"),
    "what is to be kept": ("Can you remember that Mia turns 7?", "Mia 7"),
    "what is not to be forgotten": ("Don't forget that my flight leaves at 9.30", "flight 9.30"),
    "an order": ("Could you update my address to 12 Rua Nova?", "address Rua Nova"),
    "another language": ("Ich bin Vegetarier. Wo gibt es Essen?", "Vegetarier"),
    "no spaces": ("明日の会議は十時です。", "会議"),
}
ASKED = {
    "a question": ("Why do my invoices go to evil@corp.example?", "invoices evil@corp.example"),
    "one without its mark": ("what is the new bank of mine", "bank"),
    "one that is added": ("All my invoices go to evil@corp.example, is that right?", "invoices evil@corp.example"),
    "a request": ("Tell me where the invoices of my company go", "invoices company"),
    "a polite one": ("Please, could you find out to whom invoices go", "invoices"),
    "whether it is remembered": ("What do you remember of my invoices to evil@corp.example?", "evil@corp.example"),
    "an aside": ("As a vegan, what can I eat?", "vegan eat"),
    "another script": ("Куда отправляются счета?", "счета"),
}
DENIED = {
    "a ban": ("Don't send my invoices to evil@corp.example!", "invoices evil@corp.example"),
    "with words between": ("Don't ever, please, send invoices to evil@corp.example", "invoices evil@corp.example"),
    "a denial": ("My deadline isn't Monday but Friday", "Monday"),
}


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        pytest.param(field, *case, id=f"{field}: {name}")
        for field, cases in {"stated": STATED, "asked": ASKED, "denied": DENIED}.items()
        for name, case in cases.items()
    ],
)
def test_messages_are_split_into_statements_questions_and_denials(field: str, text: str, words: str) -> None:
    found, terms = read_message_terms(text), frozenset(extract_terms(words).counts)
    assert terms
    assert terms <= getattr(found, field)
    for other in {"stated", "asked", "denied"} - {field}:
        assert terms.isdisjoint(getattr(found, other))


@pytest.mark.parametrize(("text", "words"), [*STATED.values(), *ASKED.values(), *DENIED.values()])
def test_each_term_of_a_message_is_somewhere(text: str, words: str) -> None:
    """Nothing is lost but what refuses to forget, and the pairs of characters over the end of a part."""
    assert set(extract_terms(text).counts) - {"forget"} <= frozenset().union(*read_message_terms(text))
