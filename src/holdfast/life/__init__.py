"""How long sessions live, how they end, who is told, and what else is done by the clock.

settings   how long, and how many                          ending     one that ends, and those that are too many
living     a store whose sessions end in time              telling    hooks are told of ends
sweeping   what is done by the clock                       removing   one that goes, with all that belongs to it
receipts   what went with it
"""
