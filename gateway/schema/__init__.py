"""What bodies look like, declared as types: read by `gateway.openai.fields`, written out as JSON Schema and OpenAPI."""
