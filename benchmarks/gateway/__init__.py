"""What the gateway itself costs: an engine that takes no time behind it, and a server that does nothing beside it."""
