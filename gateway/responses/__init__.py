"""The Responses API: bodies parsed, events told in order, finished responses kept. Pure but for the peers."""
