"""The one gRPC port of a process: server, errors, channels and the process's identity."""
