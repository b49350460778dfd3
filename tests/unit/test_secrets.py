"""Secrets in texts: every rule removes its secret completely and nothing else, in linear time."""

from __future__ import annotations

import base64
import inspect
import json
import string
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest, MissingExtra
from holdfast.secrets import rules as own_patterns
from holdfast.secrets import rules as rule_table
from holdfast.secrets.redactor import make_redactor
from holdfast.secrets.rules import CREDENTIALS, PRIVATE, RULES, Pattern
from tests.amounts import examples

BUILT_IN = make_redactor()

UPPER, LOWER, DIGITS, HEX = string.ascii_uppercase, string.ascii_lowercase, string.digits, "0123456789abcdef"
ALNUM = string.ascii_letters + DIGITS
TOKEN = ALNUM + "_-"


def chars(alphabet: str, low: int, high: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=low, max_size=high or low)


def after(head: str, *parts: st.SearchStrategy[str], tail: str = "") -> st.SearchStrategy[tuple[str, str, str]]:
    """Return a strategy for the text before a secret, the secret, and the text after it."""
    return st.tuples(st.just(head), st.tuples(*parts).map("".join), st.just(tail))


def jwt_part(low: int) -> st.SearchStrategy[str]:
    return st.dictionaries(chars(LOWER, 3, 6), chars(ALNUM, low, 30), min_size=1, max_size=3).map(
        lambda said: base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
    )


def jwt() -> st.SearchStrategy[str]:
    return st.tuples(jwt_part(1), jwt_part(8), chars(TOKEN, 20, 90)).map(".".join)


def pem() -> st.SearchStrategy[str]:
    lines = st.lists(chars(ALNUM + "+/", 64), min_size=1, max_size=6)
    kinds = st.sampled_from(["RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED "])
    return st.tuples(kinds, lines, chars(ALNUM, 4, 60), st.sampled_from(["\n", "\\n"])).map(
        lambda made: made[3].join(
            [f"-----BEGIN {made[0]}PRIVATE KEY-----", *made[1], made[2], f"-----END {made[0]}PRIVATE KEY-----"]
        )
    )


SECRETS: dict[str, st.SearchStrategy[tuple[str, str, str]]] = {
    "anthropic_key": after("", st.just("sk-ant-"), chars(TOKEN, 20, 110)),
    "artifactory_token": after("", st.just("AKC"), chars(ALNUM, 10, 70)),
    "aws_access_key": after("", st.sampled_from(["AKIA", "ASIA", "ABIA", "ACCA"]), chars(UPPER + DIGITS, 16)),
    "aws_secret_key": st.one_of(
        after("aws_secret_access_key = '", chars(ALNUM + "/+", 40), tail="'"),
        after("AWS_SECRET_ACCESS_KEY=", chars(ALNUM + "/+", 40)),
    ),
    "azure_storage_key": after("", st.just("AccountKey="), chars(ALNUM + "+/", 86), st.just("==")),
    "basic_auth": after("postgresql://ada:", chars(ALNUM + "-_.~%", 12, 30), tail="@db.example/chat"),
    "bearer_jwt": after("", st.sampled_from(["Bearer ", "bearer  "]), jwt()),
    "cloudant_key": after('cloudant_password = "', chars(HEX, 64), tail='"'),
    "discord_bot_token": after(
        "", st.sampled_from("MNO"), chars(ALNUM, 23), st.just("."), chars(ALNUM, 6), st.just("."), chars(ALNUM, 27)
    ),
    "github_token": st.one_of(
        after("", st.sampled_from(["ghp_", "gho_", "ghu_", "ghs_", "ghr_"]), chars(ALNUM, 36, 60)),
        after("", st.just("github_pat_"), chars(ALNUM + "_", 82)),
    ),
    "gitlab_token": after("", st.sampled_from(["glpat-", "gldt-", "glrt-"]), chars(ALNUM, 20, 40)),
    "google_api_key": after("", st.just("AIza"), chars(TOKEN, 35)),
    "hex_token_64": after("", chars(HEX, 64, 128)),
    "home_path": after("", st.sampled_from(["/home/", "/Users/", "C:\\Users\\"]), chars(LOWER, 1, 12)),
    "huggingface_token": after("", st.just("hf_"), chars(ALNUM, 34)),
    "ibm_cloud_key": after('ibm_cloud_iam_api_key = "', chars(ALNUM, 44), tail='"'),
    "ibm_cos_key": after("cos_hmac_secret_access_key: ", chars(HEX, 48)),
    "jwt": after("", jwt()),
    "mailchimp_key": after("", chars(HEX, 32), st.just("-us1")),
    "npm_token": st.one_of(
        after("//registry.npmjs.example/:_authToken=", chars(HEX, 8), st.just("-"), chars(HEX, 27)),
        after("", st.just("npm_"), chars(ALNUM, 36)),
    ),
    "openai_key": st.one_of(
        after("", st.just("sk-"), chars(ALNUM, 20, 60)),
        after("", st.sampled_from(["sk-proj-", "sk-svcacct-", "sk-admin-"]), chars(TOKEN, 20, 150)),
        after("", st.just("sk-my-project-"), chars(ALNUM, 20), st.just("T3BlbkFJ"), chars(ALNUM, 20)),
    ),
    "private_key": after("", pem()),
    "pypi_token": after("", st.just("pypi-AgEIcHlwaS5vcmc"), chars(TOKEN, 70, 150)),
    "sendgrid_key": after("", st.just("SG."), chars(TOKEN, 22), st.just("."), chars(TOKEN, 43)),
    "slack_token": st.one_of(
        after("", st.sampled_from(["xoxb-", "xoxp-"]), chars(DIGITS, 10), st.just("-"), chars(ALNUM, 24)),
        after(
            "",
            st.just("https://hooks.slack.com/services/T0"),
            chars(UPPER, 8),
            st.just("/B0"),
            chars(UPPER, 8),
            st.just("/"),
            chars(ALNUM, 24),
        ),
    ),
    "softlayer_key": after('softlayer_api_key = "', chars(HEX + "xyz", 64), tail='"'),
    "square_secret": after("", st.just("sq0csp-"), chars(ALNUM, 43)),
    "stripe_key": after("", st.sampled_from(["sk_live_", "rk_live_"]), chars(ALNUM, 24, 100)),
    "telegram_bot_token": after("", chars(DIGITS, 8, 10), st.just(":"), chars(ALNUM, 35)),
    "twilio_key": after("", st.sampled_from(["AC", "SK"]), chars(HEX, 32)),
}
"""The secrets of each rule, with the text that may surround them."""

