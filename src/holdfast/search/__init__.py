"""Search over a user's conversations: what can be asked, what is found, and its pages."""
