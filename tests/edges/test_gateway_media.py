"""Media through the gateway: the official client sends images, the upstream receives them, the store has each one
once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.limits import MIB
from holdfast.testing import ScriptedUpstream
from tests.edges.server import Process, config_text, gateway
from tests.unit.media_kit import image_url, png

PICTURE, OTHER = png(size=20_000), png(320, 200, size=9_000, seed=3)
SEE: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "see"}, image_url(PICTURE, detail="high")]}


async def test_idempotent_retry_with_an_image_is_replayed() -> None:
    """Nothing is written twice."""
    async with gateway(["A picture."]) as (served, upstream):
        first, second = [await served.chat([SEE], headers={"idempotency-key": "k"}) for _ in range(2)]
        assert first["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"] == "A picture."
        assert len(upstream.requests) == 1


GROWTH = 150 * MIB
"""Far below eight pictures of 20 MiB in base64, above what one of them may take on its way."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory of a process is told on Linux only")
async def test_memory_stays_flat(tmp_path: Path) -> None:
    """Images of 20 MiB one after the other: memory stops growing after the first ones."""
    async with ScriptedUpstream(["ok"] * 7) as upstream:
        config = tmp_path / "holdfast.yaml"
        config.write_text(config_text(upstream.url))
        with Process(f"sqlite:///{tmp_path}/s.db", config=config) as server:
            async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=120) as http:
                for number in range(7):
                    content = png(size=64, seed=number) + os.urandom(20 * MIB - 200)
                    said = [{"role": "user", "content": [image_url(content)]}]
                    response = await http.post(
                        "/v1/chat/completions", json={"messages": said, "session_id": f"s{number}"}
                    )
                    assert response.status_code == 200
                    assert len(upstream.requests[-1].raw) > 20 * MIB
                    upstream.requests.clear()
                    if number == 3:
                        before = _read_peak_memory(server.process.pid)
                assert _read_peak_memory(server.process.pid) - before < GROWTH


def _read_peak_memory(pid: int) -> int:
    """Return the peak memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
