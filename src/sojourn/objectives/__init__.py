"""Objectives: what an operator wants guaranteed, and how an answer is judged against it."""
