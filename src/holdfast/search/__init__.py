"""Search a user's conversations: options, ranking, results and pages."""
