"""Token counts: what a message costs a model, without asking anyone.

Two vocabularies ship with the package (`data/`), so o200k and cl100k counts are exact and need no network. A model
whose tokenizer is not public gets an estimate, which says that it is one. tiktoken is imported here only, and both it
and the vocabularies are loaded by the first count, not by the import (0.2 s and 0.1 s).

How a message is counted, in the way OpenAI's chat format does it: its texts, plus fixed amounts for what surrounds them
(the constants below). Fields that Holdfast does not know travel upstream too, so they are counted, as JSON. Pictures
cost what the model's provider publishes (`holdfast.domain.images`); in stored counts they all cost the same.
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
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.domain.images import Flat, Pricing, pricing_of
from holdfast.domain.media.parts import picture_in, show_to_model
from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import tiktoken

# -- fixed amounts, in tokens -------------------------------------------------

MESSAGE_OVERHEAD: Final = 4
"""A message's frame (3) and its role (1). The 3 that prime a reply are once a call: headroom, not a message's cost."""
NAME_OVERHEAD: Final = 1
"""What a `name` costs beyond its text."""
TOOL_CALL_OVERHEAD: Final = 8
"""Per tool call, beyond name and arguments. Ids are covered by it: models see a fixed-size reference, if any."""
TOOL_RESULT_OVERHEAD: Final = 6
"""A tool message's reference to its call, `tool_call_id` included, beyond `MESSAGE_OVERHEAD`."""
TOOLS_OVERHEAD: Final = 12
"""The frame around all tool schemas of a call; none when there are no tools."""
TOOL_OVERHEAD: Final = 8
"""Per tool schema, beyond its JSON. The JSON is an upper bound: providers render schemas shorter."""

IMAGE_LOW_DETAIL: Final = 85
IMAGE: Final = 1445
"""An image in stored counts, whatever its size: eight tiles of 170 and 85, the most that the 4o family charges."""
AUDIO_CHARS_PER_TOKEN: Final = 512
"""Base64 characters of compressed speech a token: 10 tokens a second, 32 kbit/s."""
FILE_CHARS_PER_TOKEN: Final = 64
"""Base64 characters of a document a token: about 1,500 tokens a page of 75 kB."""

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
"""Media part types and their characters a token; None for images, whose cost does not follow their length.

Whatever the length, a medium counts at least as an image: a mere link may stand for anything.
"""

# -- the public face ----------------------------------------------------------


class TokenCounter(Protocol):
    """Counts tokens for one family of models. Counting never fails and never needs a network."""

    @property
    def name(self) -> str:
        """`o200k_base`, `cl100k_base` or `estimate`."""

    @property
    def exact(self) -> bool:
        """True when text is counted by the model's own tokenizer."""

    @property
    def margin(self) -> float:
        """The error bound of an estimate, which its counts of text already have on top: 0.25; 0.0 when exact."""

    @property
    def factor(self) -> float:
        """Tokens of this counter per stored (o200k) token of text; 1.0 for o200k.

        Fixed for a counter, so that a frontier computed with it never moves by itself. It bounds English, code and
        JSON; other scripts can pass it (cl100k: German 1.2, Chinese 1.4, Hindi 3.7), so count what you chose. It does not
        hold for media, which cost each family something else: count messages with any.
        """

    def text(self, text: str) -> int:
        """Tokens of `text`. Text that looks like a special token is ordinary text."""

    def message(self, message: Message) -> int:
        """Tokens of `message` in a prompt, the frame around it included."""

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the tool schemas of a call, as in the request's `tools`."""


@lru_cache(maxsize=256)
def get_counter(model: str) -> TokenCounter:
    """The counter for `model`, by its family; the same object for models that count alike.

    Prefixes that name a provider or a fine-tune are understood.

    >>> counter_for("openai/gpt-4o-mini").name, counter_for("ft:gpt-4:acme::x1").name, counter_for("claude-x").name
    ('o200k_base', 'cl100k_base', 'estimate')
    """
    family = _PROVIDER.sub("", model.strip().lower())
    counter = next((counter for pattern, counter in _FAMILIES if pattern.match(family)), _ESTIMATE)
    return counter.with_pictures(pricing_of(family))


def load_vocabularies() -> None:
    """Load what any counter counts with. Otherwise the first count with each of them does, which takes up to a second."""
    for vocabulary in (O200K, CL100K):
        vocabulary.count("")


def restrict_counter(counter: TokenCounter, inputs: frozenset[str]) -> TokenCounter:
    """`counter` for a model that takes only `inputs`: other media count as what is told in their place."""
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
"""Counts of long texts that are kept, and from how many characters: at most 4 MB of text a counter."""

# -- counting -----------------------------------------------------------------


