"""Answers by when packets were sent: of stretches of a given length, and of the whole as a picture."""
