"""Epochs: immutable snapshots of sketches, their wire format, and recording that closes them in time."""
