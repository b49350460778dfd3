"""Define the rules that find secrets. Their patterns come from the library `detect-secrets`, from Holdfast, and from the user.

The library's patterns are made to detect *that* a file contains a secret. To remove a secret, a pattern must do more: it must find the
secret completely, and in time that is linear in the length of the text. Only patterns of the library that do both are used (a test
checks each), and a hit is extended to the end of its word. Where the library has no such pattern, Holdfast has its own. This is the case
for JSON web tokens, private keys, and the keys of OpenAI and npm, for example. The ids of these rules are well-known names.

The library's guesses by entropy and by names of variables are not used, because in conversations most of them are wrong. A public IP
address is not a secret.

To keep the search cheap, a pattern is only tried on texts that contain one of its rule's `signs`.

A user's pattern is checked when a process starts. Its running time cannot be predicted. So it runs in the `regex` module, which can stop a
search. A pattern that is slow on a few simple texts is rejected when it is checked. If it is slow on a later text, the search is stopped,
and the whole text is treated as a secret, because the rest of it was not searched.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest, MissingExtra
from holdfast.limits import PATTERN_CHARS, PATTERN_PROBE_SECONDS, PATTERN_SECONDS, PATTERN_SECONDS_A_MIB

Span = tuple[int, int]
EXTRA: Final = "secrets"


class Rule(msgspec.Struct, frozen=True):
    """A rule that finds one kind of secret."""

    id: str
    """Id of the rule. It is also the label in the marker that replaces a secret."""
    spans: Callable[[str], Iterator[Span]]
    """Yields the start and end of each secret in a text, in any order. No span is empty."""
    signs: tuple[str, ...] = ()
    """Lowercase strings, compared without regard to case. A text is only searched if it contains one of them. Empty: every text is searched."""
    word: int = 0
    """A text is only searched if one of its words has at least this many characters. Words are separated by white space."""


# -- Holdfast's own ------------------------------------------------------------

_TOKEN: Final = "A-Za-z0-9_-"  # noqa: S105  # characters, not a secret
_JWT: Final = rf"[{_TOKEN}]*+\.eyJ[{_TOKEN}]{{6,}}+(?:\.[{_TOKEN}]*+)?"
_OPENAI: Final = (
    rf"(?<![A-Za-z0-9])sk-(?:(?:proj|svcacct|admin|None)-[{_TOKEN}]{{20,}}+|[A-Za-z0-9]{{20,}}+)"
    rf"|(?<![{_TOKEN}])sk-[{_TOKEN}]*?T3BlbkFJ[{_TOKEN}]{{20,}}+"
)
# The format of shells; the library only recognizes it in quotes.
_AWS: Final = (
    r"(?i:aws[_-]?secret[_-]?access[_-]?key)[\"']?\s{0,8}+[:=]\s{0,8}+[\"']?"
    r"(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
)
# A key from its first to its last line. If there is no last line: the first line, and the text after it that looks like base64.
_PEM: Final = r"""
    -----BEGIN[ ](?:[A-Z0-9]{1,12}[ ]){0,4}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----
    (?:
        (?>(?:(?!-----(?:BEGIN|END)[ ])[\s\S]){0,20000}+-----END[ ][A-Z0-9 ]{1,60}-----)
      | (?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]{40,}+)++(?:(?:\s|\\[nr])++[A-Za-z0-9+/=]++)?
      |
    )
  | PuTTY-User-Key-File-[23]:
    (?:(?>(?:(?!PuTTY-User-Key-File-)[\s\S]){0,20000}?Private-MAC:[ ]?[0-9a-f]++)|[^\n]*+)