class _Counter:
    """Counts with one vocabulary, or with the dearest of several and a margin.

    Args:
        name: see `TokenCounter`.
        vocabularies: those it counts with.
        factor: see `TokenCounter`.
        margin: added to counts of text.
        pictures: what an image costs.
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
        """The same counter with other prices for images; what it has counted is shared."""
        if pictures not in self._kin:
            kin = copy.copy(self)
            kin._pictures = pictures  # noqa: SLF001 - of this class
            self._kin[pictures] = kin
        return self._kin[pictures]

    def text(self, text: str) -> int:
        if not text:
            return 0
        # System prompts and tool schemas come with every call, and are long; messages are counted once.
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
            return self._pictures.tokens(picture_in(part))
        longest = max([_measure_longest_text(part.extra), *(one.chars for one in part.held)])
        return max(IMAGE, longest // chars_per_token)

    def _count_call(self, call: ToolCall) -> int:
        texts = self.text(call.name) + self.text(call.arguments)
        return TOOL_CALL_OVERHEAD + texts + self._count_extra(call.extra) + self._count_extra(call.function_extra)

    def _count_extra(self, extra: Mapping[str, Any]) -> int:
        # Clients send back what they got with its empty fields (`refusal: null`, `annotations: []`): no model sees them.
        said = {key: value for key, value in extra.items() if value not in (None, "", [], {})}
        return self.text(_to_json(said)) if said else 0


def _measure_longest_text(value: Any) -> int:
    """Characters of the longest string in `value`: of a media part, its data."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_measure_longest_text, inner), default=0)


def _to_json(value: Any) -> str:
    """`value` as compact JSON, as it goes upstream. The standard encoder, because it takes lone surrogates."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


# -- vocabularies -------------------------------------------------------------

CHUNK_CHARS: Final = 65_536
"""How much of a text is tokenized at once."""
_LOOK_BACK: Final = 1_024
# Where both patterns begin a new token whatever follows: a single space between two things that are not white space.
_SAFE_CUT: Final = re.compile(r"(?<=\S) (?=\S)")

DATA: Final = Path(__file__).with_name("data")


class Vocabulary:
    """One tokenizer, loaded and verified by the first count."""

    def __init__(self, name: str, *, sha256: str, pattern: str, special: dict[str, int]) -> None:
        self.name = name
        self.pattern = pattern
        self.special = special
        self._sha256 = sha256
        self._encoding: tiktoken.Encoding | None = None
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        """Tokens of `text`. Above 64 Ki characters it is cut, which can add a token a cut and bounds the time."""
        encode = (self._encoding or self.load_encoding()).encode_ordinary
        if len(text) <= CHUNK_CHARS:
            return len(encode(text))
        return sum(len(encode(chunk)) for chunk in split_text(text))

    def ranks(self) -> dict[bytes, int]:
        """The tokens with their ranks, read from the packed file.

        Raises:
            HoldfastError: the file is not the one that was packed.
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
        """Whether something was counted already."""
        return self._encoding is not None

    def load_encoding(self) -> tiktoken.Encoding:
        """Return the tokenizer; the first call reads and verifies the packed file."""
        import tiktoken  # 20 ms that `import holdfast` need not pay

        with self._lock:
            if self._encoding is None:
                encoding = tiktoken.Encoding(
                    self.name, pat_str=self.pattern, mergeable_ranks=self.ranks(), special_tokens=self.special
                )
                # A second copy, which only pickling reads: 15 to 30 MB.
                encoding._mergeable_ranks = {}  # noqa: SLF001
                self._encoding = encoding
            return self._encoding


def split_text(text: str) -> Iterator[str]:
    """Split a text into pieces of at most 64 Ki characters, cut where a token begins anyway if such a place is near."""
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
"""The counter of stored counts. What it counts never changes: logs are full of it."""
_CL100K_COUNTER: Final = _Counter("cl100k_base", CL100K, factor=1.1, pictures=_FLAT)
# Private tokenizers need up to a quarter more than the public ones on English and code. On other scripts they range
# from o200k's thrift to cl100k's waste, so the dearer of the two counts.
_ESTIMATE: Final = _Counter("estimate", O200K, CL100K, factor=1.4, margin=0.25, pictures=_FLAT)

# `openai/gpt-4o`, `openrouter/openai/gpt-4o`, `openai:gpt-4o`, `ft:gpt-4o:acme::id`, `us.anthropic.claude-…`
_PROVIDER: Final = re.compile(r"^(?:.*/)?(?:(?:ft|openai|azure|anthropic):)*(?:(?:[a-z-]+\.)?anthropic\.)?")


def _compile_family(*names: str) -> re.Pattern[str]:
    """A pattern for model names that begin with one of `names`, as a whole word: `o1` is not `o1000`."""
    return re.compile(rf"(?:{'|'.join(map(re.escape, names))})(?![a-z0-9])")


# In order: gpt-4.1 is looked for before gpt-4.
_O200K_NAMES: Final = ("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-oss", "chatgpt-4o", "o1", "o3", "o4", "offline")
_FAMILIES: Final[list[tuple[re.Pattern[str], _Counter]]] = [
    (_compile_family(*_O200K_NAMES), _O200K_COUNTER),
    (_compile_family("gpt-4", "gpt-3.5", "gpt-35", "text-embedding-3", "text-embedding-ada-002"), _CL100K_COUNTER),
]
