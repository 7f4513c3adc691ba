"""Benchmarks: figures beside a peer's in the same run, never alone. `make bench` runs them all."""
