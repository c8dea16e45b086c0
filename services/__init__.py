"""Control plane, engine servers, child processes and the command line."""
