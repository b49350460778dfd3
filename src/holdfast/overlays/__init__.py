"""What is laid over logs between calls: views, summaries, ratings; and what this process remembers of them."""
