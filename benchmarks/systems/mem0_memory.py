"""mem0's open-source `Memory` with its default vector store, Qdrant in a folder.

Each turn searches for the user's message and then adds the user's message and the answer. With the argument `raw`, `add` gets
`infer=False`: it stores the messages themselves and calls no model except the embedder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["MEM0_TELEMETRY"] = "False"  # read when mem0 is imported

from mem0 import Memory

from benchmarks.systems.turns import main

DIMENSIONS = 256


class Mem0System:
    """The memories of one user."""

    def __init__(self, memory: Any, *, infer: bool) -> None:
        self._memory = memory
        self._infer = infer

    async def run_turn(self, user: str, answer: str) -> None:
        self._memory.search(user, filters={"user_id": "bench"})
        messages = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
        self._memory.add(messages, user_id="bench", infer=self._infer)

    async def read_texts(self) -> Sequence[str]:
        found = self._memory.get_all(filters={"user_id": "bench"}, top_k=100_000)
        return [one["memory"] for one in found["results"]]

    async def close(self) -> None:
        self._memory.close()


async def open_system(url: str, folder: Path) -> Mem0System:
    os.environ["MEM0_DIR"] = str(folder)
    provider = {"openai_base_url": f"{url}/v1", "api_key": "unused"}
    memory = Memory.from_config(
        {
            "llm": {"provider": "openai", "config": {"model": "gpt-4o", **provider}},
            "embedder": {
                "provider": "openai",
                "config": {"model": "text-embedding-3-small", "embedding_dims": DIMENSIONS, **provider},
            },
            "vector_store": {
                "provider": "qdrant",
                "config": {"path": str(folder / "qdrant"), "embedding_model_dims": DIMENSIONS, "on_disk": True},
            },
            "history_db_path": str(folder / "history.db"),
        }
    )
    return Mem0System(memory, infer="raw" not in sys.argv[4:])


if __name__ == "__main__":
    main(open_system)
