"""Shared by tests of the tool `python`: a bench whose model calls it, fake processes, and the tool results."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.tools.python.settings import PythonSettings
from tests.service.fake_python import Stage, result
from tests.service.scripted_model import REF
from tests.service.tools_kit import Bench, bench, make_reply


def code(*codes: str) -> list[dict[str, Any]]:
    """Return a message of the model with one call of the tool for each code."""
    return make_reply(None, *[(f"c{at}", "python", {"code": one}) for at, one in enumerate(codes)])


@asynccontextmanager
async def open_python_bench(
    script: Sequence[Any], folder: Path, *tools: Any, **given: Any
) -> AsyncIterator[tuple[Bench, Stage]]:
    """Open a bench with fake processes, with work folders in `folder`, whose model may call the tool."""
    stage = Stage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        async with bench(script, *tools, python=PythonSettings(), **given) as desk:
            stage.take(desk.hf)
            yield desk, stage


async def results(desk: Bench, ref: SessionRef = REF) -> list[dict[str, Any]]:
    """Return the tool results in the order of the log."""
    entries = await desk.hf.store.entries(ref)
    return [result(entry.message.text) for entry in entries if entry.message.role == "tool"]
