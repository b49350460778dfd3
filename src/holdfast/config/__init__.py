"""Load and check `holdfast.yaml`, and build a `Holdfast` from it.

- `model`: defines every key; large sections are in `agents`, `gateway`, `hooks`, `llms` and `storage`
- `loader`: loads a `Config` from text, file, flags and environment, renames keys in their second spelling, and collects every mistake
- `yaml_tree`: parses YAML into a tree with line numbers, and fills in `${VAR}`
- `dotenv`: reads `.env` files
- `environment`: overrides values by variables such as `HOLDFAST_GATEWAY__PORT`
- `convert`: converts the tree to the classes of `model`
- `resolve`: finds the model that answers, an embedder, and the database of the sessions
- `build`: creates a `Holdfast` and its parts
- `check`, `show`: implement `holdfast config check` and `holdfast config show`
- `json_schema`: generates the JSON Schema for editors
"""

from holdfast.config.check import check_config
from holdfast.config.loader import load, load_settings
from holdfast.config.resolve import resolve_context, resolve_llm, resolve_store_url

__all__ = ["check_config", "load", "load_settings", "resolve_context", "resolve_llm", "resolve_store_url"]
