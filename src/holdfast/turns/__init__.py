"""One turn, from what came to the reply: `flow` is the onion, and each of its layers is a file."""
