"""Media in messages: kept once a session by their content, bound to their messages by reference.

store    the seam on the way into a store                  leaving  put back where messages leave

What a medium is, and where its data stand in a part: `holdfast.domain.medium`, `holdfast.domain.media`.
"""