"""

_OWN: Final[tuple[tuple[str, str, tuple[str, ...], int], ...]] = (
    ("bearer_jwt", rf"(?i:bearer)\s{{1,8}}+(?=[{_TOKEN}]*?eyJ){_JWT}", (".eyj",), 13),
    ("jwt", rf"(?<![{_TOKEN}])(?=[{_TOKEN}]*?eyJ){_JWT}", (".eyj",), 13),
    ("anthropic_key", rf"sk-ant-[{_TOKEN}]{{20,}}+", ("sk-ant-",), 27),
    ("openai_key", _OPENAI, ("sk-",), 23),
    ("private_key", f"(?x){_PEM}", ("private key", "putty-user-key-file-"), 0),
    (
        "npm_token",
        rf"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{{36,}}+|(?<=_authToken=)[{_TOKEN}]{{36,}}+",
        ("npm_", "_auth"),
        36,
    ),
    ("github_token", r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{30,}+", ("github_pat_",), 40),
    ("google_api_key", rf"(?<![A-Za-z0-9])AIza[{_TOKEN}]{{35,}}+", ("aiza",), 39),
    ("huggingface_token", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}+", ("hf_",), 33),
    ("aws_secret_key", _AWS, ("aws",), 40),
    ("hex_token_64", r"(?<![A-Za-z0-9])[0-9A-Fa-f]{64,}+(?![A-Za-z0-9])", (), 64),
    (
        "home_path",
        r"(?:(?<![\w.~/-])|(?<=file://))/(?:home|Users)/[\w.@-]++|(?<![A-Za-z])[A-Za-z]:\\{1,2}Users\\{1,2}[^\\/:*?\"<>|\s]++",
        ("/home/", "/users/", "\\users\\"),
        0,
    ),
)
"""Rules of Holdfast: id, pattern, signs, minimum word length. The secret is the pattern's group `secret`, or else the whole match."""

# -- the library's rules ------------------------------------------------------------

LIBRARY_RULES: Final[tuple[tuple[str, str, tuple[int, ...], tuple[str, ...], int], ...]] = (
    ("artifactory_token", "artifactory.ArtifactoryDetector", (0,), ("akc",), 13),
    ("aws_access_key", "aws.AWSKeyDetector", (0,), ("akia", "asia", "abia", "acca", "a3t"), 20),
    ("aws_secret_key", "aws.AWSKeyDetector", (1,), ("aws",), 40),
    ("azure_storage_key", "azure_storage_key.AzureStorageKeyDetector", (0,), ("accountkey=",), 88),
    ("basic_auth", "basic_auth.BasicAuthDetector", (0,), ("://",), 7),
    ("cloudant_key", "cloudant.CloudantDetector", (0, 1, 2, 3), ("cloudant", "cl"), 24),
    ("discord_bot_token", "discord.DiscordBotTokenDetector", (0,), (".",), 58),
    ("github_token", "github_token.GitHubTokenDetector", (0,), ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), 40),
    ("gitlab_token", "gitlab_token.GitLabTokenDetector", tuple(range(7)), ("gl", "gr1348941"), 25),
    ("ibm_cloud_key", "ibm_cloud_iam.IbmCloudIamDetector", (0,), ("key", "pwd", "pass", "token"), 44),
    ("ibm_cos_key", "ibm_cos_hmac.IbmCosHmacDetector", (0,), ("secret",), 48),
    ("mailchimp_key", "mailchimp.MailchimpDetector", (0,), ("-us",), 36),
    ("pypi_token", "pypi_token.PypiTokenDetector", (0, 1), ("pypi-ag",), 85),
    ("sendgrid_key", "sendgrid.SendGridDetector", (0,), ("sg.",), 69),
    ("slack_token", "slack.SlackDetector", (0, 1), ("xox", "hooks.slack.com"), 8),
    ("softlayer_key", "softlayer.SoftlayerDetector", (0, 1), ("softlayer", "sl"), 64),
    ("square_secret", "square_oauth.SquareOAuthDetector", (0,), ("sq0csp-",), 50),
    ("stripe_key", "stripe.StripeDetector", (0,), ("k_live_",), 32),
    ("telegram_bot_token", "telegram_token.TelegramBotTokenDetector", (0,), (":",), 44),
    ("twilio_key", "twilio.TwilioKeyDetector", (0, 1), ("ac", "sk"), 34),
)
"""Rules of the library: id, module and class that contain the patterns, indices of the patterns, signs, minimum word length."""

RULES: Final[tuple[str, ...]] = tuple(sorted({*(row[0] for row in _OWN), *(row[0] for row in LIBRARY_RULES)}))
"""Ids of all built-in rules."""
PRIVATE: Final[tuple[str, ...]] = ("hex_token_64", "home_path")
"""Ids of the built-in rules whose hits are often no secrets: hashes, and names of home directories."""
CREDENTIALS: Final[tuple[str, ...]] = tuple(name for name in RULES if name not in PRIVATE)
"""Ids of all other built-in rules."""


