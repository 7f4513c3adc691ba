"""Bucket arrays (IoTm): joint decoding, and range queries over epochs."""
