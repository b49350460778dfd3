"""What is done with sessions from outside of their turns: found, looked at, moved, forked, spoken to, removed."""
