"""The one road of a segment: survey, plan, record, answer."""
