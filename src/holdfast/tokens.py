"""Count the tokens of messages, texts and tool schemas for a model, without a network request.

Two vocabularies ship with the package (`data/`), so o200k and cl100k counts are exact. A model whose tokenizer is not public
gets an estimate, which is marked as such. Only this module imports tiktoken. The first count, not the import, loads
tiktoken (0.2 s) and the vocabulary (0.1 s).

A message is counted as in OpenAI's chat format: its texts, plus fixed amounts for the tokens around them (the constants
below). Fields that Holdfast does not know are sent upstream too, so they are counted as JSON. An image costs what the
model's provider publishes (`holdfast.domain.images`); in stored counts, every image costs the same.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import threading
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.domain.counting import TokenCounter
from holdfast.domain.images import Flat, Pricing, find_pricing
from holdfast.domain.media.parts import get_picture, show_to_model
from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.provider_items import DETAILS, ENCRYPTED, HOSTED, is_provider_compaction, list_details
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import tiktoken

# -- fixed amounts, in tokens -------------------------------------------------

MESSAGE_OVERHEAD: Final = 4
"""Tokens of a message's frame (3) and of its role (1). The 3 tokens that begin the reply occur once per call and are part
of the headroom.
"""
NAME_OVERHEAD: Final = 1
"""Tokens of a message's `name` in addition to its text."""
TOOL_CALL_OVERHEAD: Final = 8
"""Tokens per tool call, in addition to its name and arguments. They include the call's id: models see at most a reference of fixed size."""
TOOL_RESULT_OVERHEAD: Final = 6
"""Tokens of the field `tool_call_id`, with which a tool message refers to its call, in addition to `MESSAGE_OVERHEAD`."""
TOOLS_OVERHEAD: Final = 12
"""Tokens of the frame around all tool schemas of a call; a call without tools has none."""
TOOL_OVERHEAD: Final = 8
"""Tokens per tool schema, in addition to its JSON. The JSON is an upper bound: providers render schemas in a shorter form."""

IMAGE_LOW_DETAIL: Final = 85
IMAGE: Final = 1445
"""Tokens of any image in stored counts, whatever its size. This is the most that the 4o family charges: eight tiles of 170, plus 85."""
AUDIO_CHARS_PER_TOKEN: Final = 512
"""Base64 characters of compressed speech per token, assuming 10 tokens a second at 32 kbit/s."""
FILE_CHARS_PER_TOKEN: Final = 64
"""Base64 characters of a document per token, assuming about 1,500 tokens for a page of 75 kB."""
ENCRYPTED_CHARS_PER_TOKEN: Final = 5
"""Base64 characters of a provider's compaction item per token of the text in it, assuming 4 characters for a token."""

MEDIA: Final[dict[str, int | None]] = {
    "image": None,
    "image_url": None,
    "input_image": None,
    "audio": AUDIO_CHARS_PER_TOKEN,
    "input_audio": AUDIO_CHARS_PER_TOKEN,
    "video": AUDIO_CHARS_PER_TOKEN,
    "video_url": AUDIO_CHARS_PER_TOKEN,
    "document": FILE_CHARS_PER_TOKEN,
    "file": FILE_CHARS_PER_TOKEN,
    "input_file": FILE_CHARS_PER_TOKEN,
}
"""Characters per token of each type of media part; None for images, whose cost does not depend on their length.

A media part counts at least as much as an image, however short it is: a link may refer to anything.
"""


@lru_cache(maxsize=256)
def get_counter(model: str) -> TokenCounter:
    """Return the token counter for a model's family. Models with the same tokenizer and image prices share one counter.

    Prefixes of the model name that name a provider or a fine-tune are ignored.

    >>> get_counter("openai/gpt-4o-mini").name, get_counter("ft:gpt-4:acme::x1").name, get_counter("claude-x").name
    ('o200k_base', 'cl100k_base', 'estimate')
    """
    family = _PROVIDER.sub("", model.strip().lower())
    counter = next((counter for pattern, counter in _FAMILIES if pattern.match(family)), _ESTIMATE)
    return counter.with_pictures(find_pricing(family))


def load_vocabularies() -> None:
    """Load the vocabularies of all counters now. Otherwise the first count with each vocabulary loads it, which takes up to a second."""
    for vocabulary in (O200K, CL100K):
        vocabulary.count("")


def restrict_counter(counter: TokenCounter, inputs: frozenset[str]) -> TokenCounter:
    """Return a counter for a model that accepts only the media types in `inputs`; other media count as the text that replaces them."""
    return _Partial(counter, inputs)


class _Partial:
    def __init__(self, counter: TokenCounter, inputs: frozenset[str]) -> None:
        self._counter = counter
        self._inputs = inputs
        self.name = counter.name
        self.exact = counter.exact
        self.margin = counter.margin
        self.factor = counter.factor
        self.text = counter.text
        self.tools = counter.tools

    def message(self, message: Message) -> int:
        return self._counter.message(show_to_model(message, self._inputs))


_KEPT, _KEPT_FROM = 64, 256
"""Number of counts of long texts that a counter caches, and the length in characters from which a text is long.

A counter keeps at most 4 MB of text.
"""

