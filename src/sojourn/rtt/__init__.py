"""Passive round-trip times from one observation point: TCP, ICMP echo, MQTT, QUIC and DNS."""
