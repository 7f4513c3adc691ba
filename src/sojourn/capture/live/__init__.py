"""Live interfaces: packets through a ring shared with the kernel."""
