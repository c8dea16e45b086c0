"""The Messages API in Anthropic's format: bodies parsed, events told in order, errors in its shape. Pure."""
