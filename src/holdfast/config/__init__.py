"""Load and check `holdfast.yaml`, and build a `Holdfast` from it.

- `model`: defines every key; large sections are in `agents`, `gateway`, `hooks`, `llms` and `storage`
- `loader`: loads a `Config` from text, file, flags and environment, and collects every mistake
- `yaml_tree`: parses YAML into a tree with line numbers, and fills in `${VAR}`
- `aliases`: translates keys of files that were written for other systems
- `environment`: reads `.env` files, and variables such as `HOLDFAST_GATEWAY__PORT`
- `convert`: converts the tree to the classes of `model`
- `resolve`: finds the model that answers, an embedder, and the database of the sessions
- `build`: creates a `Holdfast` and its parts
- `check`, `show`: implement `holdfast config check` and `holdfast config show`
- `reference`: generates the table of all keys, and the JSON Schema for editors
"""

import importlib
import warnings
from typing import Any, Final

from holdfast.config.check import Report, check_config, list_warnings
from holdfast.config.loader import ServerSettings, load, load_default, load_file, load_settings
from holdfast.config.model import Config
from holdfast.config.resolve import resolve_context, resolve_embedder, resolve_llm, resolve_store_url
from holdfast.config.show import describe, show_config

__all__ = [
    "Config",
    "Report",
    "ServerSettings",
    "check_config",
    "describe",
    "list_warnings",
    "load",
    "load_default",
    "load_file",
    "load_settings",
    "resolve_context",
    "resolve_embedder",
    "resolve_llm",
    "resolve_store_url",
    "show_config",
]

_RENAMED: Final = {
    "config_check": "check.check_config",
    "config_show": "show.show_config",
    "context_of": "resolve.resolve_context",
    "default": "loader.load_default",
    "life_of": "build.build_life_settings",
    "settings_from": "loader.load_settings",
    "store_url": "resolve.resolve_store_url",
    "upstream_of": "resolve.resolve_llm",
}
"""Current module and function by the name in 0.1. The old names work until 0.3."""


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, new = _RENAMED[name].partition(".")
    warnings.warn(f"holdfast.config.{name} is now holdfast.config.{module}.{new}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(f"holdfast.config.{module}"), new)
