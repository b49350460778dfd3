"""`holdfast.yaml`: one typed model of every key, a strict loader, and what the keys mean together.

What a file may say:
model      the whole, every section with its type and default; a section of some size is a file of its own name:
           agents, auth, dreaming, embedders, gateway, hooks, llms, python, secrets, storage, workspace
kinds      what sections are made of             values     durations, sizes, masks

From text to that:
document   YAML with line numbers and `${VAR}`   dotenv     variables, and those of `.env` files
spelling   other systems' words for the same     overrides  `HOLDFAST_GATEWAY__PORT` and its like
convert    from the tree to the model            relations  what agents say of each other
loading    text, file, or nothing: every mistake at once

What it means:
upstreams  which model answers, who embeds       resolve    which store; flags and environment over the file
roster, indexing, parts   what a `Holdfast` is made of      opening    the `Holdfast` itself

What people are told:
report     `config check`                        warnings   what loads, and will not do what was meant
shown      `config show`
fields     the table of all keys                 schema     JSON Schema for editors
"""

from holdfast.config.agents import Agent, McpServer
from holdfast.config.gateway import Gateway, Timeouts, is_loopback
from holdfast.config.llms import LLM, LLMSettings
from holdfast.config.loading import DEFAULT_FILE, default, load, read
from holdfast.config.model import Config, ShortTerm
from holdfast.config.parts import artifacts_of, life_of, mcp_of, python_of
from holdfast.config.report import Report, config_check
from holdfast.config.resolve import ServerSettings, find_file, settings_from, store_url
from holdfast.config.shown import config_show, describe
from holdfast.config.storage import Database, database_url
from holdfast.config.upstreams import context_of, embedder_settings, upstream_of
from holdfast.config.values import format_duration, format_size, mask_url, parse_duration, parse_size
from holdfast.config.warnings import check

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
