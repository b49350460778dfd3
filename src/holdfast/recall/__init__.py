"""Recall: what searching over conversations and memories consists of."""
