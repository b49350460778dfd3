"""Find secrets in text by rules, and replace them before the text is stored or sent. Pure: no store, no clock.

    redactor = make_redactor_for(config.redaction)  # None: redaction is off
    redactor.redacted("key sk-ant-…")               # "key [REDACTED:anthropic_key]"
    redactor.redacted_value({"note": ["…", 1]})     # any JSON value, including keys
    redactor.redacted_json('{"key":"…"}')           # JSON as text, which stays valid JSON
    redactor.hits                                   # Counter: replaced secrets, by rule

A `Guard` does this to whole messages, as configured by `redaction` and `secret_guard`; `make_guard` creates it. All three `redacted…`
methods leave text unchanged that they have processed before.

rules     patterns: a library's, Holdfast's own, and the user's
redactor  finding and replacing secrets in a text
guard     messages, and the action for secrets
"""

from holdfast.secrets.guard import Action, Finding, Guard, Sweep, make_guard
from holdfast.secrets.redactor import Hit, Redactor, make_redactor, make_redactor_for
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
    "make_guard",
    "make_redactor",
    "make_redactor_for",
]
