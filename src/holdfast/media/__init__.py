"""Store the media data of a session's messages separately, each content once, with references in the messages.

- `store`: takes media data out of messages before they are stored.
- `outgoing`: puts media data back into messages before they are sent.

`holdfast.domain.medium` and `holdfast.domain.media` define which content parts are media, and where a part has its data.
"""
