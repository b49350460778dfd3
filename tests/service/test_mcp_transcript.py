"""Sessions as an MCP client reads them: in pages within a token budget, without gaps and without repetition."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.domain.session import SessionRef
from holdfast.mcp_server.results import Transcript
from holdfast.mcp_server.transcript import NOTE_AUTHOR, read_transcript
from holdfast.tokens import STORED

REF = SessionRef("default", "s")
LEAST = 200
texts = st.lists(
    st.one_of(st.text(max_size=40), st.integers(0, 3000).map(lambda size: "word " * size)), min_size=1, max_size=60
)


async def read_all(hf: holdfast.Holdfast, budget: int, *, forward: bool) -> list[Transcript]:
    pages = [await read_transcript(hf, REF, budget, **({"after": -1} if forward else {}))]
    while (seq := pages[-1].after if forward else pages[-1].before) is not None:
        pages.append(await read_transcript(hf, REF, budget, **({"after": seq} if forward else {"before": seq})))
    return pages


def make_entry(text: str, is_note: bool) -> dict[str, Any]:
    if is_note:
        return {"role": "note", "origin": {"text": text, "by": NOTE_AUTHOR}}
    return {"role": "user", "content": text}


@given(texts, st.integers(LEAST, 3000), st.booleans(), st.sampled_from([1, 2, 5, 100]))
def test_pages_within_the_budget_have_every_message_and_note_once(
    contents: list[str], budget: int, forward: bool, notes: int
) -> None:
    """Every second, fifth or no entry is a note, or all of them are."""
    entries = [make_entry(text, at % notes == notes - 1) for at, text in enumerate(contents)]

    async def check() -> None:
        async with holdfast.open("sqlite://:memory:", index=None) as hf:
            await (await hf.session("s")).append(entries)
            pages = await read_all(hf, budget, forward=forward)
            ordered = pages if forward else pages[::-1]
            found = [one for page in ordered for one in page.messages]
            assert [one.seq for one in found] == list(range(len(contents)))
            for one in found:
                whole = contents[one.seq]
                assert one.text == whole if not one.cut else whole.startswith(one.text)
            for page in pages:
                assert page.tokens <= budget
                assert STORED.text("\n".join(page.to_text().splitlines()[1 : len(page.messages) + 1])) <= budget * 1.1

    asyncio.run(check())
