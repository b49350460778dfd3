"""Find secrets in text by rules, and replace them before the text is stored or sent. This package uses no store and no clock.

    redactor = make_redactor_for(config.redaction)  # None: redaction is off
    redactor.redacted("key sk-ant-…")               # "key [REDACTED:anthropic_key]"
    redactor.redacted_value({"note": ["…", 1]})     # any JSON value, including keys
    redactor.redacted_json('{"key":"…"}')           # JSON as text, which stays valid JSON
    redactor.hits                                   # Counter: replaced secrets, by rule

A `Guard`, which `make_guard` creates, applies the configuration sections `redaction` and `secret_guard` to whole messages. The result of a
`redacted…` method does not change if the same method is called on it again.

rules     the patterns that find secrets: those of a library, of Holdfast, and of the user
redactor  finds and replaces secrets in a text
guard     applies redaction and the guard's action to messages
"""
