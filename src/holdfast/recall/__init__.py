"""Recall: the analysis, ranking and data contract behind searches over conversations and memories."""
