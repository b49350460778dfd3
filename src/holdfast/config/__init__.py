"""`holdfast.yaml`: one typed model of every key, a strict loader, and what the keys mean together.

values    durations, sizes, masks              document  YAML with line numbers and `${VAR}`
model     every key, its type and default      convert   from the one to the other, every mistake at once
loading   text, file, or nothing               resolve   which model, which store, flags and environment
report    what `config check` tells
"""

from holdfast.config.agents import Agent, McpServer
from holdfast.config.gateway import Gateway, Timeouts
from holdfast.config.loading import DEFAULT_FILE, default, load, read
from holdfast.config.model import LLM, Config, Database, LLMSettings, ShortTerm
from holdfast.config.report import Report, check, config_check
from holdfast.config.resolve import (
    ServerSettings,
    artifacts_of,
    context_of,
    database_url,
    embedder_settings,
    find_file,
    is_loopback,
    life_of,
    mcp_of,
    python_of,
    settings_from,
    store_url,
    upstream_of,
)
from holdfast.config.shown import config_show, describe
from holdfast.config.values import format_duration, format_size, mask_url, parse_duration, parse_size

__all__ = [
    "DEFAULT_FILE",
    "LLM",
    "Agent",
    "Config",
    "Database",
    "Gateway",
    "LLMSettings",
    "McpServer",
    "Report",
    "ServerSettings",
    "ShortTerm",
    "Timeouts",
    "artifacts_of",
    "check",
    "config_check",
    "config_show",
    "context_of",
    "database_url",
    "default",
    "describe",
    "embedder_settings",
    "find_file",
    "format_duration",
    "format_size",
    "is_loopback",
    "life_of",
    "load",
    "mask_url",
    "mcp_of",
    "parse_duration",
    "parse_size",
    "python_of",
    "read",
    "settings_from",
    "store_url",
    "upstream_of",
]
