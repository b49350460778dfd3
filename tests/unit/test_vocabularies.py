"""Vocabularies are loaded before a server answers: loading one holds the interpreter's lock for tenths of a second."""

from __future__ import annotations

import pytest

from holdfast import tokens
from holdfast.tokens import counter_for, load_vocabularies


def test_no_counter_loads_anything_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: the first count for a model with another tokenizer stopped all clients for 1 to 2 s."""
    known = {tokens._O200K, tokens._CL100K}
    for vocabulary in known:
        monkeypatch.setattr(vocabulary, "_encoding", None)
    load_vocabularies()
    used = {one for model in ("gpt-4o", "gpt-4", "claude-x", "anything") for one in counter_for(model)._vocabularies}  # type: ignore[attr-defined]
    assert used == known
    monkeypatch.setattr(tokens._Vocabulary, "ranks", lambda _: pytest.fail("loaded again"))
    assert [counter_for(model).text("hello world") for model in ("gpt-4o", "gpt-4", "claude-x")] == [2, 2, 3]
