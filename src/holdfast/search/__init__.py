"""Searches of a user's conversations: their options, results and pages."""
