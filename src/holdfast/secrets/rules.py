"""What is looked for: patterns of `detect-secrets`, ours where that library has none or only finds where a secret begins, and the user's.

The library's patterns are made to say *that* a file holds a secret. Removing one needs more: all of it has to be found,
in time that grows with the text and no faster. So of its pattern lists those are used of which both is true (a test checks
each), a hit is widened to the end of the word it is in, and for the rest (JSON web tokens, private keys, OpenAI's and
npm's keys) patterns of our own are used under the names that people know. Its guesses by entropy and by names of variables
are left out: in a conversation they are wrong more often than not. A public IP address is no secret.

No pattern is tried on a text that has none of its rule's `signs`: that keeps searching cheap.

A user's pattern is checked when a process starts. It runs in the `regex` module, which can be stopped, since nobody can tell how long an
expression may search. One that is slow on a handful of simple texts is refused at once; one that is slow later on some text is stopped,
and then all of that text counts as a hit, since nothing is known of it.
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
    """One kind of secret."""

    id: str
    """Its name, and the label of what stands in its place."""
    spans: Callable[[str], Iterator[Span]]
    """Where it is in a text: none of them empty, in no certain order."""
    signs: tuple[str, ...] = ()
    """In lower case; a text without any of them has no hit. Empty: every text is looked at."""
    word: int = 0
    """Characters that the longest run without white space has at least, in a text with a hit."""


# -- our own -------------------------------------------------------------------

_TOKEN: Final = "A-Za-z0-9_-"  # noqa: S105  # characters, not a secret
_JWT: Final = rf"[{_TOKEN}]*+\.eyJ[{_TOKEN}]{{6,}}+(?:\.[{_TOKEN}]*+)?"
_OPENAI: Final = (
    rf"(?<![A-Za-z0-9])sk-(?:(?:proj|svcacct|admin|None)-[{_TOKEN}]{{20,}}+|[A-Za-z0-9]{{20,}}+)"
    rf"|(?<![{_TOKEN}])sk-[{_TOKEN}]*?T3BlbkFJ[{_TOKEN}]{{20,}}+"
)
# As it stands in a shell; the library knows it in quotes only.
_AWS: Final = (
    r"(?i:aws[_-]?secret[_-]?access[_-]?key)[\"']?\s{0,8}+[:=]\s{0,8}+[\"']?"
    r"(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
)
# A key between its lines; without the last line, what looks like base64 behind the first.
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
"""Id, pattern, signs, word. What a group `secret` holds is the secret, else all that matches."""

# -- the library's ---------------------------------------------------------------

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
"""Id, where its patterns are, which of them, signs, word."""

RULES: Final[tuple[str, ...]] = tuple(sorted({*(row[0] for row in _OWN), *(row[0] for row in LIBRARY_RULES)}))
"""Ids of all built-in rules."""
PRIVATE: Final[tuple[str, ...]] = ("hex_token_64", "home_path")
"""Of those the ones whose hits need not be secrets: a directory's name, a hash."""
CREDENTIALS: Final[tuple[str, ...]] = tuple(name for name in RULES if name not in PRIVATE)
"""The others."""


def installed() -> bool:
    """Whether the library is there that the built-in rules need."""
    return find_spec("detect_secrets") is not None


def builtin_rules(ids: tuple[str, ...]) -> list[Rule]:
    """The built-in rules of these ids. Raises `MissingExtra` where the library is needed and not there."""
    own = [_own(*row) for row in _OWN if row[0] in ids]
    return own + [_borrowed(*row) for row in LIBRARY_RULES if row[0] in ids]


def _own(name: str, pattern: str, signs: tuple[str, ...], word: int) -> Rule:
    compiled = re.compile(pattern)
    return Rule(name, lambda text: _widened([compiled], text), signs, word)


def _borrowed(name: str, place: str, which: tuple[int, ...], signs: tuple[str, ...], word: int) -> Rule:
    module, _, plugin = place.partition(".")
    try:
        found = getattr(import_module(f"detect_secrets.plugins.{module}"), plugin)
    except ImportError as exc:
        raise MissingExtra("looking for secrets with the built-in rules", EXTRA) from exc
    patterns = [_bounded(tuple(found.denylist)[at]) for at in which]
    return Rule(name, lambda text: _widened(patterns, text), signs, word)


