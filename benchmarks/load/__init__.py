"""A load generator for OpenAI-format servers, cheap enough to share a small machine with the server it measures."""
