"""The lifecycle of sessions: how long they live, how they end, the notification of hooks, and periodic clean-up.

settings   ttl, cap and retention          expiry         ends of sessions, and the store that applies them
sweeper    periodic clean-up               hook_delivery  notification of hooks
removal    deletion of a whole session
"""
