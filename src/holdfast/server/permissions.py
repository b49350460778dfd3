"""The access table: what each route asks of whoever calls it. A route that is not in it is answered to nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from holdfast.stores.keys import Role

Access = Role | Literal["public", "server"]
"""`public`: no key is asked for, and nothing of anybody is told. `server`: an admin key of the server's own tenant, of no user."""

REST: Final = "/{path:path}"
"""Where no route is."""
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ONE: Final = "/v1/sessions/{session_id}"

PERMISSIONS: Final[Mapping[tuple[str, str], Access]] = {
    ("POST", "/v1/chat/completions"): "write",
    ("POST", "/v1/messages"): "write",
    ("POST", "/v1/messages/count_tokens"): "read",
    ("GET", "/v1/models"): "read",
    ("GET", "/v1/sessions"): "read",
    ("POST", "/v1/sessions"): "write",
    ("GET", _ONE): "read",
    ("PUT", _ONE): "write",
    ("PATCH", _ONE): "write",
    ("DELETE", _ONE): "write",
    ("POST", f"{_ONE}/close"): "write",
    ("POST", f"{_ONE}/fork"): "write",
    ("POST", f"{_ONE}/rewind"): "write",
    ("DELETE", "/v1/users/{user_id}"): "admin",
    ("GET", f"{_ONE}/messages"): "read",
    ("POST", f"{_ONE}/messages"): "write",
    ("PATCH", f"{_ONE}/messages/{{seq}}"): "write",
    ("DELETE", f"{_ONE}/messages/{{seq}}"): "write",
    ("POST", f"{_ONE}/context"): "read",
    ("GET", f"{_ONE}/history"): "read",
    ("POST", f"{_ONE}/interrupt"): "write",
    ("POST", f"{_ONE}/speak"): "write",
    ("GET", f"{_ONE}/compactions"): "read",
    ("POST", f"{_ONE}/compactions"): "write",
    ("GET", f"{_ONE}/compactions/{{compaction_id}}"): "read",
    ("DELETE", f"{_ONE}/compactions/{{compaction_id}}"): "write",
    ("GET", f"{_ONE}/artifacts"): "read",
    ("GET", f"{_ONE}/artifacts/{{name}}"): "read",
    ("PUT", f"{_ONE}/artifacts/{{name}}"): "write",
    ("DELETE", f"{_ONE}/artifacts/{{name}}"): "write",
    ("GET", f"{_ONE}/artifacts/{{name}}/versions"): "read",
    ("GET", "/sessions"): "read",
    ("GET", "/sessions/{session_id}"): "read",
    ("DELETE", "/sessions/{session_id}"): "write",
    ("GET", "/healthz"): "public",
    ("GET", "/readyz"): "public",
    ("GET", "/metrics"): "server",
    ("GET", "/openapi.json"): "public",
    ("GET", "/docs"): "public",
    ("GET", "/"): "public",
    **{(method, REST): "read" for method in METHODS},
}
"""By method and route; HEAD asks what GET asks."""

PUBLIC: Final = frozenset(path for (_, path), access in PERMISSIONS.items() if access == "public")
"""Paths that are answered whoever asks."""
