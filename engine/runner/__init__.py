"""From a batch of sequences to their next tokens."""
