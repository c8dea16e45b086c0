"""The gateway: how a person's request becomes a stream of text."""
