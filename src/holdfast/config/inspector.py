"""Define the key `inspector`: the web pages of the server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.sections import Settings
from holdfast.stores.keys import Role


class Inspector(Settings, frozen=True, kw_only=True):
    """The web pages of the server, at `/`."""

    enabled: bool = True
    """True: serve the pages. False: the server has only its APIs."""
    hide_content: Annotated[tuple[Role, ...], Meta(extra={"form": "names"})] = ()
    """Roles whose keys see no text of messages, memories, state and artifacts on the pages: any of `read`, `write`, `admin`. The REST API
    does not use this key."""
