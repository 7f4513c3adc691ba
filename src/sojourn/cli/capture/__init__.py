"""Commands on one capture or interface: `flows` and `rtt`."""
