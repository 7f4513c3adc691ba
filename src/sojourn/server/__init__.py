"""The query unit: takes epochs from nodes, tells them what to record, and answers queries."""