PROSE = st.text(st.sampled_from("abc déf, 日本. \n\t😀 (it) 12"), max_size=60)


@st.composite
def draw_planted(draw: st.DrawFn) -> tuple[str, str, str, str]:
    """Draw a rule, the text before one of its secrets, the secret, and the text after it."""
    rule = draw(st.sampled_from(sorted(SECRETS)))
    head, secret, tail = draw(SECRETS[rule])
    return rule, f"{draw(PROSE)} {head}", secret, f"{tail} {draw(PROSE)}"


def test_every_rule_has_example_secrets() -> None:
    assert sorted(SECRETS) == sorted(RULES)
    assert sorted((*CREDENTIALS, *PRIVATE)) == sorted(RULES)
    assert {"bearer_jwt", "anthropic_key", "openai_key", "aws_access_key", "hex_token_64", "home_path"} <= {*RULES}


# -- texts -------------------------------------------------------------------------


@given(draw_planted())
@settings(max_examples=examples(600))
def test_only_the_planted_secret_is_redacted(plant: tuple[str, str, str, str]) -> None:
    rule, before, secret, behind = plant
    assume(secret not in f"{before} {behind} [REDACTED:{rule}]")  # "111" may be a word as well
    told = BUILT_IN.redacted(before + secret + behind)
    assert secret not in told
    assert told.startswith(before)
    assert told.endswith(behind)
    middle = told[len(before) : len(told) - len(behind)]
    assert middle.startswith("[REDACTED:")
    assert middle.endswith("]")
    assert BUILT_IN.redacted(told) == told
    assert rule in RULES


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_labels_its_own_secrets(rule: str) -> None:
    alone = make_redactor(rules=[rule])

    @given(SECRETS[rule])
    @settings(max_examples=examples(25))
    def check(plant: tuple[str, str, str]) -> None:
        head, secret, tail = plant
        assume(secret not in f"so {head} {tail} it is [REDACTED:{rule}]")
        told = alone.redacted(f"so {head}{secret}{tail} it is")
        assert f"[REDACTED:{rule}]" in told
        assert secret not in told
        assert make_redactor(exclude_rules=[rule]).redacted(told) == told

    check()