def is_library_installed() -> bool:
    """Return True if the library `detect-secrets` is installed."""
    return find_spec("detect_secrets") is not None


def load_builtin_rules(ids: tuple[str, ...]) -> list[Rule]:
    """Return the built-in rules with these ids. Raise `MissingExtra` if a rule needs the library and the library is not installed."""
    own = [_make_own_rule(*row) for row in _OWN if row[0] in ids]
    return own + [_load_library_rule(*row) for row in LIBRARY_RULES if row[0] in ids]


def _make_own_rule(name: str, pattern: str, signs: tuple[str, ...], word: int) -> Rule:
    compiled = re.compile(pattern)
    return Rule(name, lambda text: _find_whole_words([compiled], text), signs, word)


def _load_library_rule(name: str, place: str, which: tuple[int, ...], signs: tuple[str, ...], word: int) -> Rule:
    module, _, plugin = place.partition(".")
    try:
        found = getattr(import_module(f"detect_secrets.plugins.{module}"), plugin)
    except ImportError as exc:
        raise MissingExtra("the search for secrets with built-in rules", EXTRA) from exc
    patterns = [_limit_spaces(tuple(found.denylist)[at]) for at in which]
    return Rule(name, lambda text: _find_whole_words(patterns, text), signs, word)


def _limit_spaces(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern of the library that accepts at most eight spaces in a row.

    On a long run of spaces, the library's `name = value` patterns try every way to split it, and they do so in three places.
    """
    text = pattern.pattern.replace("(?: *)", "(?: {0,8})").replace("| +|", "| {1,8}|")
    return re.compile(text, pattern.flags)


_BEFORE: Final = " \t\r\n=:\"'"
_AFTER: Final = " \t\r\n\"'"
"""Characters that a pattern may match after a secret, and that are not part of it."""
_WORD_END: Final = re.compile(rf"[{_TOKEN}]*+")


def _find_whole_words(patterns: list[re.Pattern[str]], text: str) -> Iterator[Span]:
    """Yield the spans of secrets in a text, without the characters around them.

    Each span is extended to the end of its word, because key formats get longer over the years.
    """
    for pattern in patterns:
        previous_end = 0
        for match in pattern.finditer(text):
            start, end = _get_secret_span(match)
            while start < end and text[start] in _BEFORE:
                start += 1
            while start < end and text[end - 1] in _AFTER:
                end -= 1
            if previous_end < end > start:
                found = _WORD_END.match(text, end)
                previous_end = found.end() if found else end
                yield start, previous_end


def _get_secret_span(match: re.Match[str]) -> Span:
    """Return the span of the secret in a match.

    If the pattern has a group `secret`, the secret is that group. Otherwise it is the last group that is at least `_MIN_GROUP_CHARS` long or
    at the end of the match; other groups are only prefixes. If there is no such group, it is the whole match.
    """
    names: Any = match.re.groupindex
    if "secret" in names:
        found = match.span("secret")
        return found if found[0] >= 0 else match.span()
    groups = [match.span(at) for at in range(1, match.re.groups + 1)]
    values = [(start, end) for start, end in groups if end - start >= _MIN_GROUP_CHARS or 0 <= match.end() - end <= 1]
    return values[-1] if values else match.span()


_MIN_GROUP_CHARS: Final = 16
"""A group with at least this many characters can be the secret wherever it is in a match. A shorter group only can if it is at the match's
end."""


ALL: Final = "all"
_LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROBE_CHARS: Final = 1_000
"""Length in characters of the texts on which a new pattern is tried. Longer texts are not needed to detect a search whose time is worse than
quadratic."""
_MAX_PROBE_CHARS: Final = 24


class Pattern(msgspec.Struct, frozen=True):
    """A user's own pattern. The secret is the group `secret` of a match, or else the whole match."""

    regex: str
    label: str
    """Label in the marker that replaces a secret: 1 to 64 letters, digits, `_`, `.` and `-`."""


def find_problems(pattern: str, label: str) -> list[tuple[str, str]]:
    """Return the problems of a user's pattern as pairs of field and message. The list is empty if the pattern is valid."""
    found = []
    if not _LABEL.fullmatch(label):
        found.append(("label", "must be 1 to 64 letters, digits, '_', '.' or '-'"))
    elif label in RULES:
        found.append(("label", f"{label!r} is the name of a built-in rule; choose another one"))
    reason = _find_regex_problem(pattern)
    return [*found, ("regex", reason)] if reason else found


def _find_regex_problem(pattern: str) -> str | None:
    import regex

    if len(pattern) > PATTERN_CHARS:
        return f"has {len(pattern)} characters; at most {PATTERN_CHARS} are allowed"
    try:
        compiled = regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError) as exc:
        return f"is not a valid regular expression: {exc}"
    for probe in _make_probes(pattern):
        try:
            if any(match.end() == match.start() for match in compiled.finditer(probe, timeout=PATTERN_PROBE_SECONDS)):
                return "matches the empty string; a match must have at least one character"
        except TimeoutError:
            return (
                f"took more than {PATTERN_PROBE_SECONDS:g} s on {len(probe)} characters: avoid backtracking,"
                " for example with fixed lengths or possessive repeats such as a++"
            )
    return None


