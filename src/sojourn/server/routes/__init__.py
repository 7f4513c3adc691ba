"""The query unit's interface over HTTP."""
