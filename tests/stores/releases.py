"""Earlier releases, for tests of what a later one makes of their databases."""

from __future__ import annotations

import pytest

from holdfast.stores.sql import migrations


def know_only(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make this release one that knows only the first `count` migrations of each dialect."""
    for name in ("sqlite", "postgres", "mysql"):
        monkeypatch.setattr(f"holdfast.stores.{name}.migrations", lambda dialect: migrations(dialect)[:count])
