"""How long sessions live, how they end, who is told, and what else is done by the clock."""