@given(st.lists(draw_planted(), min_size=2, max_size=5), st.sampled_from(["", " ", "\n", ";", '"', "-"]))
@settings(max_examples=examples(200))
def test_adjacent_secrets_are_all_redacted(plants: list[tuple[str, str, str, str]], between: str) -> None:
    text = between.join(before + secret + behind for _, before, secret, behind in plants)
    told = BUILT_IN.redacted(text)
    assert not [secret for _, _, secret, _ in plants if secret in told]
    assert BUILT_IN.redacted(told) == told
    assert not BUILT_IN.find(told)


ORDINARY = [
    "Please read src/holdfast/secrets/rules.py and tell me what sk-learn-compatible-estimators-are-for-here means.",
    "commit 9e4c273a1b2c3d4e5f60718293a4b5c6d7e8f901, md5 d41d8cd98f00b204e9800998ecf8427e",
    "https://example.com/home/index.html?token=off and https://user@example.com/x, http://localhost:8080/a:b@c",
    "The key is: patience. My password hint? Ask tomorrow. secret key = none; token: null, api_key=${API_KEY}",
    "6ba7b810-9dad-11d1-80b4-00c04fd430c8 at 12:34:56.789, +1 (555) 123-4567, 2024-05-15T15:00:00Z",
    "BEGINNING of the PRIVATE KEY discussion; a bearer of news; eyJust.a.sentence.with.dots; risk-antagonist-behaviours",
    "task-ABCDEFGHIJKLMNOPQRSTUVWXYZ disk-abcdefghijklmnopqrstuvwxyz AC/DC and SK Telecom, xoxo- love",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert BUILT_IN.find(text) == []
    assert BUILT_IN.redacted(text) is text


def test_text_around_a_secret_stays_readable() -> None:
    redact = BUILT_IN.redacted
    assert redact("postgres://ada:s3cr3t@db/x") == "postgres://ada:[REDACTED:basic_auth]@db/x"
    assert redact('AWS_SECRET_ACCESS_KEY="' + "aB3/" * 10 + '"') == 'AWS_SECRET_ACCESS_KEY="[REDACTED:aws_secret_key]"'
    assert redact('t="AKC' + "a1" * 10 + '"\n') == 't="[REDACTED:artifactory_token]"\n'
    assert redact("/home/ada/x /Users/bob") == "[REDACTED:home_path]/x [REDACTED:home_path]"
    assert redact("file:///home/ada/x") == "file://[REDACTED:home_path]/x"


def test_an_incomplete_private_key_is_redacted_to_its_end() -> None:
    body = "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *["A1b2" * 16] * 3, "Cd3"])
    assert BUILT_IN.redacted(f"{body}\n\nand so on") == "[REDACTED:private_key]\n\nand so on"
    assert (
        BUILT_IN.redacted("-----BEGIN PRIVATE KEY----- is how it begins") == "[REDACTED:private_key] is how it begins"
    )
    putty = "PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 1\nAAAA\nPrivate-MAC: 00ff\nend"
    assert BUILT_IN.redacted(putty) == "[REDACTED:private_key]\nend"


def test_secrets_next_to_markers_and_data_urls_are_redacted() -> None:
    key = "sk-ant-" + "a1" * 30
    for text in (
        f"[REDACTED:{key}]",
        f"[REDACTED:jwt]{key}",
        f"data:text/plain;base64,AAAA {key}",
        f"data:{key};base64,AAAA",
        f"data:x;base64,{key}",
    ):
        assert key not in BUILT_IN.redacted(text), text


# -- JSON ----------------------------------------------------------------------------

JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**6), 10**6), PROSE, st.floats(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(PROSE, inner, max_size=4)),
    max_leaves=12,
)