def _make_probes(pattern: str) -> Iterator[str]:
    """Yield texts on which patterns with excessive backtracking are slow. Most of them repeat characters of the pattern itself."""
    yield ""
    yield "Word one, two: 3.14 /a-b_c@d.example \n\t \"x\" 'y' {z}"
    own = list(dict.fromkeys(char for char in pattern if char.isprintable()))
    for char in list(dict.fromkeys(["a", "0", " ", "-", *own]))[:_MAX_PROBE_CHARS]:
        yield char * _PROBE_CHARS + "\x00"
    words = "".join(own)
    yield (words * _PROBE_CHARS)[:_PROBE_CHARS] + "\x00"


def check_patterns(patterns: Sequence[Any], key: str = "patterns") -> None:
    """Raise `InvalidRequest` if a pattern is not valid. The error names the first such pattern.

    Args:
        patterns: the user's patterns.
        key: name of the list of patterns, for the error.
    """
    for at, pattern in enumerate(patterns):
        for field, message in find_problems(pattern.regex, pattern.label):
            place = f"{key}[{at}].{field}"
            raise InvalidRequest(f"{place}: {message}", param=place)


def make_rule(pattern: Any) -> Rule:
    """Create the rule for a user's pattern, which must have been checked before."""
    import regex

    compiled = regex.compile(pattern.regex)
    return Rule(pattern.label, lambda text: find_matches(compiled, text))


def find_matches(compiled: Any, text: str) -> Iterator[Span]:
    """Yield the spans of secrets that a user's pattern matches.

    A search that takes too long is repeated once, because the machine may have been busy. If it takes too long again, the result is the
    whole text.
    """
    group = "secret" if "secret" in compiled.groupindex else 0
    seconds = PATTERN_SECONDS + PATTERN_SECONDS_A_MIB * len(text) / (1 << 20)
    for _ in range(2):
        try:
            spans = [match.span(group) for match in compiled.finditer(text, timeout=seconds, concurrent=True)]
        except TimeoutError:
            continue
        yield from (span for span in spans if span[0] < span[1])
        return
    yield 0, len(text)


# -- choosing built-in rules -------------------------------------------------------


def find_unknown(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names that are not ids of built-in rules, each with an error message."""
    return [(name, _describe_unknown(name)) for name in names if name not in RULES and name != ALL]


def _describe_unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower().replace("-", "_"), RULES, n=1)
    return f"unknown rule {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(RULES)}")


def choose_rules(
    rules: Sequence[str] | str, exclude: Sequence[str] = (), *, everything: Sequence[str] = CREDENTIALS
) -> tuple[str, ...]:
    """Return the ids of the built-in rules that a user chooses. Raise `InvalidRequest` if an id is unknown.

    Args:
        rules: ids of rules, or `all`.
        exclude: ids of rules to leave out.
        everything: the ids that `all` stands for.
    """
    wanted = (rules,) if isinstance(rules, str) else tuple(rules)
    for key, names in (("rules", wanted), ("exclude_rules", exclude)):
        for _, message in find_unknown(names):
            raise InvalidRequest(f"{key}: {message}", param=key)
    named = everything if ALL in wanted else wanted
    return tuple(name for name in RULES if (name in named or name in wanted) and name not in exclude)
