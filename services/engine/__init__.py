"""The engine process: one rank's gRPC servers around one engine thread.

The event loop talks gRPC, the engine thread talks tensors; they meet in `intake` and `mailboxes` only.
"""
