"""The APIs in which a turn can be asked for: each a `Door` (see `base`) before the one path through `server.chat`."""
