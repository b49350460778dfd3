"""Store media of messages once per session by their content, and refer to them from messages.

store     takes media out of messages on the way into a store
outgoing  puts media back into messages that are sent

`holdfast.domain.medium` and `holdfast.domain.media` define what a medium is, and where its data is in a part.
"""
