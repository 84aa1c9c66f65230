"""Benchmarks. They compare ratios within one run: `make bench`."""