# -- counting -----------------------------------------------------------------


class _Counter:
    """Counts with one vocabulary, or takes the largest count of several vocabularies and adds a margin.

    Args:
        name: `name` of the `TokenCounter`.
        vocabularies: the vocabularies to count with.
        factor: `factor` of the `TokenCounter`.
        margin: fraction that is added to counts of text.
        pictures: prices of images, in tokens.
    """

    def __init__(
        self,
        name: str,
        *vocabularies: Vocabulary,
        factor: float,
        margin: float = 0.0,
        pictures: Pricing,
    ) -> None:
        self.name = name
        self.exact = margin == 0.0
        self.margin = margin
        self.factor = factor
        self._vocabulary, *self._others = vocabularies
        self._percent = 100 + round(margin * 100)
        self._pictures = pictures
        self._known = lru_cache(maxsize=_KEPT)(self._count)
        self._kin = {pictures: self}

    def __repr__(self) -> str:
        return f"<TokenCounter {self.name}>"

    def with_pictures(self, pictures: Pricing) -> _Counter:
        """Return a counter like this one with other image prices. Both counters share one cache of text counts."""
        if pictures not in self._kin:
            kin = copy.copy(self)
            kin._pictures = pictures  # noqa: SLF001 - of this class
            self._kin[pictures] = kin
        return self._kin[pictures]

    def text(self, text: str) -> int:
        if not text:
            return 0
        # System prompts and tool schemas are long and sent with every call; messages are counted only once.
        return self._known(text) if _KEPT_FROM <= len(text) <= CHUNK_CHARS else self._count(text)

    def _count(self, text: str) -> int:
        count = self._vocabulary.count(text)
        for vocabulary in self._others:
            count = max(count, vocabulary.count(text))
        return -(-count * self._percent // 100)

    def message(self, message: Message) -> int:
        content = message.content
        if type(content) is str and not (message.extra or message.tool_calls or message.name is not None):
            frame = MESSAGE_OVERHEAD + TOOL_RESULT_OVERHEAD if message.role == "tool" else MESSAGE_OVERHEAD
            return frame + self.text(content)
        count = MESSAGE_OVERHEAD + self._count_content(message) + self._count_extra(message.extra)
        if message.name is not None:
            count += NAME_OVERHEAD + self.text(message.name)
        if message.role == "tool":
            count += TOOL_RESULT_OVERHEAD
        return count + sum(self._count_call(call) for call in message.tool_calls)

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        if not schemas:
            return 0
        return TOOLS_OVERHEAD + sum(TOOL_OVERHEAD + self.text(_to_json(schema)) for schema in schemas)

    def _count_content(self, message: Message) -> int:
        if isinstance(message.content, tuple):
            return sum(self._count_part(part) for part in message.content)
        return self.text(message.text)

    def _count_part(self, part: Part) -> int:
        if part.text is not None:
            return self.text(part.text) + self._count_extra(part.extra)
        if part.type not in MEDIA:
            return self._count_extra(part.extra)
        chars_per_token = MEDIA[part.type]
        if chars_per_token is None:
            return self._pictures.count_tokens(get_picture(part))
        longest = max([_measure_longest_text(part.extra), *(one.chars for one in part.held)])
        return max(IMAGE, longest // chars_per_token)

    def _count_call(self, call: ToolCall) -> int:
        texts = self.text(call.name) + self.text(call.arguments)
        return TOOL_CALL_OVERHEAD + texts + self._count_extra(call.extra) + self._count_extra(call.function_extra)

    def _count_extra(self, extra: Mapping[str, Any]) -> int:
        # Clients send replies back with their empty fields (`refusal: null`, `annotations: []`), which no model sees.
        filled = {key: value for key, value in extra.items() if value not in (None, "", [], {})}
        if not filled:
            return 0
        items = [one["item"] for one in list_details(extra)]
        encrypted = sum(len(one[ENCRYPTED]) for one in items if is_provider_compaction(one))
        if encrypted:
            filled[DETAILS] = []
        elif items:  # their provider gets only the items
            others = [one for one in extra[DETAILS] if not isinstance(one, dict) or one.get("type") != HOSTED]
            filled[DETAILS] = [*others, *items]
        return self.text(_to_json(filled)) + encrypted // ENCRYPTED_CHARS_PER_TOKEN


def _measure_longest_text(value: Any) -> int:
    """Return the length of the longest string inside `value`. In a media part, that string is the data."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_measure_longest_text, inner), default=0)


def _to_json(value: Any) -> str:
    """Return `value` as compact JSON, as it is sent upstream.

    This uses the standard library's encoder, because it accepts lone surrogates.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


# -- vocabularies -------------------------------------------------------------

CHUNK_CHARS: Final = 65_536
"""Maximum number of characters that are tokenized in one piece."""
_LOOK_BACK: Final = 1_024
# Both patterns begin a new token at a single space between two other characters, whatever follows.
_SAFE_CUT: Final = re.compile(r"(?<=\S) (?=\S)")

DATA: Final = Path(__file__).with_name("data")


class Vocabulary:
    """A tokenizer that is loaded and verified by its first count."""

    def __init__(self, name: str, *, sha256: str, pattern: str, special: dict[str, int]) -> None:
        self.name = name
        self.pattern = pattern
        self.special = special
        self._sha256 = sha256
        self._encoding: tiktoken.Encoding | None = None
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        """Return the number of tokens of a text.

        A text above 64 Ki characters is cut into pieces to bound the time. Each cut can add a token.
        """
        encode = (self._encoding or self.load_encoding()).encode_ordinary
        if len(text) <= CHUNK_CHARS:
            return len(encode(text))
        return sum(len(encode(chunk)) for chunk in split_text(text))

    def read_ranks(self) -> dict[bytes, int]:
        """Return the rank of each token, read from the packed file.

        Raises:
            HoldfastError: the file is damaged: its hash is not the expected one.
        """
        path = DATA / f"{self.name}.ranks"
        packed = path.read_bytes()
        if hashlib.sha256(packed).hexdigest() != self._sha256:
            raise HoldfastError(f"{path} is damaged: its hash is not the expected one. Install holdfast again.")
        data = zlib.decompress(packed)
        ranks: dict[bytes, int] = {}
        start = 0
        while start < len(data):
            end = start + 1 + data[start]
            ranks[data[start + 1 : end]] = len(ranks)
            start = end
        return ranks

    @property
    def is_loaded(self) -> bool:
        """True if the tokenizer has been loaded."""
        return self._encoding is not None

    def load_encoding(self) -> tiktoken.Encoding:
        """Return the tokenizer; the first call reads and verifies the packed file."""
        import tiktoken  # 20 ms that `import holdfast` need not pay

        with self._lock:
            if self._encoding is None:
                encoding = tiktoken.Encoding(
                    self.name, pat_str=self.pattern, mergeable_ranks=self.read_ranks(), special_tokens=self.special
                )
                # A second copy of 15 to 30 MB, which only pickling reads.
                encoding._mergeable_ranks = {}  # noqa: SLF001
                self._encoding = encoding
            return self._encoding


def split_text(text: str) -> Iterator[str]:
    """Split a text into pieces of at most 64 Ki characters, at a token boundary where there is one close to the limit."""
    start = 0
    while len(text) - start > CHUNK_CHARS:
        end = start + CHUNK_CHARS
        near = _SAFE_CUT.finditer(text, max(start + 1, end - _LOOK_BACK), end)
        cut = max((found.start() for found in near), default=end)
        yield text[start:cut]
        start = cut
    yield text[start:]


# Patterns and special tokens are those of tiktoken_ext.openai_public; a test compares them.
O200K: Final = Vocabulary(
    "o200k_base",
    sha256="237883613c799b57337f9bda254d004913ab133c879f4cd55cc4d5b66992a450",
    pattern=(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    special={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
)
CL100K: Final = Vocabulary(
    "cl100k_base",
    sha256="f93a1dc1bc9057b7fde539f594216737bfd8ff0afc93326c685a5ce9cec68d29",
    pattern=(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    special={
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
)

# -- the counters and their models --------------------------------------------

_FLAT: Final = Flat(IMAGE, IMAGE_LOW_DETAIL)
_O200K_COUNTER: Final = _Counter("o200k_base", O200K, factor=1.0, pictures=_FLAT)
STORED: Final[TokenCounter] = _O200K_COUNTER
"""The counter for token counts that are stored in logs. Its results must never change, because every log contains such counts."""
_CL100K_COUNTER: Final = _Counter("cl100k_base", CL100K, factor=1.1, pictures=_FLAT)
# Private tokenizers need up to a quarter more tokens than the public ones on English and code. On other scripts they
# are between o200k (few tokens) and cl100k (many), so the larger of the two counts is used.
_ESTIMATE: Final = _Counter("estimate", O200K, CL100K, factor=1.4, margin=0.25, pictures=_FLAT)

# `openai/gpt-4o`, `openrouter/openai/gpt-4o`, `openai:gpt-4o`, `ft:gpt-4o:acme::id`, `us.anthropic.claude-…`
_PROVIDER: Final = re.compile(r"^(?:.*/)?(?:(?:ft|openai|azure|anthropic):)*(?:(?:[a-z-]+\.)?anthropic\.)?")


def _compile_family(*names: str) -> re.Pattern[str]:
    """Return a pattern for model names that begin with one of `names` as a whole word: `o1` does not match `o1000`."""
    return re.compile(rf"(?:{'|'.join(map(re.escape, names))})(?![a-z0-9])")


# The order matters: gpt-4.1 must be matched before gpt-4.
_O200K_NAMES: Final = ("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-oss", "chatgpt-4o", "o1", "o3", "o4", "offline")
_FAMILIES: Final[list[tuple[re.Pattern[str], _Counter]]] = [
    (_compile_family(*_O200K_NAMES), _O200K_COUNTER),
    (_compile_family("gpt-4", "gpt-3.5", "gpt-35", "text-embedding-3", "text-embedding-ada-002"), _CL100K_COUNTER),
]
