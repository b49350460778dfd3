"""Session matching: find the session of a request that does not name one."""
