"""Why there is no model to serve."""


class ModelNotFoundError(Exception):
    """MODEL names nothing that can be served, or the default model could not be fetched; the message has the fix."""
