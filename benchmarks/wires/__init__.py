"""Roads for step outputs from an engine process to a gateway process, for `benchmarks.transport`."""
