"""Session matching: which session a request belongs to that names none."""
