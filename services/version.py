"""The product's version; the one place that says it."""

__version__ = "0.1.0"

# Revisions of the contract in protos/muster/v1 that this software speaks.
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
