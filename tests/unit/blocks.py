"""Configuration blocks of documents that people follow: single blocks, and joined pages."""

from __future__ import annotations

from typing import Final

ENV: Final = {"DB_HOST": "127.0.0.1", "DB_USER": "u", "DB_PASSWORD": "p", "OPENAI_API_KEY": "k"}
"""What they refer to."""

_MAIN: Final = "storage:\n  sessions:\n    backend: sql\n    database: main\n"
_POSTGRES: Final = """
databases:
  main:
    driver: postgres
    host: {host}
    port: 5432
    database: chat
    user: ${{DB_USER}}
    password: ${{DB_PASSWORD}}
"""
_EMBEDDER: Final = """
embedders:
  default:
    provider: openai
    model: text-embedding-3-small
    api_key: ${OPENAI_API_KEY}
"""
_VECTOR: Final = """
storage:
  memory:
    backend: vector
    embedder: default
"""
_VECTOR_PROVIDER: Final = """
storage:
  memory:
    backend: vector
    embedder: default
    vector_provider:
      type: chromem           # Embedded vector store
      chromem:
        persist_path: .chat/memory_vectors
        compress: true        # Gzip compression
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
TEMPLATE: Final = """
agents:
  assistant:
    instruction: |
      User's preferred language: {user:language}
      Current topic: {current_topic?}
      App version: {app:version}
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
PRODUCTION: Final = (
    _POSTGRES.format(host="${DB_HOST}")
    + _EMBEDDER
    + _MAIN
    + """
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
)
BLOCKS: Final = [
    "storage:\n  sessions:\n    backend: inmemory\n",
    _MAIN,
    _POSTGRES.format(host="localhost") + _MAIN,
    TEMPLATE,
    "agents:\n  assistant:\n    context:\n      strategy: none  # Default\n",
    "agents:\n  assistant:\n    context:\n      strategy: buffer_window\n      window_size: 20  # Keep last 20 messages\n",
    "agents:\n  assistant:\n    context:\n      strategy: token_window\n      budget: 8000\n      preserve_recent: 5\n",
    SUMMARY,
    "storage:\n  memory:\n    backend: keyword\n",
    _VECTOR,
    _EMBEDDER + _VECTOR,
    _VECTOR_PROVIDER,
    "agents:\n  assistant:\n    llm: gpt-4o\n    search:\n      enabled: true\n      max_results: 5\n",
    "context:\n  strategy: buffer_window\n  window_size: 20\n",
    "context:\n  strategy: summary_buffer\n  budget: 8000\n  threshold: 0.85\n  target: 0.7\n",
    "context:\n  strategy: token_window\n  budget: 4000\n  preserve_recent: 3\n",
    "databases:\n  main:\n    driver: sqlite\n    path: .chat/chat.db\n\n" + _MAIN,
    PRODUCTION,
    TEAM,
    "short_term:\n  max_history_turns: 50\n",
    "short_term:\n  max_sessions: 10000\n",
    "short_term:\n  session_ttl: 24h\n",
]
"""Single blocks, and the blocks of a page together."""
