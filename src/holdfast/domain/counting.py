"""The interface of token counters. `holdfast.tokens` has the counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdfast.domain.messages import Message


class TokenCounter(Protocol):
    """Counts tokens for a family of models. Counting never fails and never needs a network."""

    @property
    def name(self) -> str:
        """Name of the vocabulary, `o200k_base` or `cl100k_base`; `estimate` if the model's own vocabulary is not public."""

    @property
    def exact(self) -> bool:
        """True if texts are counted with the model's own tokenizer."""

    @property
    def margin(self) -> float:
        """Safety margin that is already included in estimated counts of text: 0.25 (a quarter); 0.0 if counts are exact."""

    @property
    def factor(self) -> float:
        """Tokens of this counter per stored (o200k) token of text; 1.0 for o200k.

        The factor of a counter never changes, so that the choice of old messages to leave out, which is computed with it, does not change.
        It is an upper bound for English, code and JSON. Other scripts can exceed it (cl100k: German 1.2, Chinese 1.4, Hindi 3.7), so also
        count the messages that you select. It does not apply to media, whose cost differs between model families: always count messages
        that contain media.
        """

    def text(self, text: str) -> int:
        """Return the number of tokens of a text. Text that looks like a special token is counted as ordinary text."""

    def message(self, message: Message) -> int:
        """Return the number of tokens of a message in a prompt, including its frame."""

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of tokens of a call's tool schemas, given as in the request's `tools`."""