def _bounded(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """The library's `name = value` patterns try every split of a run of spaces, three times over: eight spaces will do."""
    text = pattern.pattern.replace("(?: *)", "(?: {0,8})").replace("| +|", "| {1,8}|")
    return re.compile(text, pattern.flags)


_BEFORE: Final = " \t\r\n=:\"'"
_BEHIND: Final = " \t\r\n\"'"
"""What patterns take along with a secret."""
_WORD_END: Final = re.compile(rf"[{_TOKEN}]*+")


def _widened(patterns: list[re.Pattern[str]], text: str) -> Iterator[Span]:
    """Hits without what only surrounds them, up to the end of their word: formats get longer over the years."""
    for pattern in patterns:
        behind = 0
        for match in pattern.finditer(text):
            start, end = _secret_of(match)
            while start < end and text[start] in _BEFORE:
                start += 1
            while start < end and text[end - 1] in _BEHIND:
                end -= 1
            if behind < end > start:
                behind = _end_of_word(text, end)
                yield start, behind


def _secret_of(match: re.Match[str]) -> Span:
    """The secret in a match: its own group where there is one, else the last that is no mere prefix, else all."""
    names: Any = match.re.groupindex
    if "secret" in names:
        found = match.span("secret")
        return found if found[0] >= 0 else match.span()
    groups = [match.span(at) for at in range(1, match.re.groups + 1)]
    values = [(start, end) for start, end in groups if end - start >= _LEAST_GROUP or 0 <= match.end() - end <= 1]
    return values[-1] if values else match.span()


_LEAST_GROUP: Final = 16
"""Characters from which a group of a library's pattern is the secret wherever it stands; a shorter one has to stand last."""


def _end_of_word(text: str, at: int) -> int:
    found = _WORD_END.match(text, at)
    return found.end() if found else at


ALL: Final = "all"
_LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROBE: Final = 1_000
"""Characters of a text that a new pattern is tried on: enough for a search that is worse than quadratic to show."""
_PROBES_MOST: Final = 24


class Pattern(msgspec.Struct, frozen=True):
    """A rule of the user's: what matches is a secret; only its group `secret`, where there is one."""

    regex: str
    label: str
    """Letters, digits, `_`, `.`, `-`; at most 64."""


def trouble(pattern: str, label: str) -> list[tuple[str, str]]:
    """What is wrong with a pattern of the user's, as (field, message); empty when nothing is."""
    found = []
    if not _LABEL.fullmatch(label):
        found.append(("label", "must be 1 to 64 letters, digits, '_', '.' or '-'"))
    elif label in RULES:
        found.append(("label", f"{label!r} is a built-in rule; give it another name"))
    reason = _wrong(pattern)
    return [*found, ("regex", reason)] if reason else found


def _wrong(pattern: str) -> str | None:
    import regex

    if len(pattern) > PATTERN_CHARS:
        return f"has {len(pattern)} characters; a pattern may have {PATTERN_CHARS}"
    try:
        compiled = regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError) as exc:
        return f"is no regular expression: {exc}"
    for probe in _probes(pattern):
        try:
            if any(match.end() == match.start() for match in compiled.finditer(probe, timeout=PATTERN_PROBE_SECONDS)):
                return "matches nothing at all: what is replaced must have a character"
        except TimeoutError:
            return (
                f"took more than {PATTERN_PROBE_SECONDS:g} s on {len(probe)} characters: write it so that it does not try"
                " a text in every way, with fixed lengths or possessive repeats such as a++"
            )
    return None


def _probes(pattern: str) -> Iterator[str]:
    """Texts that a pattern which backtracks too much is slow on: its own characters, again and again."""
    yield ""
    yield "Word one, two: 3.14 /a-b_c@d.example \n\t \"x\" 'y' {z}"
    own = list(dict.fromkeys(char for char in pattern if char.isprintable()))
    for char in list(dict.fromkeys(["a", "0", " ", "-", *own]))[:_PROBES_MOST]:
        yield char * _PROBE + "\x00"
    words = "".join(own)
    yield (words * _PROBE)[:_PROBE] + "\x00"


def check(patterns: Sequence[Any], key: str = "patterns") -> None:
    """Refuse patterns that cannot be used; the error names the place of the first. Raises `InvalidRequest`."""
    for at, pattern in enumerate(patterns):
        for field, message in trouble(pattern.regex, pattern.label):
            place = f"{key}[{at}].{field}"
            raise InvalidRequest(f"{place}: {message}", param=place)


def own_rule(pattern: Any) -> Rule:
    """The rule that a pattern of the user's is; it was checked before."""
    import regex

    compiled = regex.compile(pattern.regex)
    return Rule(pattern.label, lambda text: find_matches(compiled, text))


def find_matches(compiled: Any, text: str) -> Iterator[Span]:
    """Where it is. A search that takes too long is begun once more: the machine may have been busy."""
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


# -- which of the built-in ones ----------------------------------------------------


def unknown(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names that are no built-in rule's, each with what to say of it."""
    return [(name, _meant(name)) for name in names if name not in RULES and name != ALL]


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name.lower().replace("-", "_"), RULES, n=1)
    return f"no rule {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(RULES)}")


def chosen(
    rules: Sequence[str] | str, exclude: Sequence[str] = (), *, everything: Sequence[str] = CREDENTIALS
) -> tuple[str, ...]:
    """Ids of the built-in rules that are wanted. Raises `InvalidRequest` for one that there is not.

    Args:
        rules: ids, or `all`.
        exclude: those that are not wanted all the same.
        everything: what `all` stands for.
    """
    wanted = (rules,) if isinstance(rules, str) else tuple(rules)
    for key, names in (("rules", wanted), ("exclude_rules", exclude)):
        for _, message in unknown(names):
            raise InvalidRequest(f"{key}: {message}", param=key)
    named = everything if ALL in wanted else wanted
    return tuple(name for name in RULES if (name in named or name in wanted) and name not in exclude)
