"""Search in conversations and memories: text analysis, ranking, and the interface of the index (`base`)."""
