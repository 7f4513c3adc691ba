"""The estimators as published, each with an interval whose coverage is tested."""
