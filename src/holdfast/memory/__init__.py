"""What is remembered across sessions: how it is kept, merged, found and reviewed, and where its words come from."""
