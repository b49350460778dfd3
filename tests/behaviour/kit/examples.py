"""The configuration examples of the documents that the product was asked for, as they are written there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.behaviour.kit.seams import run_command

ENVIRONMENT: Final = {
    "DB_HOST": "127.0.0.1",
    "DB_USER": "ada",
    "DB_PASSWORD": "a@/#b",
    "OPENAI_API_KEY": "sk-test",
}
"""The variables that they name."""

SESSIONS: Final = "storage:\n  sessions:\n    backend: sql\n    database: main\n"
POSTGRES: Final = """
databases:
  main:
    driver: postgres
    host: localhost
    port: 5432
    database: hector
    user: ${DB_USER}
    password: ${DB_PASSWORD}

"""
SQLITE: Final = f"""
databases:
  main:
    driver: sqlite
    path: .hector/hector.db

{SESSIONS}"""
EMBEDDER: Final = """
embedders:
  default:
    provider: openai
    model: text-embedding-3-small
    api_key: ${OPENAI_API_KEY}

"""
KEYWORD: Final = "storage:\n  memory:\n    backend: keyword\n"
VECTOR: Final = "storage:\n  memory:\n    backend: vector\n    embedder: default\n"
CHROMEM: Final = f"""{VECTOR}    vector_provider:
      type: chromem           # Embedded vector store
      chromem:
        persist_path: .hector/memory_vectors
        compress: true        # Gzip compression
"""
TEMPLATE: Final = """
agents:
  assistant:
    instruction: |
      User's preferred language: {user:language}
      Current topic: {current_topic?}
      App version: {app:version}
"""
SUMMARY: Final = """
agents:
  assistant:
    context:
      strategy: summary_buffer
      budget: 8000           # Token budget
      threshold: 0.85        # Summarize at 85% usage
      target: 0.7            # Reduce to 70% after summarizing
      summarizer_llm: fast   # Use cheaper model for summarization
"""
SEARCH: Final = """
agents:
  assistant:
    llm: gpt-4o
    search:
      enabled: true
      max_results: 5
"""
PRODUCTION: Final = f"""{POSTGRES.replace("localhost", "${DB_HOST}")}{EMBEDDER}{SESSIONS}
  index:
    type: vector
    embedder: default

agents:
  assistant:
    llm: default
    context:
      strategy: summary_buffer
      budget: 8000
      threshold: 0.85
      target: 0.7
"""
TEAM: Final = """
agents:
  coordinator:
    llm: default
    sub_agents: [researcher, writer]
    context:
      strategy: buffer_window
      window_size: 30

  researcher:
    llm: default
    tools: [search]
    context:
      strategy: buffer_window
      window_size: 20

  writer:
    llm: default
    tools: [text_editor]
    context:
      strategy: buffer_window
      window_size: 20
"""
CHOICES: Final = {
    "short conversations": "context:\n  strategy: buffer_window\n  window_size: 20\n",
    "long conversations": "context:\n  strategy: summary_buffer\n  budget: 8000\n  threshold: 0.85\n  target: 0.7\n",
    "low cost": "context:\n  strategy: token_window\n  budget: 4000\n  preserve_recent: 3\n",
}
_AGENT: Final = "agents:\n  assistant:\n    context:\n      strategy: "
BLOCKS: Final = {
    "turns": "short_term:\n  max_history_turns: 50\n",
    "cap": "short_term:\n  max_sessions: 10000\n",
    "ttl": "short_term:\n  session_ttl: 24h\n",
    "in memory": "storage:\n  sessions:\n    backend: inmemory\n",
    "sql": SESSIONS,
    "postgres": POSTGRES + SESSIONS,
    "sqlite": SQLITE,
    "template": TEMPLATE,
    "none": f"{_AGENT}none  # Default\n",
    "buffer_window": f"{_AGENT}buffer_window\n      window_size: 20  # Keep last 20 messages\n",
    "token_window": f"{_AGENT}token_window\n      budget: 8000         # Max tokens\n      preserve_recent: 5   # Always keep last 5 messages\n",
    "summary_buffer": SUMMARY,
    "keyword": KEYWORD,
    "vector": VECTOR,
    "vector with an embedder": EMBEDDER + VECTOR,
    "vectors on disk": CHROMEM,
    "search": SEARCH,
    **CHOICES,
    "production": PRODUCTION,
    "team": TEAM,
}
"""All of them, by subject."""


async def check_accepted(folder: Path, text: str, warning: str = "") -> None:
    """`holdfast config check` accepts a text, without a warning but for this one."""
    file = folder / "holdfast.yaml"
    file.write_text(text)
    checked = await run_command(["config", "check", str(file)], env=ENVIRONMENT)
    verdict = f"{file}: ok, 1 warning" if warning else f"{file}: ok"
    assert checked.code == 0
    assert verdict in checked.out.splitlines()
    assert checked.out.startswith("warning: " if warning else verdict)
    assert warning in checked.out
