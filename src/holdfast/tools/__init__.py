"""Tools that run here: what one is, how one is made from a function, what it is given, and how the calls of a message run."""
