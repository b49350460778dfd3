"""Other people's shapes, both ways; one file a shape."""
