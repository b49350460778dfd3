"""How long sessions live, how they end, which hooks are called, and what else is done by the clock.

settings   how long, and how many            expiry         ends, and the store that shows them
sweeper    what is done by the clock         hook_delivery  hooks are called for ends
removal    a session with all that it has
"""
