"""Who may come in: the key `auth`. API keys themselves are in the store; see `holdfast keys`."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from holdfast.config.gateway import is_loopback
from holdfast.config.kinds import Count, Mistake, Names, Settings, Text, Url, url_mistakes
from holdfast.limits import ID_BYTES
from holdfast.stores.keys import Role

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "ES256K"),
    "EdDSA",
)
"""How a token may be signed: with a key that only its issuer has. Those with a shared secret are none of them."""


class Jwt(Settings, frozen=True, kw_only=True):
    """Tokens of somebody else's that are taken, beside API keys."""

    jwks_url: Url | None = None
    """Where the issuer's public keys are."""
    jwks_file: Text | None = None
    """Or a file with them."""
    issuer: Text
    """What `iss` must be."""
    audience: Names
    """What `aud` must be, or have in it."""
    algorithms: Names = ("RS256", "ES256", "EdDSA")
    """How tokens may be signed; also RS384, RS512, PS256, PS384, PS512, ES384, ES512, ES256K."""
    user_claim: Text = "sub"
    """The claim that names the user; a token without it is refused."""
    tenant_claim: Text | None = None
    """The claim that names the tenant; a token without it is refused. Unset: `tenant`."""
    tenant: Text | None = None
    """Whose sessions every token opens, where no claim says; unset: the server's own tenant."""
    role_claim: Text | None = None
    """The claim that says `read`, `write` or `admin`, or a list with one of them in it."""
    role: Role = "write"
    """Of tokens that do not say."""
    leeway: Annotated[float, Meta(ge=0, le=600, extra={"form": "duration"})] = 30.0
    """Seconds by which clocks may differ."""

    def mistakes(self) -> list[Mistake]:
        found = url_mistakes("jwks_url", self.jwks_url)
        if (self.jwks_url is None) == (self.jwks_file is None):
            found.append(("jwks_url", "give one of jwks_url and jwks_file"))
        parts = urlsplit(self.jwks_url or "")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            found.append(("jwks_url", "must begin with https://: whoever changes the keys on the way may come in"))
        wrong = [name for name in self.algorithms if name not in ALGORITHMS]
        found += [("algorithms", f"{name!r} is none of {', '.join(ALGORITHMS)}") for name in wrong]
        found += [(key, "is empty") for key in ("algorithms", "audience") if not getattr(self, key)]
        if self.tenant is not None and self.tenant_claim is not None:
            found.append(("tenant", "the claim says it; remove one of the two"))
        if self.tenant is not None and len(self.tenant.encode()) > ID_BYTES:
            found.append(("tenant", f"has more than {ID_BYTES} bytes"))
        return found


class Auth(Settings, frozen=True, kw_only=True):
    """Who may come in."""

    required: bool | None = None
    """Whether nobody comes in without a key or a token; unset: as soon as the store has a key, or `jwt` is set."""
    rate: Count = 0
    """Requests a minute with one key, or of one user of `jwt`; 0: any number. A key may have a rate of its own."""
    burst: Count = 0
    """How many of them may come at once; 0: those of a quarter of a minute."""
    jwt: Jwt | None = None

    @property
    def kind(self) -> Literal["never", "always", "keys"]:
        """When somebody is asked who they are: `keys` is as soon as there is one."""
        if self.required is not None:
            return "always" if self.required else "never"
        return "keys" if self.jwt is None else "always"
