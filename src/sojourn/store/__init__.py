"""The databases: epochs, measurements of segments, tokens."""
