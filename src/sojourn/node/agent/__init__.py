"""The agent: streams of measurements, recorded, spooled and sent."""
