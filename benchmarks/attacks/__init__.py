"""What a hostile or broken client does to a port, for `benchmarks.abuse`."""
