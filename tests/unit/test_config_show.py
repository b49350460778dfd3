"""Addresses as `config show` writes them: without passwords."""

from __future__ import annotations

import pytest

from holdfast.sections import mask_url


@pytest.mark.parametrize("sign", ["/", "#", "?", "/#?"])
def test_a_password_that_breaks_its_url_is_not_shown(sign: str) -> None:
    shown = mask_url(f"postgresql://ada:s3{sign}cret@db:5432/chat")
    assert shown == "postgresql://***"
    assert mask_url("sqlite:////home/ada@home/chat.db") == "sqlite:////home/ada@home/chat.db"
