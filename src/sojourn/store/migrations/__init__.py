"""The schema of the databases, version by version."""
