"""JavaScript clients of tests. `scripts/clients` installs them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "javascript"
MODULES = FOLDER / "node_modules"
_SECONDS = 120
"""Time after which a client is stopped."""

needs_openai = pytest.mark.skipif(
    not (MODULES / "openai").exists() or shutil.which("node") is None,
    reason="OpenAI's JavaScript library is not installed: scripts/clients",
)
needs_codex = pytest.mark.skipif(
    not (MODULES / ".bin" / "codex").exists() or shutil.which("node") is None,
    reason="Codex is not installed: scripts/clients",
)


async def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return its output. The test fails if the program fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env={**os.environ, **(env or {})}, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (output.decode(), errors.decode())
    return output.decode()
