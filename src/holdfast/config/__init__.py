"""Load and check `holdfast.yaml`: a typed model of every key, a strict loader, and what the keys mean together.

- `model`: every key; large sections are in `agents`, `gateway`, `hooks`, `llms` and `storage`
- `loader`: from text, file, flags and environment to a `Config`, collecting every mistake
- `yaml_tree`: YAML with line numbers and `${VAR}`
- `aliases`: other systems' spelling of keys
- `environment`: `.env` files, and variables such as `HOLDFAST_GATEWAY__PORT`
- `convert`: from the tree to the model
- `resolve`: which model answers, which embedder, which store
- `build`: a `Holdfast` and its parts
- `check`, `show`: `holdfast config check` and `holdfast config show`
- `reference`: the table of all keys, and the JSON Schema for editors
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
    "default": "loading.load_default",
    "life_of": "build.build_life_settings",
    "settings_from": "loading.load_settings",
    "store_url": "resolve.resolve_store_url",
    "upstream_of": "resolve.resolve_llm",
}
"""Names documented in 0.1, and their current functions; to be removed in 0.3."""


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, new = _RENAMED[name].partition(".")
    warnings.warn(f"holdfast.config.{name} is now holdfast.config.{module}.{new}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(f"holdfast.config.{module}"), new)
