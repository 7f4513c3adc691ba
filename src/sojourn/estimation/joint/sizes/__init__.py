"""Flow sizes from count cells, all flows together."""