@given(JSON, draw_planted(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=examples(300))
def test_redacted_json_stays_valid(
    value: Any, plant: tuple[str, str, str, str], as_key: bool, escaped: bool, spaced: bool
) -> None:
    _, before, secret, behind = plant
    said = before + secret + behind
    whole = {"first": value, **({said: 1} if as_key else {"list": [said, {"deep": said}]})}
    text = json.dumps(whole, ensure_ascii=escaped, indent=2 if spaced else None)
    told = json.loads(BUILT_IN.redacted_json(text))
    expected = BUILT_IN.redacted(said)
    assert told == {"first": value, **({expected: 1} if as_key else {"list": [expected, {"deep": expected}]})}
    assert BUILT_IN.redacted_value(whole) == told
    again = BUILT_IN.redacted_json(text)
    assert BUILT_IN.redacted_json(again) == again


@given(JSON)
def test_json_without_a_secret_is_the_same_object(value: Any) -> None:
    text = json.dumps(value)
    assert BUILT_IN.redacted_json(text) is text
    assert BUILT_IN.redacted_value(value) is value


def test_the_rest_of_redacted_json_is_byte_identical() -> None:
    key = "sk-ant-" + "a1" * 30
    text = '{ "n": 1.10, "big": 12345678901234567890123, "\\u00e9": "\\/",\n "k": "\\n' + key + '"}'
    assert BUILT_IN.redacted_json(text) == text.replace(key, "[REDACTED:anthropic_key]")
    assert BUILT_IN.redacted_json(f"no json {key}") == "no json [REDACTED:anthropic_key]"
    assert BUILT_IN.redacted_json('{"half": "\\ud83d ' + key + '"}') == '{"half": "\\ud83d [REDACTED:anthropic_key]"}'


def test_key_names_identify_secret_values() -> None:
    secret = "aB3/" * 10
    value = {"aws_secret_access_key": secret, "n": ["x"]}
    told = {"aws_secret_access_key": "[REDACTED:aws_secret_key]", "n": ["x"]}
    assert BUILT_IN.redacted_value(value) == told
    assert json.loads(BUILT_IN.redacted_json(json.dumps(value))) == told
    mine = make_redactor(rules=[], patterns=[Pattern(r"(?i)password\W{1,4}(?P<secret>\S+)", "password")])
    assert mine.redacted("password: hunter2 it is") == "password: [REDACTED:password] it is"
    assert mine.redacted_value({"password": "hunter2"}) == {"password": "[REDACTED:password]"}
    assert mine.redacted_value({"password": "[REDACTED:password]"}) == {"password": "[REDACTED:password]"}


def test_numbers_are_redacted() -> None:
    cards = make_redactor(rules=[], patterns=[Pattern(r"\b4\d{15}\b", "card")])
    assert cards.redacted_value({"card": 4111111111111111, "n": 41}) == {"card": "[REDACTED:card]", "n": 41}
    assert cards.redacted_json('{"card":4111111111111111,"n":41}') == '{"card":"[REDACTED:card]","n":41}'


# -- custom patterns ----------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "label", "field"),
    [
        ("(", "x", "regex"),
        ("a*", "x", "regex"),
        (r"\b", "x", "regex"),
        ("", "x", "regex"),
        ("x" * 10_001, "x", "regex"),
        ("a", "", "label"),
        ("a", "two words", "label"),
        ("a", "x]", "label"),
        ("a", "jwt", "label"),
    ],
)
def test_an_invalid_pattern_is_rejected_with_its_index(pattern: str, label: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_redactor(rules=[], patterns=[Pattern("fine", "fine"), Pattern(pattern, label)])
    assert caught.value.param == f"patterns[1].{field}"
    assert str(caught.value).startswith(f"patterns[1].{field}: ")


def test_a_slow_pattern_is_rejected() -> None:
    slow = r"(?:0+0+)+(?:0+0+)+1\b"
    [(field, message)] = own_patterns.find_problems(slow, "slow")
    assert field == "regex"
    assert "took more than 0.5 s on 1001 characters" in message


def test_a_pattern_timeout_redacts_the_whole_text() -> None:
    class Stuck:
        groupindex: ClassVar[dict[str, int]] = {}

        def finditer(self, text: str, **limits: Any) -> Iterator[Any]:
            assert 1 <= limits["timeout"] < 2
            raise TimeoutError

    assert list(own_patterns.find_matches(Stuck(), "some text")) == [(0, 9)]


def test_an_unknown_rule_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown rule 'openai-keys'; did you mean 'openai_key'\?"):
        make_redactor(rules=["openai-keys"])
    with pytest.raises(InvalidRequest, match=r"exclude_rules: unknown rule 'qq'; known: anthropic_key, "):
        make_redactor(exclude_rules=["qq"])


def test_rules_can_be_selected_and_excluded() -> None:
    text = "/home/ada AKIA" + "A" * 16
    assert make_redactor(rules=["home_path"]).redacted(text) == "[REDACTED:home_path] AKIA" + "A" * 16
    assert make_redactor(exclude_rules=["home_path"]).redacted(text) == "/home/ada [REDACTED:aws_access_key]"
    assert make_redactor(rules=[]).redacted(text) == text
    assert make_redactor(everything=CREDENTIALS).redacted(text) == "/home/ada [REDACTED:aws_access_key]"


def test_only_custom_patterns_work_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(rule_table, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"extra 'secrets' of holdfast-memory"):
        make_redactor()
    assert make_redactor(rules=[], patterns=[Pattern("abc", "x")]).redacted("abcd") == "[REDACTED:x]d"


LEFT_OUT = {
    "IPPublicDetector": "an address is no secret",
    "JwtTokenDetector": "leaves the signature",
    "KeywordDetector": "guesses by names of variables",
    "NpmDetector": "quadratic",
    "OpenAIDetector": "quadratic",
    "PrivateKeyDetector": "finds the first line only",
    "Base64HighEntropyString": "guesses",
    "HexHighEntropyString": "guesses",
    "HighEntropyStringsPlugin": "guesses",
}


def test_every_library_detector_is_used_or_listed_as_left_out() -> None:
    import detect_secrets.plugins as library
    from detect_secrets.plugins.base import BasePlugin

    found = set()
    for module in iter_modules(library.__path__):
        for name, plugin in vars(import_module(f"detect_secrets.plugins.{module.name}")).items():
            if inspect.isclass(plugin) and issubclass(plugin, BasePlugin) and module.name != "base":
                found.add(name)
    used = {row[1].partition(".")[2] for row in rule_table.LIBRARY_RULES}
    assert found - used - LEFT_OUT.keys() <= {"BasePlugin", "RegexBasedDetector", "LineBasedPlugin"}
    for _, place, which, _, _ in rule_table.LIBRARY_RULES:
        module_name, _, plugin_name = place.partition(".")
        denylist = tuple(getattr(import_module(f"detect_secrets.plugins.{module_name}"), plugin_name).denylist)
        left = set(range(len(denylist))) - {at for row in rule_table.LIBRARY_RULES if row[1] == place for at in row[2]}
        assert left == ({1} if plugin_name == "ArtifactoryDetector" else set()), place
        assert max(which) < len(denylist)


# -- time ------------------------------------------------------------------------------

MIB = 1 << 20
LONG = MIB // 8
HEADS = {
    "artifactory_token": ["=AKC"],
    "aws_access_key": ["AKIA"],
    "aws_secret_key": ["aws key '", "AWS_SECRET_ACCESS_KEY="],
    "basic_auth": ["://a:"],
    "bearer_jwt": ["Bearer eyJ", "bearer eyJa.eyJ"],
    "cloudant_key": ['cloudant_key = "', "http://x:"],
    "discord_bot_token": ["Maaaaaaaaaaaaaaaaaaaaaaaa."],
    "gitlab_token": ["glpat-", "glcbt-", "glagent-"],
    "home_path": ["/Users/a"],
    "ibm_cloud_key": ["ibm_cloud_iam_key:"],
    "ibm_cos_key": ["cos_hmac_secret_key ="],
    "jwt": ["eyJ", "eyJa.eyJ"],
    "npm_token": ["//:_authToken="],
    "openai_key": ["sk-proj-", "sk-T3BlbkFJ"],
    "private_key": ["-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA ", "PuTTY-User-Key-File-2:"],
    "slack_token": ["xoxb-1-", "https://hooks.slack.com/services/T"],
    "softlayer_key": ["sl_api_key=", "http://api.softlayer.com/soap/v3/"],
    "telegram_bot_token": ["12345678:"],
    "twilio_key": ["SK"],
}
"""Beginnings of the patterns that are not in their `signs`."""
TAILS = ["", "a", "0", " ", "-", ".", "a1-", "\\n", "_=", "f" * 70 + " "]


@pytest.mark.slow
@pytest.mark.parametrize("rule", rule_table.load_builtin_rules(RULES), ids=lambda rule: rule.id)
def test_every_rule_takes_linear_time(rule: rule_table.Rule) -> None:
    """The texts are adversarial; a quadratic pattern would not finish on them."""
    for head in (*rule.signs, *HEADS.get(rule.id, ("z",))):
        for tail in TAILS:
            again, filler = head + tail, tail or "a"
            for text in (again * (LONG // len(again)), head + filler * (LONG // len(filler)) + "!"):
                assert sum(1 for _ in rule.spans(text)) <= len(text)


@pytest.mark.parametrize("text", ["a" * MIB, "/home/a " * (MIB // 8), "sk-ant-" * (MIB // 7), "eyJa.eyJ" * (MIB // 8)])
def test_a_megabyte_is_redacted_in_time(text: str) -> None:
    assert isinstance(BUILT_IN.redacted(text), str)
