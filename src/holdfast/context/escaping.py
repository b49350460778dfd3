"""Escape quoted text of the log, so that a model takes it for a quote and for nothing else in a prompt.

Holdfast adds text of its own to a working set: a digest, a summary, the recalled block, a shortened task, the notes at cuts. Most of this
text quotes users, tools and models. Three measures keep Holdfast's words and the quotes apart:

- Every text that Holdfast adds contains the session's **marker**, eight letters after a `#`. The marker is derived from a secret of the
  store, so no user, tool or client can know or compute the marker. It stays the same for the lifetime of the session.
- Quoted text is escaped: everything in it that could look like a part of the prompt is rewritten in a readable form. These are tokens of
  chat templates, labels like Holdfast's, speaker names at the beginning of a line, invisible characters, characters that reverse the
  writing direction, and the marker itself.
- Lists of recalled items are JSON lines, in which brackets, line ends and invisible characters are escaped.

The log is never changed. All functions are pure.
"""

# ruff: noqa: RUF001 (look-alikes of other scripts are what some patterns are about)

from __future__ import annotations

import hashlib
import json
import re
import string
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from holdfast.domain.messages import Content, Part

END: Final = "[end]"
"""Last line of a digest, a summary or the standing facts. Escaped text cannot contain this line."""
MARKER_LETTERS: Final = 8
"""Number of letters in a marker. They have 37 bits, and take five to seven tokens."""
NAME_CHARS: Final = 64
"""Maximum characters of the name of an agent, tool, part or field in a label."""
REMOVED: Final = "(marker removed)"
"""Text that replaces the session's marker in quoted text."""
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]+"
)
_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")
"""Joiners and variation selectors. They are invisible, but many scripts and emoji need them."""
_JOINED: Final = frozenset("LMS")
"""First letters of the Unicode categories next to which a joiner is allowed: letters, marks and symbols. `_UNJOINED` has the exceptions."""
_UNJOINED: Final = frozenset("<>|[]＜＞｜［］")
_LINE_END: Final = re.compile("\r\n?|[\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")
_TAGS: Final = (
    r"(?:antml:)?(?:system|user|assistant|developer|human|model|bot|instructions?|invoke|parameters?|messages?|scratchpad"
    r"|think(?:ing)?|reasoning|tools?(?:_(?:results?|calls?|use|responses?|declare|list|sep))?"
    r"|functions?(?:_(?:calls?|results?|responses?))?)|(?:start|end|begin|beginning)_of_[a-z_]+|im_(?:start|end|sep)"
    r"|bos|eos|eod|eop|sop|s|pad|unk|mask|image_soft_token|unused\d*|reserved_\d+|conversation-[0-9a-z-]+|/?SYS"
)
# White space is matched possessively: backtracking over it would take a time that grows with the square of its length.
_ANGLES: Final = re.compile(
    rf"(?P<open>[<＜]{{1,2}})(?P<inner>\s*+(?:[/／]\s*+)?(?:[|｜]|(?:{_TAGS})(?=[\s>＞/=]|\Z))[^\n<>＜＞]{{0,120}})(?P<close>[>＞]{{0,2}})",
    re.IGNORECASE,
)
"""Matches tokens of chat templates, and tags that enclose messages, calls, results or reasoning."""
_SQUARES: Final = re.compile(
    r"[\[［](?P<inner>\s*+(?:[/／]\s*+)?(?:INST|SYS|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_[A-Z]+|CALL_ID|ARGS|THINK|MODEL_SETTINGS|[gs]?MASK"
    r"|IMG(?:_BREAK|_END)?|(?:BEGIN_)?AUDIO|BOS|EOS|PREFIX|MIDDLE|SUFFIX|UNUSED\w*)\s*)[\]］]",
    re.IGNORECASE,
)
_LABELS: Final = re.compile(
    r"[\[［](?=\s*(?:condensed\b|summary\s+of|earlier\s+statements|original\s+task|recalled\b|known\s+from|end\b|results?\s+of|a\s+tool\s+result"
    r"|a\s+system\s+message|a\s+part\s+of|left\s+out|no\s+result|the\s+conversation|the\s+summary|continue\s*\]|found\s+in"
    r"|memories\b|notes?\s*:|agent\b|another\s+agent|empty\s+message|message\s+\d+\s+of|the\s+result|…))",
    re.IGNORECASE,
)
_SPEAKERS: Final = re.compile(
    r"(?P<name>\b(?:(?:user|assistant|developer|system|tool|function|human|agent\s[^\n:：]{1,64}?)[*_]{0,2}\s+said|late\s+result)[*_]{0,2})\s*[:：]",
    re.IGNORECASE,
)
_ROLES: Final = re.compile(
    r"^(?P<name>[ \t>#*_-]*(?:human|assistant|system|user|developer|tool|function|model|ai)[*_]{0,2})[ \t]*[:：]",
    re.IGNORECASE | re.MULTILINE,
)
"""Matches the beginning of a message in a transcript, the form in which models without a chat template read conversations."""
_LOOKALIKES: Final = {
    **{chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)},
    **dict(
        zip(
            "аеорсхуіјѕвнкмтьԁԛԝһӏАВЕКМНОРСТХІЈЅαορνικτυΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
            "aeopcxyijsbhkmtbdqwhlABEKMHOPCTXIJSaopviktuABEZHIKMNOPTYX",
            strict=True,
        )
    ),
    **dict.fromkeys("【〔⟦〖［❲⁅", "["),
    **dict.fromkeys("】〕⟧〗］❳⁆", "]"),
    **dict.fromkeys("‹〈⟨《≪«❮", "<"),
    **dict.fromkeys("›〉⟩》≫»❯", ">"),
    **dict.fromkeys("∶﹕ː：", ":"),
    **dict.fromkeys("∣ǀ｜❘￨", "|"),
    **dict.fromkeys("／⁄∕", "/"),
    **dict.fromkeys("ıİ", "i"),  # patterns that ignore case match these, and `casefold` keeps them
}
"""Characters that look like ASCII characters of labels, tokens and names, each with the ASCII character that it resembles."""
_FOLD: Final = {ord(character): plain for character, plain in _LOOKALIKES.items()}
_UNUSUAL: Final = re.compile(f"{_HIDDEN.pattern}|{_LINE_END.pattern}|[{re.escape(''.join(_LOOKALIKES))}]")
"""Matches what is rewritten or folded in a text. Most texts in other scripts have none of it, and one search is faster than three passes."""
_JSON_ESCAPED: Final = re.compile(
    "[\\[<\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff0-\uffff"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Matches characters inside JSON strings that are escaped: opening brackets, line ends, and invisible characters."""


# -- the marker ----------------------------------------------------------------


@lru_cache(maxsize=1_024)
def derive_marker(secret: bytes, identity: str) -> str:
    """Return the marker of a session, derived from the store's secret.

    Args:
        secret: random bytes that only the store knows.
        identity: `Session.identity`.
    """
    number = int.from_bytes(hashlib.blake2b(identity.encode(), key=secret, digest_size=8, person=b"marker").digest())
    letters = []
    for _ in range(MARKER_LETTERS):
        number, at = divmod(number, len(string.ascii_lowercase))
        letters.append(string.ascii_lowercase[at])
    return "".join(letters)


def format_tag(marker: str) -> str:
    """Return the text that adds a marker to a label: a space, `#` and the marker; empty if the marker is empty."""
    return f" #{marker}" if marker else ""


def with_marker(label: str, marker: str) -> str:
    """Return a label with a marker inserted before its first colon or, without a colon, before its last character."""
    at = label.find(":") if ":" in label else len(label) - 1
    return f"{label[:at]}{format_tag(marker)}{label[at:]}"


def make_delimiter(*texts: str) -> str:
    """Return a word that occurs in none of `texts`. If tags with this word enclose the texts, no text can contain the closing tag."""
    digest = hashlib.blake2b("\0".join(texts).encode(errors="replace"), digest_size=6)
    while any(digest.hexdigest() in text for text in texts):
        digest.update(b"again")
    return f"conversation-{digest.hexdigest()}"


# -- prose ---------------------------------------------------------------------


def escape_inline(text: str, marker: str = "") -> str:
    """Escape a text that is quoted inside a line of the prompt. Most texts are returned unchanged.

    Args:
        text: the quoted text.
        marker: the session's marker, which is removed from the text; empty if there is none.
    """
    folded = text
    if not (text.isascii() and text.isprintable()) and _UNUSUAL.search(text) is not None:
        text = _HIDDEN.sub(_show_hidden, _LINE_END.sub("\n", text))
        folded = text.translate(_FOLD)
    lower = folded.casefold()
    if marker and marker in lower:  # before the other patterns, which may match where the marker ended
        text, folded = _rewrite(re.compile(marker, re.IGNORECASE), _remove, text, folded)
    for hint, pattern, write in _INERT:
        if hint in lower:
            text, folded = _rewrite(pattern, write, text, folded)
    return text


def escape_lines(text: str, marker: str = "") -> str:
    """Escape a text whose lines become lines of the prompt.

    In addition to what `escape_inline` does, names of speakers at the beginning of a line are marked as quoted.
    """
    text = escape_inline(text, marker)
    folded = text if text.isascii() else text.translate(_FOLD)
    return _rewrite(_ROLES, _quote, text, folded)[0] if ":" in folded else text


def escape_name(name: str) -> str:
    """Return a name in the form in which labels contain it: on one line, at most `NAME_CHARS` long, without square brackets."""
    return escape_inline(" ".join(name.split()).translate(_IN_NAMES)[:NAME_CHARS])


def escape_content(content: Content, marker: str) -> Content:
    """Escape the texts of a message's content with `escape_lines`. Media stay unchanged."""
    if isinstance(content, tuple):
        return tuple(part if part.text is None else _escape_part(part, marker) for part in content)
    return escape_lines(content, marker) if isinstance(content, str) else content


_IN_NAMES: Final = str.maketrans("[]［］", "()()")


def _escape_part(part: Part, marker: str) -> Part:
    text = escape_lines(str(part.text), marker)
    return part if text == part.text else Part(part.type, text, part.extra)


def _rewrite(pattern: re.Pattern[str], write: _Write, text: str, folded: str) -> tuple[str, str]:
    """Rewrite the matches of a pattern in a text and in its folded form. Return both.

    Look-alikes in the rest of the text keep their original characters.

    Args:
        pattern: the pattern, which is searched in `folded`.
        write: returns the replacement of a match.
        text: the text.
        folded: the text with each look-alike replaced by the character that it resembles. It has the same length.
    """
    at, texts, folds = 0, list[str](), list[str]()
    for found in pattern.finditer(folded):
        written = write(found, text)
        texts += (text[at : found.start()], written)
        folds += (folded[at : found.start()], written if written.isascii() else written.translate(_FOLD))
        at = found.end()
    return ("".join((*texts, text[at:])), "".join((*folds, folded[at:]))) if at else (text, folded)


def _slice_group(found: re.Match[str], group: str, text: str) -> str:
    return text[found.start(group) : found.end(group)]


def _parenthesize(found: re.Match[str], text: str) -> str:
    opening = found.groupdict().get("open", "(")
    return "(" * len(opening) + _slice_group(found, "inner", text) + ")" * len(found.groupdict().get("close", ")"))


def _quote(found: re.Match[str], text: str) -> str:
    return f"{_slice_group(found, 'name', text)} (quoted):"


def _open_parenthesis(found: re.Match[str], text: str) -> str:
    del found, text
    return "("


def _remove(found: re.Match[str], text: str) -> str:
    del found, text
    return REMOVED


_Write = Callable[[re.Match[str], str], str]
_INERT: Final[tuple[tuple[str, re.Pattern[str], _Write], ...]] = (
    ("<", _ANGLES, _parenthesize),
    ("[", _SQUARES, _parenthesize),
    ("[", _LABELS, _open_parenthesis),
    ("said", _SPEAKERS, _quote),
    ("result", _SPEAKERS, _quote),
)
"""The patterns whose matches are rewritten, in this order. Each has a text that every match contains, and the function that returns the
replacement."""


def _show_hidden(found: re.Match[str]) -> str:
    """Return a readable escape for a run of hidden characters: the first one, and their number. Allowed joiners are returned unchanged."""
    run = found.group()
    if all(character in _JOINERS for character in run) and _is_joined(found, len(run)):
        return run
    shown = _escape_character(run[0])
    return shown if len(run) == 1 else f"{shown}(x{len(run)})"


def _is_joined(found: re.Match[str], length: int) -> bool:
    """Return True if joiners are part of a word or an emoji, so that they are allowed.

    Args:
        found: a match that consists of joiners.
        length: number of characters of the match.
    """
    text, start, end = found.string, found.start(), found.end()
    before, after = text[start - 1 : start], text[end : end + 1]
    if length > 2 or not _can_join(before):
        return after == "\u20e3" and length == 1  # a keycap: the digit before it is ASCII
    return found.group()[-1] in "\ufe0e\ufe0f" or _can_join(after)


def _can_join(character: str) -> bool:
    return character > "\x7f" and character not in _UNJOINED and unicodedata.category(character)[0] in _JOINED


# -- JSON ----------------------------------------------------------------------


def format_envelope(opening: str, lines: Iterable[str], closing: str) -> str:
    """Return lines of data between a first and a last line. The lines of data must be made by `to_json_line`."""
    return "\n".join((opening, *lines, closing))


def to_json_line(value: Any) -> str:
    """Return `value` as JSON on one line. Hidden characters, line ends and opening brackets inside strings are escaped."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_to_json_text(str(key))}:{to_json_line(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(to_json_line, value)) + "]"
    return _to_json_text(value) if isinstance(value, str) else json.dumps(value)


def _to_json_text(value: str) -> str:
    return _JSON_ESCAPED.sub(_escape_in_json, json.dumps(value, ensure_ascii=False))


def _escape_in_json(found: re.Match[str]) -> str:
    character = found.group()
    return f"\\u{ord(character):04x}" if " " <= character <= "\x7e" else json.dumps(character)[1:-1]


def _escape_character(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
