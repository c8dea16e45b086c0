"""The OpenAI wire format: requests parsed into values, events turned into response bodies."""
