"""The parts of benchmarks.device_check."""
