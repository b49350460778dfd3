"""The lifecycle of sessions: how long they live, how they end, how hooks are notified, and periodic clean-up.

settings       lifetime, number and retention of sessions
expiry         end sessions, and a store wrapper that ends them on time
sweeper        periodic clean-up
hook_delivery  notify hooks of ended sessions
removal        delete a session with all its data
"""
