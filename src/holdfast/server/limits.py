"""Limits of HTTP requests and responses, of sign-ins, and of the pages of the inspector.

Only the server uses these. `holdfast.limits` has all others, and the limits that operators can set. docs/limits.md lists those that users meet,
and a test compares it with both tables.
"""

from __future__ import annotations

from typing import Final

from holdfast.limits import MIB

STATE_CHANGES: Final = 1000
"""State operations in one request (`changes`)."""
REMATCHES: Final = 8
"""Attempts to match a request without `session_id` again, because another request took the matching session first.

After that, the request gets a new session.
"""
DIARY_PAGE: Final = 100
"""Consolidation sweeps on one page of the diary."""
ANSWER_BYTES: Final = 64 * 1024
"""Part of a larger response that is sent at once."""
BODY_SECONDS: Final = 60.0
"""Seconds within which a body must arrive, with as many more for each 16 MiB of it, and for which a large request waits for others of its tenant."""
LARGE_BYTES: Final = MIB
"""Largest body or response that does not count as large."""
LARGE_REQUESTS_OF_TENANT: Final = 8
"""Requests of a tenant with a large body that has not begun its turn, or with a large response that was not read. Others wait."""
RECORDED_RESPONSES: Final = 16
"""Background responses of one principal that run at the same time on one server, and whose events it keeps."""
RECORDED_BYTES: Final = 16 * 1024 * 1024
"""Events of finished background responses of one principal that one server keeps."""
MCP_REQUEST_BYTES: Final = 256 * 1024
"""One request to the MCP server, over HTTP."""
ACTIVITY_POINTS: Final = 1000
"""Points of one series of activity."""
INSPECTOR_STREAMS: Final = 200
"""Open pages of the inspector that a server notifies of changes."""
INSPECTOR_STREAMS_OF_PRINCIPAL: Final = 20
"""Maximum number of these that are open at once, per principal."""
INSPECTOR_STREAM_SECONDS: Final = 600
"""Seconds after which such a page connects again, with the rights that its caller then has."""
RESUMED_ENTRIES: Final = 2000
"""Messages after a compaction item that are compared with a request to find out what is new."""
HEAD_BYTES: Final = 64 * 1024
"""A request's line and headers together."""
UNREAD_BYTES: Final = 256 * 1024
"""Data that waits in the server for a slow client, in addition to the system's own buffers. When there is more, the reply waits."""
READ_BYTES: Final = 64 * 1024
"""Waiting data that a slow client must read in `gateway.send_timeout`, unless less data is waiting."""
TOKEN_CHARS: Final = 16_384
"""Longest token of `auth.jwt`, and longest upstream key that is forwarded."""
JWKS_BYTES: Final = 1 * MIB
"""Largest JSON Web Key Set for checking tokens."""
KEYS_REMEMBERED: Final = 10_000
"""API keys that a server caches for some seconds; also the callers whose requests it counts."""
COOKIE_CHARS: Final = 3_800
"""Longest token of `auth.jwt` with which a browser can sign in. Browsers drop longer cookies."""
SIGN_IN_HOURS: Final = 12
"""Hours after which a sign-in ends."""
PARAMETERS: Final = 50
"""Query parameters in a request."""
SIGN_IN_BYTES: Final = 64 * 1024
"""Largest form with which a browser signs in. It comes from a caller that is not known yet."""
FORM_FIELDS: Final = 1_000
"""Fields in a form that a page of the inspector sends."""
FORM_BYTES: Final = 8 * MIB
"""Largest form that a page of the inspector sends."""
INSPECTOR_IMAGE_BYTES: Final = 8 * MIB
"""Largest image of an artifact that a page of the inspector shows. Larger ones can be downloaded."""
INSPECTOR_TEXT_CHARS: Final = 20_000
"""Characters of one text that a page of the inspector shows."""
PLAYGROUND_MESSAGES: Final = 40
"""Messages of a conversation that the playground of the inspector shows."""
INSPECTOR_MESSAGES: Final = 100
"""Messages of a session on one page of the inspector."""
INSPECTOR_JSON_CHARS: Final = 200_000
"""Characters of JSON that a page of the inspector shows as a tree; more is shown as text."""
INSPECTOR_JSON_ITEMS: Final = 5_000
"""Items of all such trees on one page."""
DRAIN_BYTES: Final = 8 * MIB
"""Data of a body that is still read after its response was sent. Then the connection is closed."""
DRAIN_SECONDS: Final = 5.0
"""Seconds for which a body is still read after its response was sent."""
