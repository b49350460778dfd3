"""What turns share: store, clock, queues and claims, and what every write passes on its way."""
