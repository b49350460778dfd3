"""Secrets in text: found by rules, taken out before the text goes anywhere. Text in, text out: no store, no clock.

    redactor = redactor_of(config.redaction)        # None: redaction is off
    redactor.redacted("key sk-ant-…")               # "key [REDACTED:anthropic_key]"
    redactor.redacted_value({"note": ["…", 1]})     # any JSON value, walked; keys too
    redactor.redacted_json('{"key":"…"}')           # JSON as text, which stays valid JSON
    redactor.hits                                   # Counter: what was replaced so far, by rule

A `Guard` does that to whole messages, with what the configuration's `redaction` and `secret_guard` say; `guard_of` makes it.
All three `redacted…` methods change nothing in what they have changed before.

rules     what is looked for: a library's patterns, a few of our own, the user's
redactor  where it is in a text, and what replaces it
guard     messages, and what happens to them
"""

from holdfast.secrets.guard import Action, Finding, Guard, Sweep, guard_of
from holdfast.secrets.redactor import Hit, Redactor, make_redactor, redactor_of
from holdfast.secrets.rules import CREDENTIALS, PRIVATE, RULES, Pattern

__all__ = [
    "CREDENTIALS",
    "PRIVATE",
    "RULES",
    "Action",
    "Finding",
    "Guard",
    "Hit",
    "Pattern",
    "Redactor",
    "Sweep",
    "guard_of",
    "make_redactor",
    "redactor_of",
]
