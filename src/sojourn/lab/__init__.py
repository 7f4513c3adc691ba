"""Worlds to test in: queues, a wireless collection network, network namespaces."""
