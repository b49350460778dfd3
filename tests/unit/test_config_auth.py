"""The section `auth` of the configuration."""

from __future__ import annotations

import pytest

from holdfast.config import load
from holdfast.config.gateway import Auth

JWT = "issuer: https://i, audience: a"


def auth(text: str) -> Auth:
    return load(f"auth: {text}", env={}).auth


def test_defaults() -> None:
    """Keys are required once one exists, without a rate limit."""
    found = load("", env={}).auth
    assert (found.required, found.rate, found.jwt, found.kind) == (None, 0, None, "keys")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{required: true}", "always"),
        ("{required: false}", "never"),
        (f"{{jwt: {{{JWT}, jwks_url: f}}}}", "always"),
        (f"{{required: false, jwt: {{{JWT}, jwks_url: f}}}}", "never"),
        ("{rate: 60}", "keys"),
    ],
)
def test_when_credentials_are_required(text: str, kind: str) -> None:
    assert auth(text).kind == kind


def test_jwt_settings() -> None:
    """A single audience needs no list, and the keys may be in a file."""
    found = auth(f"{{jwt: {{{JWT}, jwks_url: 'https://i/keys'}}}}").jwt
    assert found is not None
    assert (found.audience, found.file) == (("a",), None)
    assert (found.user_claim, found.tenant_claim, found.role_claim, found.role) == ("sub", None, None, "write")
    local = auth(f"{{jwt: {{{JWT}, jwks_url: keys/set.json}}}}").jwt
    assert local is not None
    assert local.file == "keys/set.json"


def test_a_loopback_issuer_may_use_http() -> None:
    assert auth(f"{{jwt: {{{JWT}, jwks_url: 'http://127.0.0.1:9/keys'}}}}").jwt
