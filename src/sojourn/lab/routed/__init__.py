"""A routed network inside this machine: real routers in network namespaces."""
