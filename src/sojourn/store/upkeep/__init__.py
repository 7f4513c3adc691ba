"""What keeps a store in order: partitions, retention, down-sampling, the clock they go by, backups, losses, checks."""
