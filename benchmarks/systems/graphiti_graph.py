"""Graphiti, the open-source engine of Zep, with Kuzu as its database in a file.

Each turn searches for the user's message, and then adds one episode with the user's message and the answer.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ["GRAPHITI_TELEMETRY_ENABLED"] = "false"  # read when graphiti_core is imported

from graphiti_core import Graphiti
from graphiti_core.cross_encoder.openai_reranker_client import OpenAIRerankerClient
from graphiti_core.driver.driver import GraphProvider
from graphiti_core.driver.kuzu_driver import KuzuDriver
from graphiti_core.embedder.openai import OpenAIEmbedder, OpenAIEmbedderConfig
from graphiti_core.graph_queries import get_fulltext_indices
from graphiti_core.llm_client.config import LLMConfig
from graphiti_core.llm_client.openai_generic_client import OpenAIGenericClient
from graphiti_core.nodes import EpisodeType

from benchmarks.systems.turns import main

DIMENSIONS = 256
GROUP = "bench"


class GraphitiSystem:
    """The graph of one user."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    async def run_turn(self, user: str, answer: str) -> None:
        await self._graph.search(user, group_ids=[GROUP])
        await self._graph.add_episode(
            name="turn",
            episode_body=f"user: {user}\nassistant: {answer}",
            source=EpisodeType.message,
            source_description="chat",
            reference_time=datetime.now(UTC),
            group_id=GROUP,
        )

    async def read_texts(self) -> Sequence[str]:
        episodes = await self._graph.retrieve_episodes(datetime.now(UTC), last_n=100_000, group_ids=[GROUP])
        return [episode.content for episode in episodes]

    async def close(self) -> None:
        await self._graph.close()


async def open_system(url: str, folder: Path) -> GraphitiSystem:
    warnings.simplefilter("ignore", DeprecationWarning)
    config = LLMConfig(api_key="unused", base_url=f"{url}/v1", model="gpt-4o", small_model="gpt-4o-mini")
    embedder = OpenAIEmbedderConfig(api_key="unused", base_url=f"{url}/v1", embedding_dim=DIMENSIONS)
    driver: Any = KuzuDriver(str(folder / "graph.kuzu"))
    driver._database = GROUP  # noqa: SLF001 - `add_episode` reads it, but the driver for Kuzu does not set it
    for query in get_fulltext_indices(GraphProvider.KUZU):  # the driver for Kuzu does not create them itself
        await driver.execute_query(query)
    graph = Graphiti(
        graph_driver=driver,
        llm_client=OpenAIGenericClient(config),
        embedder=OpenAIEmbedder(embedder),
        cross_encoder=OpenAIRerankerClient(config),
    )
    return GraphitiSystem(graph)


if __name__ == "__main__":
    main(open_system)
