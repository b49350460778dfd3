"""Write summaries without a model: the facts of the messages, as a digest has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.agents import Summarizer
from holdfast.context.digest.pool import EMPTY, fold, render
from holdfast.context.summaries import cut_to_fit, iter_identifiers, iter_records, shorten
from holdfast.context.units import group_units
from holdfast.domain.log import extend
from holdfast.domain.session import NewEntry, Tail
from holdfast.tokens import STORED
from holdfast.wire.openai import parse_message

_EARLIER: Final = 0.5
"""Largest share of a summary that the text of the previous one may take."""
_CHARS_A_TOKEN: Final = 3
"""Characters that are kept for each token if the messages have no facts."""


def write_digest(messages: Sequence[Mapping[str, Any]], *, earlier: str | None, tokens: int) -> str:
    """Return the facts of messages, after the previous summary. The arguments are those of `Summarizer.write`."""
    parsed = [parse_message(message) for message in messages]
    new = [NewEntry(message=one, tokens=STORED.message(one), timestamp=0) for one in parsed]
    entries, tail = extend(Tail(), new)
    units = group_units(entries)
    kept = _keep_lines(earlier, int(_EARLIER * tokens)) if earlier else []
    room = max(1, tokens - STORED.text("\n".join(kept)) - 1)
    page = render(fold(EMPTY, units, room=room), room, first=0, last=max(0, tail.last_seq), count=STORED)
    lines = page.splitlines()[1:-1] or [shorten("\n".join(iter_records(units)), _CHARS_A_TOKEN * room)]
    return cut_to_fit("\n".join([*kept, *lines]), tokens, STORED.text)


def _keep_lines(earlier: str, tokens: int) -> list[str]:
    """Return those lines of an earlier summary that have most identifiers, in their order, with at most `tokens` tokens. Newer lines win."""
    lines = earlier.splitlines()
    ranked = sorted(range(len(lines)), key=lambda at: (min(3, len(set(iter_identifiers(lines[at])))), at), reverse=True)
    kept: list[int] = []
    for at in ranked:
        tokens -= STORED.text(lines[at]) + 1
        if tokens < 0:
            break
        kept.append(at)
    return [lines[at] for at in sorted(kept)]


DIGEST: Final = Summarizer("digest", write_digest)
"""Writes summaries of sessions whose strategy has no model for them."""
